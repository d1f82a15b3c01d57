"""Rules of ops that only move elements: each is linear and its rule moves them back."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from ..ops import functional as op
from ..ops.tensor import Tensor
from .rule import linear, nondifferentiable, register_gradient
from .sample import sample, static


@linear(
    "relax.broadcast_to",
    samples=[sample((3,), static((2, 3))), sample((2, 1), static((4, 2, 3)))],
)
def broadcast_to(x: Tensor, shape: Any, ct: Tensor) -> tuple[Tensor, None]:
    """x̄ = ȳ summed over the axes along which x was repeated"""
    return op.sum_to(ct, x.shape), None


@linear(
    "relax.concat",
    samples=[
        sample([(2, 3), (4, 3)], axis=0),
        sample([(2, 1), (2, 3), (2, 2)], axis=-1),
        sample([("n", 3), ("n", 2)], axis=1),
    ],
)
def concat(parts: list[Tensor], ct: Tensor, attrs: Any) -> list[Tensor]:
    """x̄ᵢ = the slice of ȳ that xᵢ became"""
    axis = (attrs.axis or 0) % ct.ndim
    stops = list(accumulate(part.shape[axis] for part in parts))
    if all(isinstance(stop, int) for stop in stops):
        return op.split(ct, stops[:-1], axis=axis)
    bounds = zip([0, *stops[:-1]], stops, strict=True)
    return [op.strided_slice(ct, axes=[axis], begin=[a], end=[b]) for a, b in bounds]


@linear("relax.expand_dims", samples=[sample((2, 3), axis=[0, -1]), sample((), axis=0)])
def expand_dims(x: Tensor, ct: Tensor) -> Tensor:
    """x̄ = ȳ in the shape of x"""
    return op.reshape(ct, x.shape)


@linear("relax.flatten", samples=[sample((2, 3, 4))])
def flatten(x: Tensor, ct: Tensor) -> Tensor:
    """x̄ = ȳ in the shape of x"""
    return op.reshape(ct, x.shape)


@linear("relax.permute_dims", samples=[sample((2, 3, 4), axes=[1, -1, 0]), sample((2, 3))])
def permute_dims(x: Tensor, ct: Tensor, attrs: Any) -> Tensor:
    """x̄ = ȳ with the axes permuted back"""
    axes = attrs.axes
    if axes is None:
        return op.permute_dims(ct)
    order = [axis % x.ndim for axis in axes]
    return op.permute_dims(ct, [order.index(axis) for axis in range(x.ndim)])


@linear(
    "relax.reshape",
    samples=[
        sample((2, 6), static((3, 4))),
        sample((4,), static((2, 1, -1))),
        sample((), static((1,))),
    ],
)
def reshape(x: Tensor, shape: Any, ct: Tensor) -> tuple[Tensor, None]:
    """x̄ = ȳ in the shape of x"""
    return op.reshape(ct, x.shape), None


@register_gradient(
    "relax.split",
    samples=[
        sample((2, 6), indices_or_sections=3, axis=1),
        sample((7, 2), indices_or_sections=[2, 5], axis=0),
        sample((2, 6), indices_or_sections=2, axis=-1),
    ],
)
def split(inputs: Any, outputs: Any, cotangents: Any, attrs: Any) -> tuple[Tensor]:
    """x̄ = the ȳᵢ joined"""
    return (op.concat(cotangents, axis=attrs.axis),)


@linear("relax.squeeze", samples=[sample((1, 3, 1)), sample((1, 3, 1), axis=[-1])])
def squeeze(x: Tensor, ct: Tensor) -> Tensor:
    """x̄ = ȳ in the shape of x"""
    return op.reshape(ct, x.shape)


nondifferentiable("relax.shape_of", "relax.shape_to_tensor", "relax.tensor_to_shape")
