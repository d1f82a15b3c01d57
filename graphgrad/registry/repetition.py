"""Rules of ops that repeat or reverse elements: what was repeated is summed."""

from __future__ import annotations

from typing import Any

from ..ir.tensor import Tensor
from ..ops import functional as op
from .rule import linear, register_gradient
from .sample import sample


@linear(
    "relax.flip",
    samples=[
        sample((2, 3), axis=0),
        sample((2, 3), axis=-1),
        sample(("n", 2), axis=0),
        sample((0, 2), axis=0),
    ],
)
def flip(x: Tensor, ct: Tensor, attrs: Any) -> Tensor:
    """x̄ = ȳ, flipped back"""
    return op.flip(ct, axis=attrs.axis)


@register_gradient(
    "relax.meshgrid",
    samples=[
        sample([(2,), (3,)]),
        sample([(3,), (3,)], indexing="xy"),
        sample([(3,), (3,), (2,)], indexing="xy"),
        sample([(4,)], indexing="xy"),
        sample([("n",), (2,)], indexing="ij"),
    ],
)
def meshgrid(inputs: Any, outputs: Any, cotangents: Any, attrs: Any) -> tuple[list[Tensor]]:
    """x̄ᵢ = ȳᵢ summed over all axes but that of xᵢ

    Stock TVM types the grids of "xy" as those of "ij": vectors of different lengths are refused.
    """
    (vectors,) = inputs
    axes = list(range(len(vectors)))
    order = [1, 0, *axes[2:]] if attrs.indexing == "xy" and len(axes) > 1 else axes
    return (
        [
            op.reduce_sum(ct, [a for a in axes if a != axis])
            for ct, axis in zip(cotangents, order, strict=True)
        ],
    )


@linear(
    "relax.repeat",
    samples=[
        sample((2, 3), repeats=2, axis=0),
        sample((2, 3), repeats=3, axis=-1),
        sample((2, 3), repeats=2),
        sample((), repeats=3),
        sample((2, 3), repeats=1, axis=1),
        sample((2, 3), repeats=0, axis=1),
        sample(("n", 2), repeats=2, axis=0),
        sample(("n", 2), repeats=2),
    ],
)
def repeat(x: Tensor, ct: Tensor, attrs: Any) -> Tensor:
    """x̄ = ȳ summed over the repetitions of each element"""
    if attrs.repeats == 0:
        return ct.emitter.full(0.0, x.shape, ct.dtype)
    axis = x.ndim - 1 if attrs.axis is None else attrs.axis % x.ndim
    copies = op.reshape(ct, [*x.shape[: axis + 1], attrs.repeats, *x.shape[axis + 1 :]])
    return op.reduce_sum(copies, [axis + 1])


@linear(
    "relax.tile",
    samples=[
        sample((2, 3), repeats=2),
        sample((2, 3), repeats=[3, 1]),
        sample((2,), repeats=[2, 1, 3]),
        sample((2, 3, 2), repeats=[1, 2]),
        sample((), repeats=[2, 2]),
        sample((2, 3), repeats=[0, 2]),
        sample(("n", 2), repeats=[2, 2]),
        sample((0, 2), repeats=[2, 2]),
    ],
)
def tile(x: Tensor, ct: Tensor, attrs: Any) -> Tensor:
    """x̄ = ȳ summed over the copies of x"""
    if 0 in attrs.repeats:
        return ct.emitter.full(0.0, x.shape, ct.dtype)
    rank = max(x.ndim, len(attrs.repeats))
    repeats = [1] * (rank - len(attrs.repeats)) + list(attrs.repeats)
    extents = [1] * (rank - x.ndim) + x.shape
    pairs = [d for pair in zip(repeats, extents, strict=True) for d in pair]
    total = op.reduce_sum(op.reshape(ct, pairs), list(range(0, 2 * rank, 2)))
    return op.reshape(total, x.shape)
