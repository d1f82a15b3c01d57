"""Rules of ops that change a tensor's shape or the order of its axes: each moves elements back."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from ..ir.tensor import Tensor
from ..ops import functional as op
from ..ops.movement import untransform_layout as restore_layout
from .rule import composite, linear, nondifferentiable
from .sample import sample, static


@linear("relax.nn.batch_flatten", samples=[sample((2, 3, 4)), sample(("n", 3, 2)), sample((3, 0))])
def batch_flatten(x: Tensor, ct: Tensor) -> Tensor:
    """x̄ = ȳ in the shape of x"""
    return op.reshape(ct, x.shape)


@linear(
    "relax.broadcast_to",
    samples=[
        sample((3,), static((2, 3))),
        sample((2, 1), static((4, 2, 3))),
        sample((), static((2, 2))),
        sample((2, 3), static((2, 3))),
    ],
)
def broadcast_to(x: Tensor, shape: Any, ct: Tensor) -> tuple[Tensor, None]:
    """x̄ = ȳ summed over the axes along which x was repeated"""
    return op.sum_to(ct, x.shape), None


@linear(
    "relax.collapse_sum_like",
    samples=[sample((2, 3, 4), (3, 1)), sample((2, 3), ()), sample(("n", 3), ("n", 1))],
)
def collapse_sum_like(x: Tensor, like: Tensor, ct: Tensor) -> tuple[Tensor, None]:
    """x̄ = ȳ, repeated"""
    return op.broadcast_to(ct, x.shape), None


@linear(
    "relax.expand_dims",
    samples=[
        sample((2, 3), axis=[0, -1]),
        sample((), axis=0),
        sample(("n", 2), axis=[-2]),
        sample((0, 2), axis=1),
    ],
)
def expand_dims(x: Tensor, ct: Tensor) -> Tensor:
    """x̄ = ȳ in the shape of x"""
    return op.reshape(ct, x.shape)


@linear("relax.flatten", samples=[sample((2, 3, 4)), sample(()), sample(("n", 2)), sample((2, 0))])
def flatten(x: Tensor, ct: Tensor) -> Tensor:
    """x̄ = ȳ in the shape of x"""
    return op.reshape(ct, x.shape)


@linear(
    "relax.layout_transform",
    samples=[
        sample((2, 3, 4), index_map=lambda i, j, k: (k, i, j)),
        sample((2, 4), index_map=lambda i, j: (i, j // 2, j % 2)),
        sample((7,), index_map=lambda i: (i // 4, i % 4), pad_value=2.0),
        sample((3, 5), index_map=lambda i, j: (j // 2, i, j % 2)),
    ],
    affine=True,
)
def layout_transform(x: Tensor, ct: Tensor, attrs: Any) -> Tensor:
    """x̄ᵢ = ȳ at the place that the layout gives to xᵢ"""
    return restore_layout(ct, attrs.index_map, x.shape)


@linear(
    "graphgrad.untransform_layout",
    samples=[
        sample((2, 4), static((7,)), index_map=tirx.IndexMap.from_func(lambda i: (i // 4, i % 4))),
        sample((4, 2), static((2, 4)), index_map=tirx.IndexMap.from_func(lambda i, j: (j, i))),
    ],
)
def untransform_layout(x: Tensor, shape: Any, ct: Tensor, attrs: Any) -> tuple[Tensor, None]:
    """x̄ = ȳ in the layout, zero in its padding"""
    return op.layout_transform(ct, index_map=attrs.index_map, pad_value=0.0), None


@linear(
    "relax.permute_dims",
    samples=[
        sample((2, 3, 4), axes=[1, -1, 0]),
        sample((2, 3)),
        sample(()),
        sample(("n", 3), axes=[-1, 0]),
        sample((0, 3)),
    ],
)
def permute_dims(x: Tensor, ct: Tensor, attrs: Any) -> Tensor:
    """x̄ = ȳ with the axes permuted back"""
    axes = attrs.axes
    if axes is None:
        return op.permute_dims(ct)
    order = [axis % x.ndim for axis in axes]
    return op.permute_dims(ct, [order.index(axis) for axis in range(x.ndim)])


@composite(
    "relax.nn.pixel_shuffle",
    samples=[
        sample((2, 8, 2, 3), upscale_factor=2),
        sample((9, 1, 2), upscale_factor=3),
        sample(("n", 4, 2, 2), upscale_factor=2),
        sample((2, 3, 2, 2), upscale_factor=1),
    ],
)
def pixel_shuffle(x: Tensor, attrs: Any) -> Tensor:
    """y = x with each group of r² channels interleaved into r × r pixels"""
    factor = attrs.upscale_factor
    *lead, channels, height, width = x.shape
    channels = channels // factor**2
    blocks = op.reshape(x, [*lead, channels, factor, factor, height, width])
    first = len(lead)
    order = [*range(first), *(first + k for k in (0, 3, 1, 4, 2))]
    pixels = op.permute_dims(blocks, order)
    return op.reshape(pixels, [*lead, channels, height * factor, width * factor])


@linear(
    "relax.reshape",
    samples=[
        sample((2, 6), static((3, 4))),
        sample((4,), static((2, 1, -1))),
        sample((), static((1,))),
        sample(("n", 4), static((-1, 2))),
        sample((0, 3), static((0, 5))),
        sample((2, 3, 2), static((0, -1))),
    ],
)
def reshape(x: Tensor, shape: Any, ct: Tensor) -> tuple[Tensor, None]:
    """x̄ = ȳ in the shape of x"""
    return op.reshape(ct, x.shape), None


@linear(
    "relax.squeeze",
    samples=[
        sample((1, 3, 1)),
        sample((1, 3, 1), axis=[-1]),
        sample((1, 1)),
        sample((1, "n", 1), axis=[0]),
        sample((1, 0), axis=0),
    ],
)
def squeeze(x: Tensor, ct: Tensor) -> Tensor:
    """x̄ = ȳ in the shape of x"""
    return op.reshape(ct, x.shape)


nondifferentiable("relax.shape_of", "relax.shape_to_tensor", "relax.tensor_to_shape")
