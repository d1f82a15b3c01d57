"""Pooling, with every attribute that ONNX gives it.

TVM's importer has no ``Indices`` and no opset 19's dilations of averages, writes ``auto_pad`` as a
kernel that no rule can see, and divides by what ``ceil_mode`` adds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ...errors import ModelError
from ...ir.tensor import Dimension, Tensor, same_dimension
from ...ops import functional as op
from ...ops.pool import avg_pool, max_pool, max_pool_index, max_pool_position
from ...ops.pool_windows import LAYOUTS, Pool
from .node import Node, converter


@converter("MaxPool")
def convert_max_pool(node: Node) -> Any:
    """The maximum of each window, and its position in the flattened input."""
    x = node.tensor(0)
    pool = _windows(node, x)
    y = max_pool(x, pool)
    if node.output_count < 2:
        return y
    index = max_pool_index(x, y, pool)
    column_major = bool(node.attribute("storage_order", 0))
    return y, max_pool_position(index, x.shape, pool, column_major)


@converter("AveragePool")
def convert_average_pool(node: Node) -> Tensor:
    """The mean of each window; its divisor counts the padding if ``count_include_pad`` is set."""
    x = node.tensor(0)
    return avg_pool(x, _windows(node, x))


@converter("LpPool")
def convert_lp_pool(node: Node) -> Tensor:
    """(Σ |x|^p)^(1/p) over each window."""
    x = node.tensor(0)
    # Every tap must count: the sum is the mean times the number of taps.
    pool = _covering(_windows(node, x), x.shape[2:])
    return _norm(
        lambda powers: avg_pool(powers, pool) * float(math.prod(pool.size)),
        x,
        int(node.attribute("p", 2)),
    )


@converter("GlobalAveragePool")
def convert_global_average_pool(node: Node) -> Tensor:
    """The mean over all spatial axes."""
    x = node.tensor(0)
    axes = list(range(2, x.ndim))
    total = op.reduce_sum(op.widen(x), axes, keepdims=True)
    return op.divide_by_count(total, x.shape[2:]).astype(x.dtype)


@converter("GlobalMaxPool")
def convert_global_max_pool(node: Node) -> Tensor:
    """The maximum over all spatial axes, as one window where their extents are known."""
    x = node.tensor(0)
    axes = list(range(2, x.ndim))
    extents = x.shape[2:]
    if not all(isinstance(extent, int) for extent in extents):
        return op.maximum_of(x, axes, keepdims=True)
    count = math.prod(extents)
    flat = op.reshape(x, [*x.shape[:2], count])
    return op.reshape(
        max_pool(flat, Pool((count,), (1,), (0, 0), (1,))), [*x.shape[:2], *[1] * len(axes)]
    )


@converter("GlobalLpPool")
def convert_global_lp_pool(node: Node) -> Tensor:
    """(Σ |x|^p)^(1/p) over all spatial axes."""
    x = node.tensor(0)
    axes = list(range(2, x.ndim))
    return _norm(
        lambda powers: op.reduce_sum(powers, axes, keepdims=True), x, int(node.attribute("p", 2))
    )


@converter("MaxUnpool")
def convert_max_unpool(node: Node) -> Tensor:
    """Zeros, with the elements of x at the positions that a max pooling gave as its indices."""
    x, indices = node.tensor(0), node.tensor(1)
    inferred_shape = _unpooled(node, x)
    shape = node.dimensions(2) or inferred_shape
    count = math.prod(x.shape)
    zeros = x.emitter.full(0.0, [math.prod(inferred_shape)], x.dtype)
    positions = op.reshape(indices, [count])
    flat = op.scatter_elements(zeros, positions, op.reshape(x, [count]), axis=0)
    y = op.reshape(flat, inferred_shape)
    for axis, (extent, requested) in enumerate(zip(inferred_shape, shape, strict=True)):
        if not same_dimension(extent, requested):
            # The indices count in the smaller shape; a larger one continues it with zeros.
            border_shape = [
                requested - extent if number == axis else size
                for number, size in enumerate(y.shape)
            ]
            y = op.concat([y, x.emitter.full(0.0, border_shape, x.dtype)], axis=axis)
    return y


def _norm(total: Any, x: Tensor, p: int) -> Tensor:
    """total(|x|^p)^(1/p), with slope 0 where the total is 0."""
    wide = op.widen(x)
    if p == 1:
        return total(op.abs(wide)).astype(x.dtype)
    powers = total(wide * wide if p == 2 else op.power(op.abs(wide), float(p)))
    # The root has an infinite slope at 0, so it never sees 0: 0 · ∞ in its gradient would be NaN.
    is_zero = op.less_equal(powers, 0.0)  # and not whether it is positive, which NaN is not
    safe = op.where(is_zero, 1.0, powers)
    root = op.sqrt(safe) if p == 2 else op.power(safe, 1.0 / p)
    return op.where(is_zero, 0.0, root).astype(x.dtype)


def _windows(node: Node, x: Tensor) -> Pool:
    """A node's windows, with the padding that ``auto_pad`` asks for."""
    size = tuple(node.attribute("kernel_shape"))
    rank = len(size)
    if rank not in LAYOUTS or x.ndim != rank + 2:
        raise ModelError(
            f"its windows have {rank} axes and its input has {x.ndim}: pooling is served over one, "
            "two or three spatial axes behind batch and channels"
        )
    strides = tuple(node.attribute("strides", (1,) * rank))
    dilation = tuple(node.attribute("dilations", (1,) * rank))
    auto_pad = node.attribute("auto_pad", b"NOTSET").decode()
    padding = tuple(node.attribute("pads", (0,) * (2 * rank)))
    if auto_pad == "VALID":
        padding = (0,) * (2 * rank)
    elif auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        totals = [
            _same(x.shape[2 + k], (size[k] - 1) * dilation[k] + 1, strides[k]) for k in range(rank)
        ]
        smaller, larger = (
            [pads // 2 for pads in totals],
            [pads - pads // 2 for pads in totals],
        )
        padding = (*smaller, *larger) if auto_pad == "SAME_UPPER" else (*larger, *smaller)
    ceil_mode = bool(node.attribute("ceil_mode", 0))
    counts_padding = bool(node.attribute("count_include_pad", 0))
    return Pool(size, strides, padding, dilation, ceil_mode, counts_padding)


def _same(extent: Dimension, reach: int, stride: int) -> int:
    """The padding with which there are ⌈extent / stride⌉ windows."""
    if stride == 1:
        return reach - 1
    if not isinstance(extent, int):
        raise ModelError(
            f"auto_pad with a stride of {stride} needs a spatial extent that is a number, given "
            f"{extent}: give its shape"
        )
    # The last of the windows starts at (count − 1) · stride and ends `reach` behind that.
    return max((-(-extent // stride) - 1) * stride + reach - extent, 0)


def _covering(pool: Pool, extents: Sequence[Dimension]) -> Pool:
    """The same windows with explicit padding only, in which every tap counts."""
    after = list(pool.padding[pool.rank :])
    if pool.ceil_mode:
        for k, extent in enumerate(extents):
            if not isinstance(extent, int):
                raise ModelError(
                    f"ceil_mode needs spatial extents that are numbers, given {extent}: give its "
                    "shape"
                )
            after[k] = _last_reach(pool, k, extent) - extent - pool.padding[k]
    padding = (*pool.padding[: pool.rank], *after)
    return Pool(pool.size, pool.strides, padding, pool.dilation, False, True)


def _last_reach(pool: Pool, k: int, extent: int) -> int:
    """The end of the last window with ``ceil_mode``, counted from the start of the padded input.

    A window that would start in the padding behind the input is left out.
    """
    before, after = pool.padding[k], pool.padding[k + pool.rank]
    reach, stride = (pool.size[k] - 1) * pool.dilation[k] + 1, pool.strides[k]
    windows = -(-(extent + before + after - reach) // stride) + 1
    if (windows - 1) * stride >= extent + before:
        windows -= 1
    return (windows - 1) * stride + reach


def _unpooled(node: Node, x: Tensor) -> list[Dimension]:
    """The shape of which a max pooling with the node's attributes makes the shape of x."""
    size = node.attribute("kernel_shape")
    rank = len(size)
    strides, pads = node.attribute("strides", [1] * rank), node.attribute("pads", [0] * 2 * rank)
    spatial = [
        (extent - 1) * strides[k] - pads[k] - pads[k + rank] + size[k]
        for k, extent in enumerate(x.shape[2:])
    ]
    return [*x.shape[:2], *spatial]
