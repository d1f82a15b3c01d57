"""Clipping of gradients by value and by norm, emitted into the step's function."""

from __future__ import annotations

from collections.abc import Sequence

from ..ir.tensor import Tensor
from ..ops import functional as op
from ..ops.many import sum_of_squares

_NORM_EPSILON = 1e-6
"""Added to the norm, as by ``torch.nn.utils.clip_grad_norm_``."""


def clip_by_value(gradients: Sequence[Tensor], limit: float) -> list[Tensor]:
    """Emit each gradient with its elements clipped to [−limit, limit]; NaN stays NaN."""
    return [op.clip(gradient, -limit, limit) for gradient in gradients]


def clip_by_norm(gradients: Sequence[Tensor], limit: float) -> tuple[list[Tensor], Tensor]:
    """Emit the gradients, scaled together to a Euclidean norm of at most `limit`.

    Pascanu, Mikolov and Bengio, *On the difficulty of training recurrent neural networks* (2013),
    algorithm 1.

    Returns
    -------
    gradients : list of Tensor
    norm : Tensor
        The norm before scaling, a float64 scalar. Where it is not finite, the scaled gradients are
        meaningless; the caller checks it.
    """
    norm = op.sqrt(sum_of_squares(gradients))
    scale = limit / (norm + _NORM_EPSILON)
    scale = op.where(op.less(scale, 1.0), scale, 1.0)
    return [g * scale.astype(g.dtype) for g in gradients], norm
