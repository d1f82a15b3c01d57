"""Dynamic loss scaling: the loss is multiplied before the backward pass, its gradients divided.

Micikevicius et al., *Mixed Precision Training* (2018), section 3.2: most gradients of float16
values are too small for float16. The scale grows while all is finite, and shrinks where something
was not; the transitions are those of ``torch.amp.GradScaler``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax

from ..ir.tensor import Emitter, Tensor, accumulator_dtype
from ..ops import functional as op
from ..runtime.owned import GOOD_STEPS, SCALE, scale_types

INITIAL = {SCALE: 2.0**16, GOOD_STEPS: 0}
"""What a new step starts with."""

_GROWTH, _BACKOFF = 2.0, 0.5
_GROWTH_INTERVAL = 2000
"""Good steps in a row after which the scale grows."""


class LossScale:
    """The variables of a loss scale, and its bindings.

    Attributes
    ----------
    scale : relax.Var
        What the loss is multiplied by, a float32 scalar.
    good_steps : relax.Var
        Good steps since the scale last changed, an int64 scalar.
    """

    def __init__(self) -> None:
        self.scale, self.good_steps = (
            relax.Var(f"loss_scale.{name}", relax.TensorType([], ty.dtype))
            for name, ty in scale_types().items()
        )

    @property
    def all(self) -> list[Any]:
        """Both, in the order in which functions take and return them."""
        return [self.scale, self.good_steps]

    def unscaled(self, emitter: Emitter, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Emit the gradients of the loss, given those of the scaled one."""
        inverse = 1.0 / emitter.lift(self.scale)

        def unscale(gradient: Tensor) -> Tensor:
            # In float32 at least: the inverse of a scale may be no float16.
            wide = accumulator_dtype(gradient.dtype)
            return (gradient.astype(wide) * inverse.astype(wide)).astype(gradient.dtype)

        return list(map(unscale, gradients))

    def emit_next(self, emitter: Emitter, is_good: Tensor) -> list[Tensor]:
        """Emit the scale and the count of good steps behind a step, given whether it was good."""
        scale, good_steps = map(emitter.lift, self.all)
        count = good_steps + 1
        grown = scale * _GROWTH
        is_due = op.equal(count, _GROWTH_INTERVAL)
        # A scale that would be infinite stays.
        good_scale = op.where(op.logical_and(is_due, op.isfinite(grown)), grown, scale)
        good_count = op.where(is_due, 0, count)
        return [
            op.where(is_good, good_scale, scale * _BACKOFF),
            op.where(is_good, good_count, 0),
        ]
