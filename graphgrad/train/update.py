"""The training step as one Relax function: forward, loss, backward, statistics and update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax

from ..autodiff.activity import analyse
from ..autodiff.program import linearise, replay, substitute
from ..autodiff.reverse import backward, check_target
from ..autodiff.write import write_function
from ..frontend.model import Model
from ..ops import functional as op
from ..ops.tensor import Emitter, Tensor
from .forward import FORWARD, Forward
from .optimizer import Optimizer

STEP = "train_step"
DONATED = "graphgrad.donated"
"""Attribute of a function: pairs of parameter index and result index that may share a buffer."""


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
        boolean scalar. Where the loss or a gradient is not finite, `applied` is false and all
        tensors are returned unchanged.

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
    activity = analyse(program, weights)
    rate = relax.Var("learning_rate", relax.TensorType([], "float64"))
    buffers = {
        slot: [relax.Var(f"{slot}.{w.name}", w.ty) for w in weights] for slot in optimizer.slots
    }
    flat_buffers = [buffer for slot in buffers.values() for buffer in slot]

    def body(emitter: Emitter) -> Any:
        environment = replay(program, emitter.builder)
        loss_expr, _, new_state = substitute(program.result, environment).fields
        loss = emitter.lift(loss_expr)
        one = emitter.full(1.0, [], loss.dtype)
        gradients = backward(emitter, program, environment, activity, [one, None, None], weights)
        with emitter.at(None, "update"):
            applied = _all_finite([loss, *gradients])
            new_weights: list[Tensor] = []
            new_buffers: dict[str, list[Tensor]] = {slot: [] for slot in buffers}
            for index, (weight, gradient) in enumerate(zip(weights, gradients, strict=True)):
                parameter = emitter.lift(weight)
                slots = {slot: emitter.lift(buffers[slot][index]) for slot in buffers}
                moved, slots_moved = optimizer.emit(
                    parameter, gradient, slots, emitter.lift(rate).astype(parameter.dtype)
                )
                new_weights.append(op.where(applied, moved, parameter))
                for slot, value in slots_moved.items():
                    new_buffers[slot].append(op.where(applied, value, slots[slot]))
            statistics = [
                op.where(applied, emitter.lift(new), emitter.lift(old))
                for new, old in zip(new_state.fields, state, strict=True)
            ]
        buffers_out = [value for slot in new_buffers.values() for value in slot]
        return (loss, applied, *new_weights, *statistics, *buffers_out)

    written = write_function(tvm.IRModule(), STEP, [*arguments, rate, *owned, *flat_buffers], body)
    donated = [*weights, *state, *flat_buffers]
    order = [*arguments, rate, *owned, *flat_buffers]
    pairs = [[order.index(var), index + 2] for index, var in enumerate(donated)]
    written[STEP] = written[STEP].with_attr(DONATED, pairs)
    return written


def _all_finite(values: Sequence[Tensor]) -> Tensor:
    """Emit whether every element of every tensor is finite, as a boolean scalar."""
    checks = []
    for value in values:
        finite = op.isfinite(value)
        # Stock lowering reduces integers, not booleans.
        checks.append(
            op.minimum_of(finite.astype("int32")) if value.shape else finite.astype("int32")
        )
    total = checks[0]
    for check in checks[1:]:
        total = total * check
    return op.greater(total, 0)
