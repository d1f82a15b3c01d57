"""The training step as one Relax function: forward, loss, backward, statistics and update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax

from ..autodiff.expand import expand
from ..autodiff.program import linearise, replay, substitute
from ..autodiff.reverse import backward, check_target
from ..autodiff.write import write_function
from ..frontend.model import Model
from ..lower.inplace import DONATED
from ..ops import functional as op
from ..ops.tensor import Emitter, Tensor, is_float, type_shape
from .clip import clip_by_norm, clip_by_value
from .forward import FORWARD, Forward, kernels
from .groups import by_parameter
from .optimizer import Optimizer

STEP = "train_step"


def build_step(
    model: Model,
    forward: Forward,
    trained: Sequence[str],
    optimizer: Optimizer,
    rules: str = "auto",
) -> tvm.IRModule:
    """Write the training step of a model.

    Parameters
    ----------
    model : Model
    forward : Forward
        With a loss.
    trained : sequence of str
        Names of the parameters that the optimiser moves.
    optimizer : Optimizer
    rules : "auto" or "derived"
        Which gradient rules it is differentiated by.

    Returns
    -------
    IRModule
        With ``train_step(*inputs, [targets], rate, [seed], updates, *params, *state, *buffers)
        -> (loss, updates, *trained params, *state, *buffers)``: buffers by slot, then by parameter;
        `rate` and `updates` are float64 scalars, `seed` is an int64 scalar. `updates` counts the
        steps that changed something, and grows by one; where the loss, a gradient or a new
        statistic is not finite, it does not, and all tensors are returned unchanged. Parameters
        that train, statistics and buffers are donated; `updates` is returned in memory of its
        own, so that whether a step changed something can be asked long after it.

    Raises
    ------
    MissingGradientError
    """
    program = linearise(forward.mod, FORWARD, rules)
    count = len(model.inputs) + (forward.targets is not None)
    arguments, owned = program.params[:count], program.params[count:]
    seed = [owned.pop()] if forward.seeded else []
    params = dict(zip(model.params, owned[: len(model.params)], strict=True))
    state = owned[len(model.params) :]
    weights = [params[name] for name in trained]
    for weight in weights:
        check_target(weight)
    program, activity = expand(program, weights)
    rate = relax.Var("learning_rate", relax.TensorType([], "float64"))
    updates = relax.Var("updates", relax.TensorType([], "float64"))
    buffers = {
        slot: [relax.Var(f"{slot}.{w.name}", w.ty) for w in weights] for slot in optimizer.slots
    }

    def body(emitter: Emitter) -> Any:
        environment = replay(program, emitter.builder)
        loss_expr, _, new_state = substitute(program.result, environment).fields
        loss = emitter.lift(loss_expr)
        one = emitter.full(1.0, [], loss.dtype)
        gradients = backward(emitter, program, environment, activity, [one, None, None], weights)
        with emitter.at(None, "update"):
            old = [emitter.lift(var) for var in state]
            # A model without batch norm has nothing that updates its statistics.
            new = [emitter.lift(value) for value in new_state.fields] or old
            floats = [statistic for statistic in new if is_float(statistic.dtype)]
            clipped, norms = _clip(optimizer, gradients)
            applied = _all_finite([loss, *gradients, *norms, *floats])
            update = emitter.lift(updates) + 1.0
            scalars = emitter.lift(rate), update
            moved, new_buffers = _move(optimizer, emitter, weights, clipped, buffers, scalars)
            kept = map(emitter.lift, [updates, *weights, *state, *_flat(buffers)])
            fresh = [update, *moved, *new, *_flat(new_buffers)]
            chosen = [op.where(applied, *pair) for pair in zip(fresh, kept, strict=True)]
        return (loss, *chosen)

    inputs = [*arguments, rate, *seed, updates, *owned, *_flat(buffers)]
    written = write_function(
        kernels(forward.mod), STEP, inputs, body, pure=program.pure, dataflow=program.dataflow
    )
    replaced = [*weights, *state, *_flat(buffers)]
    pairs = [[inputs.index(var), index + 2] for index, var in enumerate(replaced)]
    written[STEP] = written[STEP].with_attr(DONATED, pairs)
    return written


def _clip(optimizer: Optimizer, gradients: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Emit the clipped gradients; return them, and the norm if it was needed."""
    if optimizer.clip_value is not None:
        gradients = clip_by_value(gradients, optimizer.clip_value)
    if optimizer.clip_norm is None:
        return gradients, []
    gradients, norm = clip_by_norm(gradients, optimizer.clip_norm)
    return gradients, [norm]


def _move(
    optimizer: Optimizer,
    emitter: Emitter,
    weights: Sequence[Any],
    gradients: Sequence[Tensor],
    buffers: dict[str, list[Any]],
    scalars: tuple[Tensor, Tensor],
) -> tuple[list[Tensor], dict[str, list[Tensor]]]:
    """Emit the optimiser's update of each weight; return the new weights and buffers."""
    rate, update = scalars
    settings = by_parameter(optimizer, {w.name: len(type_shape(w.ty)) for w in weights})
    moved: list[Tensor] = []
    new_buffers: dict[str, list[Tensor]] = {slot: [] for slot in buffers}
    for index, (weight, gradient) in enumerate(zip(weights, gradients, strict=True)):
        own, scale = settings[weight.name]
        parameter = emitter.lift(weight)
        slots = {slot: emitter.lift(members[index]) for slot, members in buffers.items()}
        new_parameter, new_slots = own.emit(parameter, gradient, slots, rate * scale, update)
        moved.append(new_parameter)
        for slot, members in new_buffers.items():
            members.append(new_slots[slot])
    return moved, new_buffers


def _flat(buffers: dict[str, list[Any]]) -> list[Any]:
    return [buffer for members in buffers.values() for buffer in members]


def _all_finite(values: Sequence[Tensor]) -> Tensor:
    """Emit whether every element of every tensor is finite, as a boolean scalar."""
    checks = []
    for value in values:
        # Stock lowering reduces integers, not booleans.
        finite = op.isfinite(value).astype("int32")
        checks.append(op.minimum_of(finite) if value.shape else finite)
    total = checks[0]
    for check in checks[1:]:
        total = total * check
    return op.greater(total, 0)
