"""Convolutions, pooling, interpolation and sampling at a grid.

TVM's importer computes convolutions in float32, whatever the operands, and gives zeros for the
positions of maxima.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import relax

from ...errors import ModelError
from ...ir.tensor import Dimension, Tensor
from ...ops import functional as op
from ...ops.conv import Window, conv, conv_data_gradient
from ...ops.grid_sample import Sampling, grid_sample
from ...ops.pool import avg_pool, max_pool, max_pool_index, max_pool_position
from ...ops.pool_windows import Pool
from ...ops.resize import Interpolation, Resized, resize
from .node import Node, converter


@converter("convolution.default")
def convolution(
    node: Node,
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Tensor:
    """A convolution, or the gradient of one's data."""
    rank = w.ndim - 2
    strides, pads, dilations = (_per_axis(v, rank) for v in (stride, padding, dilation))
    window = Window(strides, (*pads, *pads), dilations, groups)
    if transposed:
        extra = _per_axis(output_padding, rank)
        spatial = [
            (x.shape[2 + axis] - 1) * strides[axis]
            - 2 * pads[axis]
            + dilations[axis] * (w.shape[2 + axis] - 1)
            + extra[axis]
            + 1
            for axis in range(rank)
        ]
        shape = [x.shape[0], w.shape[1] * groups, *spatial]
        y = conv_data_gradient(x, w, shape, window)
    else:
        y = conv(x, w, window)
    y = y.astype(node.dtype)
    return y if bias is None else y + op.reshape(bias, [1, bias.shape[0], *[1] * rank])


@converter("max_pool2d_with_indices.default", "max_pool3d_with_indices.default")
def max_pooling(
    node: Node,
    x: Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> list[Tensor]:
    """The maximum of each window, and its position in the image."""
    pool = _pool(node, x, size, stride, padding, dilation, ceil_mode)
    y = max_pool(x, pool)
    position = max_pool_position(max_pool_index(x, y, pool), x.shape, pool)
    # Counted within an image, where ONNX counts within the whole tensor.
    image = _constant(node, math.prod(x.shape[2:]))
    return [y, node.emitter.emit(relax.op.floor_mod(position.expr, image))]


def _constant(node: Node, extent: Dimension) -> Any:
    """An extent as an int64 scalar."""
    if isinstance(extent, int):
        return relax.const(extent, "int64")
    size = node.emitter.emit(relax.op.shape_to_tensor(relax.ShapeExpr([extent])))
    return op.reshape(size, []).expr


@converter("avg_pool2d.default", "avg_pool3d.default")
def average_pooling(
    node: Node,
    x: Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: int | None = None,
) -> Tensor:
    """The mean of each window."""
    if divisor is not None:
        raise ModelError(f"its divisor_override={divisor} is not served: scale its result")
    return avg_pool(x, _pool(node, x, size, stride, padding, 1, ceil_mode, count_include_pad))


@converter("_adaptive_avg_pool2d.default", "_adaptive_avg_pool3d.default")
def adaptive_average(node: Node, x: Tensor, size: Sequence[int]) -> Tensor:
    """The mean of each of some equal parts of an image."""
    rank = x.ndim - 2
    function = getattr(relax.op.nn, f"adaptive_avg_pool{rank}d")
    return node.emitter.emit(function(x.expr, list(_per_axis(size, rank))))


@converter("upsample_nearest1d.vec", "upsample_nearest2d.vec", "upsample_nearest3d.vec")
def nearest(node: Node, x: Tensor, size: Any, factors: Any) -> Tensor:
    """The nearest element below each position."""
    how = Interpolation("nearest", "asymmetric", "floor")
    return _resized(x, size, factors, how)


@converter(
    "upsample_linear1d.vec",
    "upsample_bilinear2d.vec",
    "upsample_trilinear3d.vec",
    "upsample_bicubic2d.vec",
)
def interpolation(node: Node, x: Tensor, size: Any, align_corners: bool, factors: Any) -> Tensor:
    """Linear or cubic interpolation between elements."""
    name = node.node.target.__name__
    method = "cubic" if "bicubic" in name else "linear"
    coordinates = "align_corners" if align_corners else "pytorch_half_pixel"
    if method == "cubic" and not align_corners:
        coordinates = "half_pixel"
    return _resized(x, size, factors, Interpolation(method, coordinates))


@converter("grid_sampler_2d.default", "grid_sampler_3d.default")
def sampled(node: Node, x: Tensor, grid: Tensor, mode: int, padding: int, align: bool) -> Tensor:
    """Values of an image at the points of a grid."""
    method = ("linear", "nearest", "cubic")[mode]
    return grid_sample(x, grid, Sampling(method, ("zeros", "border", "reflection")[padding], align))


def _resized(x: Tensor, size: Any, factors: Any, how: Interpolation) -> Tensor:
    """An image at given sizes, or by given factors, after which scales are measured anew."""
    axes = {}
    for axis, extent in enumerate(x.shape[2:]):
        if not isinstance(extent, int):
            raise ModelError(f"the extent {extent} of an image must be known to resize it")
        if factors is None:
            after, scale = int(size[axis]), int(size[axis]) / extent
        else:
            after, scale = int(extent * factors[axis]), float(factors[axis])
        if how.coordinates == "align_corners":
            scale = after / extent
        axes[2 + axis] = Resized(extent, after, scale)
    return resize(x, axes, how)


def _pool(
    node: Node,
    x: Tensor,
    size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    count_include_pad: bool = False,
) -> Pool:
    """The windows of a pooling, whose stride is their size where none is given."""
    rank = x.ndim - 2
    if rank < 1 or f"{rank}d" not in node.node.target.__name__:
        raise ModelError(f"its input has {x.ndim} axes; give it one for the batch")
    sizes = _per_axis(size, rank)
    strides = _per_axis(stride, rank) if stride else sizes
    pads = _per_axis(padding, rank)
    return Pool(
        sizes, strides, (*pads, *pads), _per_axis(dilation, rank), ceil_mode, count_include_pad
    )


def _per_axis(values: int | Sequence[int], rank: int) -> tuple[int, ...]:
    """One number for each axis; a single one is that of all."""
    values = [values] if isinstance(values, int) else list(values)
    return tuple(values * rank if len(values) == 1 else values)
