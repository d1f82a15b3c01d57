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
from ..ops.tensor import Emitter, Tensor, is_float
from .forward import FORWARD, Forward, kernels
from .optimizer import Optimizer

STEP = "train_step"


def build_step(
    model: Model, forward: Forward, trained: Sequence[str], optimizer: Optimizer
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

    Returns
    -------
    IRModule
        With ``train_step(*inputs, [targets], rate, *params, *state, *buffers) -> (loss, applied,
        *trained params, *state, *buffers)``: buffers by slot, then by parameter; `applied` is a
        boolean scalar. Where the loss, a gradient or a new statistic is not finite, `applied` is
        false and all tensors are returned unchanged.

    Raises
    ------
    MissingGradientError
    """
    program = linearise(forward.mod, FORWARD)
    count = len(model.inputs) + (forward.targets is not None)
    arguments, owned = program.params[:count], program.params[count:]
    params = dict(zip(model.params, owned[: len(model.params)], strict=True))
    state = owned[len(model.params) :]
    weights = [params[name] for name in trained]
    for weight in weights:
        check_target(weight)
    program, activity = expand(program, weights)
    rate = relax.Var("learning_rate", relax.TensorType([], "float64"))
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
            applied = _all_finite([loss, *gradients, *floats])
            moved, new_buffers = _move(optimizer, emitter, weights, gradients, buffers, rate)
            kept = [*map(emitter.lift, weights), *old, *map(emitter.lift, _flat(buffers))]
            fresh = [*moved, *new, *_flat(new_buffers)]
            chosen = [op.where(applied, *pair) for pair in zip(fresh, kept, strict=True)]
        return (loss, applied, *chosen)

    inputs = [*arguments, rate, *owned, *_flat(buffers)]
    written = write_function(
        kernels(forward.mod), STEP, inputs, body, pure=program.pure, dataflow=program.dataflow
    )
    replaced = [*weights, *state, *_flat(buffers)]
    pairs = [[inputs.index(var), index + 2] for index, var in enumerate(replaced)]
    written[STEP] = written[STEP].with_attr(DONATED, pairs)
    return written


def _move(
    optimizer: Optimizer,
    emitter: Emitter,
    weights: Sequence[Any],
    gradients: Sequence[Tensor],
    buffers: dict[str, list[Any]],
    rate: Any,
) -> tuple[list[Tensor], dict[str, list[Tensor]]]:
    """Emit the optimiser's update of each weight; return the new weights and buffers."""
    moved: list[Tensor] = []
    new_buffers: dict[str, list[Tensor]] = {slot: [] for slot in buffers}
    for index, (weight, gradient) in enumerate(zip(weights, gradients, strict=True)):
        parameter = emitter.lift(weight)
        slots = {slot: emitter.lift(members[index]) for slot, members in buffers.items()}
        rate_here = emitter.lift(rate).astype(parameter.dtype)
        new_parameter, new_slots = optimizer.emit(parameter, gradient, slots, rate_here)
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
