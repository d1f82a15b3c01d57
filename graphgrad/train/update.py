"""The training step as one Relax function: forward, loss, backward, statistics and update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax

from ..autodiff.reverse import Gradients
from ..ir.provenance import span_of
from ..ir.tensor import Emitter, Tensor, is_float, type_shape
from ..memory.donation import DONATED
from ..memory.overlap import CHECKED_BY_CALLER
from ..ops import functional as op
from ..ops.many import all_finite
from .clip import clip_by_norm, clip_by_value
from .forward import Forward
from .groups import by_parameter
from .loss_scale import LossScale
from .optimizer import Optimizer

STEP = "graphgrad.train_step"


def build_step(
    forward: Forward,
    trained: Sequence[str],
    optimizer: Optimizer,
    scale: LossScale | None = None,
) -> tvm.IRModule:
    """Write the training step of a model.

    Parameters
    ----------
    forward : Forward
        With a loss.
    trained : sequence of str
        Names of the parameters that the optimizer moves.
    optimizer : Optimizer
    scale : LossScale, optional
        Of a step that scales its loss.

    Returns
    -------
    IRModule
        With ``train_step(*inputs, [targets], rate, [seed], updates, *params, *state, *buffers,
        *scale) -> (loss, updates, *trained params, *state, *buffers, *scale)``: buffers by slot,
        then by parameter; `rate` and `updates` are float64 scalars, `seed` is an int64 scalar.
        `updates` counts the steps that changed something, and grows by one; where the loss, a
        gradient or a new statistic is not finite, it does not, and all tensors but the scale are
        returned unchanged. Parameters that train, statistics, buffers and scale are donated;
        `updates` is returned in memory of its own, so that whether a step changed something can be
        asked long after it.

    Raises
    ------
    MissingGradientError
    """
    weights = forward.weights(trained)
    derivative = Gradients(forward.program, weights)
    update = Update(optimizer, weights, forward.state, scale)

    def body(emitter: Emitter) -> Any:
        loss, gradients, statistics = forward.emit(emitter, derivative, scale=scale)
        with emitter.at(span_of(None, "update"), "update"):
            return (loss, *update.emit(emitter, gradients, statistics, [loss, *gradients]))

    # This order, and that of what `emit` returns, is the format of exports. Who keeps to it:
    # `Owned.everything`, `Window.everything` and `TrainingStep`, all of `runtime`.
    owned = [update.updates, *forward.params, *forward.state, *update.buffers, *update.scale]
    inputs = [*forward.arguments, update.rate, *forward.seed, *owned]
    written = derivative.write(STEP, inputs, body)
    return allow_donations(written, STEP, inputs, update.replaced, first=2)


class Update:
    """The update of a step: the variables that it reads and replaces, and its bindings.

    Parameters
    ----------
    optimizer : Optimizer
    weights, state : sequence of relax.Var
    scale : LossScale, optional

    Attributes
    ----------
    rate, updates : relax.Var
        The learning rate and the count of updates, float64 scalars.
    buffers : list of relax.Var
        The optimizer's, by slot, then by parameter.
    scale : list of relax.Var
        Those of the loss scale, if there is one.
    replaced : list of relax.Var
        Weights, statistics, buffers and `scale`.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        weights: Sequence[Any],
        state: Sequence[Any],
        scale: LossScale | None = None,
    ):
        self._loss_scale = scale
        self._optimizer, self._weights, self._state = optimizer, weights, state
        self.rate = relax.Var("learning_rate", relax.TensorType([], "float64"))
        self.updates = relax.Var("updates", relax.TensorType([], "float64"))
        self._slots = {
            slot: [relax.Var(f"{slot}.{weight.name}", weight.ty) for weight in weights]
            for slot in optimizer.slots
        }
        self.buffers = _flat(self._slots)
        self.scale = scale.all if scale is not None else []
        self._kept = [*weights, *state, *self.buffers]
        self.replaced = [*self._kept, *self.scale]

    def emit(
        self,
        emitter: Emitter,
        gradients: list[Tensor],
        statistics: Sequence[Tensor],
        checked: Sequence[Tensor],
    ) -> list[Tensor]:
        """Emit the update; return the count and all of `replaced`, new where all is finite.

        The loss scale is new in any case.

        Parameters
        ----------
        emitter : Emitter
        gradients : list of Tensor
            Of the weights, before they are clipped.
        statistics : sequence of Tensor
            The new ones; none where nothing updates them.
        checked : sequence of Tensor
            What must be finite besides norms and statistics.
        """
        new_statistics = list(statistics) or [emitter.lift(var) for var in self._state]
        floats = [statistic for statistic in new_statistics if is_float(statistic.dtype)]
        clipped, norms = _clip(self._optimizer, gradients)
        if norms and self._optimizer.clip_value is None:
            # A finite norm has finite terms: gradients need not be read for that again.
            checked = [value for value in checked if not any(value is g for g in gradients)]
        applied = all_finite([*checked, *norms, *floats])
        update_number = emitter.lift(self.updates) + 1.0
        moved, buffers = self._moved(emitter, clipped, update_number)
        old_values = map(emitter.lift, [self.updates, *self._kept])
        new_values = [update_number, *moved, *new_statistics, *buffers]
        scale = self._loss_scale.emit_next(emitter, applied) if self._loss_scale else []
        return [
            *(op.where(applied, *pair) for pair in zip(new_values, old_values, strict=True)),
            *scale,
        ]

    def _moved(
        self, emitter: Emitter, gradients: Sequence[Tensor], update_number: Tensor
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Emit the optimizer's update of each weight; return the new weights and buffers."""
        rate = emitter.lift(self.rate)
        ranks = {weight.name: len(type_shape(weight.ty)) for weight in self._weights}
        settings = by_parameter(self._optimizer, ranks)
        new_weights: list[Tensor] = []
        new_buffers: dict[str, list[Tensor]] = {slot: [] for slot in self._slots}
        for index, (weight, gradient) in enumerate(zip(self._weights, gradients, strict=True)):
            parameter_optimizer, scale = settings[weight.name]
            parameter = emitter.lift(weight)
            slots = {slot: emitter.lift(members[index]) for slot, members in self._slots.items()}
            new_parameter, new_slots = parameter_optimizer.emit(
                parameter, gradient, slots, rate * scale, update_number
            )
            new_weights.append(new_parameter)
            for slot, members in new_buffers.items():
                members.append(new_slots[slot])
        return new_weights, _flat(new_buffers)


def allow_donations(
    mod: tvm.IRModule, name: str, params: Sequence[Any], replaced: Sequence[Any], first: int
) -> tvm.IRModule:
    """The module, with attributes by which its function may overwrite its parameters by results.

    Parameters
    ----------
    mod : IRModule
    name : str
    params : sequence of relax.Var
        All of the function.
    replaced : sequence of relax.Var
        Those that its results take the place of, in order.
    first : int
        Number of the first of these results.
    """
    # The owner of the tensors compares addresses itself (`TrainState.check_overlap`), so that
    # lowering adds no check of them to the function.
    positions = {var: position for position, var in enumerate(params)}
    pairs = [[positions[var], index] for index, var in enumerate(replaced, first)]
    mod[name] = mod[name].with_attr({DONATED: pairs, CHECKED_BY_CALLER: True})
    return mod


def _clip(optimizer: Optimizer, gradients: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Emit the clipped gradients; return them, and a list of their norm, empty if none is taken."""
    if optimizer.clip_value is not None:
        gradients = clip_by_value(gradients, optimizer.clip_value)
    if optimizer.clip_norm is None:
        return gradients, []
    gradients, norm = clip_by_norm(gradients, optimizer.clip_norm)
    return gradients, [norm]


def _flat(buffers: dict[str, list[Any]]) -> list[Any]:
    """All buffers, by slot, then by parameter."""
    return [buffer for members in buffers.values() for buffer in members]
