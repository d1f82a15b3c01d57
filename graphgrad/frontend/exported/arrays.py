"""Tensors that are made, and their elements in other places and shapes.

TVM's importer lets a gradient through where a program detaches a tensor.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import tvm
from tvm import relax, tirx

from ...errors import ModelError
from ...ir.tensor import Dimension, Tensor
from ...ops import functional as op
from .node import Node, converter


@converter(
    "alias.default",
    "clone.default",
)
def same(node: Node, x: Tensor, *how: Any) -> Tensor:
    """x"""
    return x


@converter("stop_gradient.default")
def detached(node: Node, x: Tensor) -> Tensor:
    """x, whose cotangent goes no further."""
    return node.emitter.emit(relax.op.grad.no_grad(x.expr))


@converter("_to_copy.default")
def cast(node: Node, x: Tensor, *how: Any) -> Tensor:
    """x in another dtype."""
    return x.astype(node.dtype)


@converter("copy.default")
def overwritten(node: Node, x: Tensor, value: Tensor, non_blocking: bool) -> Tensor:
    """A value in the shape and dtype of x."""
    return op.broadcast_to(value.astype(x.dtype), x.shape)


@converter(
    "view.default",
)
def view(node: Node, x: Tensor, shape: Sequence[Dimension]) -> Tensor:
    """x in another shape, in which one extent may be −1: what is left for it."""
    target = [
        known if isinstance(extent, int) and extent == -1 and isinstance(known, int) else extent
        for extent, known in zip(shape, node.node.meta["val"].shape, strict=True)
    ]
    if any(isinstance(extent, int) and extent == -1 for extent in target):
        others = [n for n in target if not (isinstance(n, int) and n == -1)]
        rest = tirx.floordiv(_product(x.shape), _product(others))
        left = tvm.sym.Analyzer().simplify(rest)
        target = [left if isinstance(n, int) and n == -1 else n for n in target]
    return op.reshape(x, target)


def _product(extents: Sequence[Dimension]) -> Any:
    return functools.reduce(operator.mul, extents, tirx.const(1, "int64"))


@converter("permute.default")
def permuted(node: Node, x: Tensor, dims: Sequence[int]) -> Tensor:
    """x with its axes in another order."""
    return op.permute_dims(x, op.normalize_axes(dims, x.ndim))


@converter("as_strided.default")
def strided(node: Node, x: Tensor, size: Any, stride: Any, offset: int | None) -> Tensor:
    """x with its axes in another order, which is what gradients and layouts make of it.

    Other views depend on where x lies in memory, which it does nowhere here.
    """
    source: Any = node.node.args[0]
    value = source.meta["val"]
    axes = {
        (int(n), int(step)): axis
        for axis, (n, step) in enumerate(zip(value.shape, value.stride(), strict=True))
        if n != 1
    }
    wanted = [(int(n), int(step)) for n, step in zip(size, stride, strict=True) if n != 1]
    if offset or sorted(wanted) != sorted(axes):
        raise ModelError("it reads memory in strides of its own; write it with views")
    order = [axes[axis] for axis in wanted]
    ones = [axis for axis in range(x.ndim) if axis not in order]
    return op.reshape(op.permute_dims(x, [*order, *ones]), list(size))


@converter("expand.default")
def expanded(node: Node, x: Tensor, shape: Sequence[Any], implicit: bool) -> Tensor:
    """x, repeated along axes of extent 1 and along new ones."""
    new = len(shape) - x.ndim
    target = [
        x.shape[axis - new] if isinstance(extent, int) and extent == -1 else extent
        for axis, extent in enumerate(shape)
    ]
    return op.broadcast_to(x, target)


@converter("unsqueeze.default")
def unsqueezed(node: Node, x: Tensor, dim: int) -> Tensor:
    """x with one more axis."""
    return op.expand_dims(x, dim)


@converter(
    "squeeze.dims",
)
def squeezed(node: Node, x: Tensor, dims: Any = None) -> Tensor:
    """x without those of some axes that have extent 1."""
    dims = [dims] if isinstance(dims, int) else dims
    chosen = set(op.normalize_axes(dims, x.ndim))
    is_one = [isinstance(extent, int) and extent == 1 for extent in x.shape]
    kept = [n for axis, n in enumerate(x.shape) if not (axis in chosen and is_one[axis])]
    return op.reshape(x, kept)


@converter("cat.default")
def joined(node: Node, tensors: Sequence[Tensor], dim: int) -> Tensor:
    """Tensors one after the other along an axis; those of shape (0,) count as none."""
    kept = [tensor for tensor in tensors if tensor.shape != [0]]
    return op.concat([t.astype(node.dtype) for t in kept], dim % kept[0].ndim)


@converter("split_with_sizes.default")
def parts(node: Node, x: Tensor, sizes: Sequence[int], dim: int) -> list[Tensor]:
    """Parts of given extents along an axis."""
    ends = [sum(sizes[: count + 1]) for count in range(len(sizes) - 1)]
    return op.split(x, ends, dim % x.ndim) if ends else [x]


@converter("slice.Tensor")
def section(node: Node, x: Tensor, dim: int, start: Any, end: Any, step: int) -> Tensor:
    """Elements from a place along an axis up to another."""
    extent = x.shape[dim]
    first, last = _bound(start, 0, extent), _bound(end, extent, extent)
    if isinstance(first, int) and first == 0 and last is extent and step == 1:
        return x
    return op.strided_slice(x, [dim % x.ndim], [first], [last], [step], assume_inbound=False)


def _bound(value: Any, default: Any, extent: Any) -> Any:
    """A bound of a slice as a place in the axis; PyTorch's largest integer is the end."""
    if value is None or (isinstance(value, int) and value >= torch.iinfo(torch.int64).max):
        return default
    if isinstance(value, int) and value < 0:
        value = extent + value
    if isinstance(value, int) and isinstance(extent, int):
        return min(max(value, 0), extent)
    return value


@converter("slice_scatter.default")
def section_replaced(
    node: Node, x: Tensor, source: Tensor, dim: int, start: Any, end: Any, step: int
) -> Tensor:
    """x with the elements of a section replaced."""
    extent = x.shape[dim]
    first, last = _bound(start, 0, extent), _bound(end, extent, extent)
    return op.slice_scatter(x, source, first, last, step, axis=dim % x.ndim)


@converter(
    "empty.memory_format",
)
def unwritten(node: Node, *how: Any) -> Tensor:
    """Zeros, where a program reads nothing before it has written it."""
    return node.full(0.0, list(node.node.meta["val"].shape))


@converter("select.int")
def selected(node: Node, x: Tensor, dim: int, index: int) -> Tensor:
    """The elements at one place along an axis."""
    place = index if not isinstance(index, int) or index >= 0 else x.shape[dim] + index
    taken = op.strided_slice(x, [dim % x.ndim], [place], [place + 1], [1])
    return op.reshape(taken, op.reduced_shape(x.shape, [dim], keepdims=False))


@converter("flip.default")
def flipped(node: Node, x: Tensor, dims: Sequence[int]) -> Tensor:
    """x backwards along axes."""
    for dim in dims:
        x = op.flip(x, dim)
    return x


@converter("repeat.default")
def repeated(node: Node, x: Tensor, counts: Sequence[int]) -> Tensor:
    """x several times along each axis, of which there may be new ones in front."""
    return op.tile(x, list(counts))


@converter("constant_pad_nd.default")
def padded(node: Node, x: Tensor, widths: Sequence[int], value: float) -> Tensor:
    """x with a border, whose widths begin with the last axis; negative ones cut off."""
    before = [0] * x.ndim
    after = [0] * x.ndim
    for place, width in enumerate(widths):
        (after if place % 2 else before)[x.ndim - 1 - place // 2] = width
    for axis, (low, high) in enumerate(zip(before, after, strict=True)):
        if low < 0 or high < 0:
            first, last = max(-low, 0), x.shape[axis] - max(-high, 0)
            x = op.strided_slice(x, [axis], [first], [last], [1])
    pairs = [max(w, 0) for pair in zip(before, after, strict=True) for w in pair]
    return op.pad(x, pairs, "constant", float(value)) if any(pairs) else x


@converter(
    "full.default",
    "full_like.default",
)
def filled(node: Node, like: Any, value: float, *how: Any) -> Tensor:
    """A tensor of one number, of a shape or like another one."""
    return _constant(node, value, list(like.shape if isinstance(like, Tensor) else like))


@converter("scalar_tensor.default")
def scalar(node: Node, value: float, *how: Any) -> Tensor:
    """A number as a tensor."""
    return _constant(node, value, [])


def _constant(node: Node, value: Any, shape: list[Dimension]) -> Tensor:
    """A tensor of one number, emitted: integers may be larger than those that floats hold."""
    number = node.emitter.lift(relax.const(value, node.dtype))
    return op.broadcast_to(number, shape) if shape else number


@converter("arange.start_step")
def numbers(node: Node, start: Any, end: Any, step: Any, *how: Any) -> Tensor:
    """Numbers from one up to another."""
    return node.emitter.emit(relax.op.arange(start, end, step, node.dtype))


@converter("embedding.default")
def embedded(node: Node, weight: Tensor, index: Tensor, padding: int, *how: Any) -> Tensor:
    """Rows of a matrix; that of the padding index has no gradient."""
    rows = op.take(weight, index, 0)
    if padding < 0:
        return rows
    is_padding = op.expand_dims(op.equal(index, padding), -1)
    row = node.emitter.emit(relax.op.grad.no_grad(rows.expr))
    return op.where(op.broadcast_to(is_padding, rows.shape), row, rows)


@converter("index_select.default")
def index_selected(node: Node, x: Tensor, dim: int, index: Tensor) -> Tensor:
    """The elements at some places along an axis."""
    return op.take(x, _in_range(index, x.shape[dim]), dim % x.ndim)


@converter("gather.default")
def gathered(node: Node, x: Tensor, dim: int, index: Tensor, sparse: bool) -> Tensor:
    """Elements at places along an axis, one for each element of the index."""
    return op.gather_elements(x, index, dim % x.ndim)


@converter("scatter.src", "scatter.value", "scatter_add.default")
def scattered(node: Node, x: Tensor, dim: int, index: Tensor, source: Any) -> Tensor:
    """x with elements replaced, or added to, at places along an axis."""
    reduction = "add" if "add" in node.node.target.__name__ else "update"
    if not isinstance(source, Tensor):
        source = node.full(source, index.shape, x.dtype)
    if source.shape != index.shape:
        ends = list(index.shape)
        axes = list(range(x.ndim))
        source = op.strided_slice(source, axes, [0] * x.ndim, ends, [1] * x.ndim)
    return op.scatter_elements(x, index, source, dim % x.ndim, reduction)


_REDUCTIONS = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min", "mean": "mean"}


@converter("scatter_reduce.two")
def scattered_by(
    node: Node, x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, with_self: bool
) -> Tensor:
    """x with elements combined with others at places along an axis."""
    if not with_self:
        raise ModelError("include_self=False is not imported")
    axes = list(range(x.ndim))
    if source.shape != index.shape:
        source = op.strided_slice(source, axes, [0] * x.ndim, list(index.shape), [1] * x.ndim)
    return op.scatter_elements(x, index, source, dim % x.ndim, _REDUCTIONS[reduce])


@converter("diagonal.default")
def diagonal(node: Node, x: Tensor, offset: int, first: int, second: int) -> Tensor:
    """The elements whose places along two axes differ by an offset, along a last axis."""
    first, second = first % x.ndim, second % x.ndim
    others = [axis for axis in range(x.ndim) if axis not in (first, second)]
    rows, columns = (x.shape[axis] for axis in (first, second))
    count = node.node.meta["val"].shape[-1]
    if not all(isinstance(extent, int) for extent in (rows, columns)):
        raise ModelError("the extents of its axes are symbolic")
    begin = offset if offset >= 0 else -offset * columns
    places = begin + (columns + 1) * np.arange(int(count))
    moved = op.permute_dims(x, [*others, first, second])
    flat = op.reshape(moved, [*(x.shape[axis] for axis in others), rows * columns])
    index = node.emitter.lift(relax.const(places, "int64"))
    return op.take(flat, index, len(others))


@converter("_embedding_bag.default", "_embedding_bag_forward_only.default")
def bags(
    node: Node,
    weight: Tensor,
    index: Tensor,
    offsets: Tensor,
    by_frequency: bool,
    mode: int,
    sparse: bool,
    per_sample: Tensor | None,
    with_end: bool,
    padding: int,
) -> list[Tensor]:
    """Sums, means or maxima of the rows of each bag, which begins at its offset."""
    (count,), (size,) = index.shape, offsets.shape
    places, numbers = op.indices(node.emitter, count), op.indices(node.emitter, size)
    if with_end:
        size = size - 1
        numbers = op.indices(node.emitter, size)
        offsets = op.strided_slice(offsets, [0], [0], [size], [1])
    begun = op.less_equal(op.expand_dims(offsets.astype("int64"), 0), op.expand_dims(places, 1))
    bag = op.reduce_sum(begun.astype("int64"), [1]) - 1
    is_inside = op.equal(op.expand_dims(numbers, 1), op.expand_dims(bag, 0))
    if padding >= 0:
        kept = op.not_equal(index.astype("int64"), padding)
        is_inside = op.logical_and(is_inside, op.expand_dims(kept, 0))
    rows = op.take(weight, index, 0)
    if mode == _LARGEST:
        inside = op.expand_dims(is_inside, 2)
        largest = op.maximum_of(op.where(inside, op.expand_dims(rows, 0), -math.inf), [1])
        is_empty = op.equal(op.reduce_sum(is_inside.astype("int64"), [1], True), 0)
        return [op.where(is_empty, 0.0, largest)]
    if per_sample is not None:
        rows = rows * op.expand_dims(per_sample, 1)
    total = is_inside.astype(weight.dtype) @ rows
    if mode == _MEAN:
        inside_count = op.reduce_sum(is_inside.astype(weight.dtype), [1], True)
        total = total / op.maximum(inside_count, 1.0)
    return [total]


_MEAN, _LARGEST = 1, 2
"""Modes of bags, as PyTorch numbers them."""


@converter("index_put.default")
def put(
    node: Node, x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool
) -> Tensor:
    """x with elements replaced, or added to, at places along several axes."""
    (*_, last) = indices
    if len(indices) == 1 and last is not None and last.dtype == "bool":
        return _put_where(x, last, values, accumulate)
    axes, places = _places(x, indices)
    shape, first = places.shape[:-1], axes[0]
    others = [axis for axis in range(x.ndim) if axis not in axes]
    front = [*axes, *others]
    # The axes of the index stand where the indexed ones were.
    rest = [x.shape[axis] for axis in others]
    whole = op.broadcast_to(values.astype(x.dtype), [*rest[:first], *shape, *rest[first:]])
    rank = len(shape)
    order = [*range(first, first + rank), *range(first), *range(first + rank, whole.ndim)]
    updates = op.permute_dims(whole, order)
    reduction = "add" if accumulate else "update"
    moved = op.scatter_nd(op.permute_dims(x, front), places, updates, reduction)
    return op.permute_dims(moved, [front.index(axis) for axis in range(x.ndim)])


def _put_where(x: Tensor, mask: Tensor, values: Tensor, accumulate: bool) -> Tensor:
    """x with one value where a mask of its leading axes is true."""
    if any(not isinstance(extent, int) or extent != 1 for extent in values.shape):
        raise ModelError("a mask chooses how many values it takes; use torch.where")
    mask = op.reshape(mask, [*mask.shape, *[1] * (x.ndim - mask.ndim)])
    value = op.reshape(values.astype(x.dtype), [])
    return op.where(mask, x + value if accumulate else value, x)


@converter("index.Tensor")
def indexed(node: Node, x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """Elements at places along several axes, which indices give together."""
    given = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    if len(given) == 1 and given[0][1].dtype != "bool":
        axis, index = given[0]
        return op.take(x, _in_range(index, x.shape[axis]), axis)
    axes, places = _places(x, indices)
    # The indexed axes come first, and what they give goes where they were.
    others = [axis for axis in range(x.ndim) if axis not in axes]
    taken = op.gather_nd(op.permute_dims(x, [*axes, *others]), places)
    rank, first = places.ndim - 1, axes[0]
    order = [*range(rank, rank + first), *range(rank), *range(rank + first, taken.ndim)]
    return op.permute_dims(taken, order)


def _places(x: Tensor, indices: Sequence[Tensor | None]) -> tuple[list[int], Tensor]:
    """The axes that indices are of, and their places along a last axis.

    Raises
    ------
    ModelError
        An index is a mask, or the axes are apart.
    """
    given = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    axes = [axis for axis, _ in given]
    if any(index.dtype == "bool" for _, index in given):
        raise ModelError("a mask chooses how many elements it reads; use torch.where")
    if axes != list(range(axes[0], axes[-1] + 1)):
        raise ModelError("its indices are of axes that are apart; permute them first")
    shape: list[Dimension] = []
    for _, index in given:
        shape = _broadcast(shape, index.shape)
    parts = [
        op.expand_dims(op.broadcast_to(_in_range(i, x.shape[axis]).astype("int64"), shape), -1)
        for axis, i in given
    ]
    return axes, op.concat(parts, len(shape))


def _broadcast(first: Sequence[Dimension], second: Sequence[Dimension]) -> list[Dimension]:
    """The shape that two shapes broadcast to."""
    longer, shorter = sorted((list(first), list(second)), key=len, reverse=True)
    padded = [1] * (len(longer) - len(shorter)) + shorter
    pairs = zip(longer, padded, strict=True)
    return [b if isinstance(a, int) and a == 1 else a for a, b in pairs]


def _in_range(index: Tensor, extent: Dimension) -> Tensor:
    """An index whose negative numbers count from the end."""
    if not isinstance(extent, int):
        return index
    return op.where(op.less(index, 0), index + extent, index)


@converter("sym_size.int")
def extent(node: Node, x: Tensor, dim: int) -> Dimension:
    """The extent of an axis."""
    return x.shape[dim]


def computed(function: Any, arguments: Sequence[Any]) -> Any:
    """What an operator of Python makes of extents."""
    if function is operator.floordiv and any(isinstance(a, tirx.Var) for a in arguments):
        return tirx.floordiv(*arguments)
    return function(*arguments)
