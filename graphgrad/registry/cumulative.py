"""Rules of cumulative sums and products."""

from __future__ import annotations

import math
from typing import Any

from ..ir.tensor import Tensor
from ..ops import functional as op
from ..ops.cumulative import reverse_cumsum
from ..ops.index import scatter_recurrence
from ..ops.indexing import Indexing
from .rule import linear, register_gradient
from .sample import sample, tensor

_LINES: list[tuple[tuple[int | str, ...], dict[str, Any]]] = [
    ((4,), {}),
    ((3, 4), {"axis": 0}),
    ((3, 4), {"axis": -1}),
    ((2, 3, 4), {"axis": 1, "exclusive": True}),
    ((3, 4), {"axis": None}),
    ((3, 4), {"axis": None, "exclusive": True}),
    (("n", 4), {"axis": 0}),
    ((4, 1), {"axis": 1, "exclusive": True}),
    ((0, 3), {"axis": 0}),
]


def _line(x: Tensor, axis: int | None) -> tuple[Tensor, int]:
    """The tensor and the axis, not negative, that is run along: all elements for None."""
    if axis is None:
        return op.reshape(x, [math.prod(x.shape)]), 0
    return x, axis % x.ndim


@linear(
    "relax.cumsum",
    samples=[*(sample(s, **a) for s, a in _LINES), sample((3,), axis=0, dtype="float64")],
)
def cumsum(x: Tensor, ct: Tensor, attrs: Any) -> Tensor:
    """x̄ᵢ = Σ of ȳⱼ for j ≥ i, or j > i where exclusive"""
    axis = 0 if attrs.axis is None else attrs.axis % x.ndim
    return op.reshape(reverse_cumsum(ct, axis, bool(attrs.exclusive)), x.shape)


@linear(
    "graphgrad.reverse_cumsum",
    samples=[sample((2, 3), axis=1, exclusive=False), sample((2, 3, 2), axis=1, exclusive=True)],
)
def reverse_cumsum_rule(x: Tensor, ct: Tensor, attrs: Any) -> Tensor:
    """x̄ᵢ = Σ of ȳⱼ for j ≤ i, or j < i where exclusive"""
    return op.cumsum(ct, attrs.axis, exclusive=bool(attrs.exclusive))


@register_gradient(
    "relax.cumprod",
    samples=[
        *(sample(s, **a) for s, a in _LINES),
        sample(tensor((3, 4), 0, 2, dtype="float"), axis=1),
    ],
)
def cumprod(inputs: Any, outputs: Any, cotangents: Any, attrs: Any) -> tuple[Tensor]:
    """x̄ᵢ = Pᵢ (sᵢ + ȳᵢ), P the product before i, s ← x (s + ȳ) backwards; no ȳᵢ where exclusive

    There is no division by x, which may be zero.
    """
    (x,), (y,), (ct,) = inputs, outputs, cotangents
    shape = x.shape
    x, axis = _line(x.astype(y.dtype), attrs.axis)
    line = Indexing("line", axis)
    ends = [1 if d == axis else extent for d, extent in enumerate(x.shape)]
    one, zero = (x.emitter.full(value, ends, x.dtype) for value in (1.0, 0.0))
    zeros = x.emitter.full(0.0, x.shape, x.dtype)
    before, _ = scatter_recurrence(one, x, zeros, None, line, reverse=False)
    incoming = ct if attrs.exclusive else ct * x
    after, _ = scatter_recurrence(zero, x, incoming, None, line, reverse=True)
    share = after if attrs.exclusive else after + ct
    return (op.reshape(before * share, shape),)
