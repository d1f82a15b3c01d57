"""Operators that cut tensors.

TVM's importer slices by bounds that are inputs into an unknown shape, clips bounds of symbolic
axes wrongly, and cannot split into parts of extent 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import tvm
from tvm import tirx

from ...errors import ModelError
from ...ir.tensor import Dimension, Tensor
from ...ops import functional as op
from ...ops.movement import slice_from
from .node import Node, converter
from .shape import axes_of, normalized


@converter("CenterCropPad")
def center_crop_pad(node: Node) -> Tensor:
    """The middle of x, or x in the middle of zeros, so that axes have given extents."""
    x, target_extents = node.tensor(0), node.dimensions(1) or []
    axes = axes_of(node, 2)
    axes = list(range(x.ndim)) if axes is None else normalized(axes, x.ndim)
    widths = [0] * (2 * x.ndim)
    for axis, extent in zip(axes, target_extents, strict=True):
        if not (isinstance(extent, int) and isinstance(x.shape[axis], int)):
            raise ModelError(f"axis {axis} has a symbolic extent: give its shape")
        surplus = x.shape[axis] - extent
        # Half of what is cut or added goes before, rounded down; a negative width cuts.
        before = surplus // 2 if surplus > 0 else -(-surplus // 2)
        widths[2 * axis : 2 * axis + 2] = [-before, before - surplus]
    return op.pad(x, widths)


@converter("Slice")
def convert_slice(node: Node) -> Tensor:
    """x[start:end:step], with Python's meaning, along some axes."""
    x = node.tensor(0)
    starts, ends = _bounds(node, 1, "starts"), _bounds(node, 2, "ends")
    axes = axes_of(node, 3)
    axes = list(range(len(starts))) if axes is None else normalized(axes, x.ndim)
    steps = node.dimensions(4) or [1] * len(axes)
    begin, shape = [], list(x.shape)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        if not isinstance(step, int) or step == 0:
            raise ModelError(f"its step {step} must be a number other than 0")
        first, shape[axis] = _range(start, end, step, x.shape[axis])
        begin.append(first)
    return slice_from(x, axes, begin, steps, shape)


def _bounds(node: Node, index: int, name: str) -> Sequence[Dimension]:
    """Bounds given as an input or, in earlier versions, as an attribute."""
    bounds = node.dimensions(index)
    return node.attribute(name) if bounds is None else bounds


def _range(
    start: Dimension, end: Dimension, step: int, extent: Dimension
) -> tuple[Dimension, Dimension]:
    """The first index of a slice and how many there are; symbolic extents are positive."""
    if all(isinstance(dim, int) for dim in (start, end, extent)):
        indices = range(*slice(start, end, step).indices(extent))
        return (indices.start if indices else 0), len(indices)
    # A slice backwards may end before the first element, at −1, and starts at the last one at most.
    low, high = (0, extent) if step > 0 else (-1, extent - 1)
    first, last = _clipped(start, extent, low, high), _clipped(end, extent, low, high)
    distance = last - first if step > 0 else first - last
    # ⌈distance / |step|⌉
    count = tirx.floordiv(_simple(tirx.max(distance, 0)) + abs(step) - 1, abs(step))
    return _simple(first), _simple(count)


def _clipped(bound: Dimension, extent: Dimension, low: Dimension, high: Dimension) -> Any:
    """A bound as an index between `low` and `high`; a negative one counts from the end."""
    # Exporters write the largest int64 for "to the end": cut to what no extent exceeds, so that
    # sums with extents do not overflow.
    if isinstance(bound, int):
        position = bound if bound >= 0 else extent + max(bound, -(2**31))
        position = min(position, 2**31) if isinstance(position, int) else position
    else:
        position = tirx.Select(bound < 0, bound + extent, bound)
    return _simple(tirx.max(tirx.min(position, high), low))


def _simple(expression: Any) -> Dimension:
    """An integer expression simplified, given that its variables are positive."""
    if isinstance(expression, int):
        return expression
    analyzer = tvm.sym.Analyzer()
    positive = tvm.ir.Range(1, 2**31)
    for var in tirx.analysis.undefined_vars(expression):
        analyzer.bind(var, positive)
    simplified = analyzer.simplify(expression)
    return int(simplified) if isinstance(simplified, tirx.IntImm) else simplified


@converter("Split")
def split(node: Node) -> tuple[Tensor, ...]:
    """Parts of x along an axis."""
    x = node.tensor(0)
    (axis,) = normalized([node.attribute("axis", 0)], x.ndim)
    sizes = node.dimensions(1) or node.attribute("split", None)
    if sizes is None:
        count = node.attribute("num_outputs", node.output_count)
        if count != node.output_count:
            raise ModelError(f"its num_outputs is {count}, but it has {node.output_count} outputs")
        sizes = _equal_sizes(x.shape[axis], count)
    starts = accumulate(sizes[:-1], initial=0)
    if all(isinstance(d, int) and d > 0 for d in [*sizes, x.shape[axis]]) and len(sizes) > 1:
        return tuple(op.split(x, list(starts)[1:], axis=axis))
    return tuple(
        slice_from(x, [axis], [start], [1], [*x.shape[:axis], size, *x.shape[axis + 1 :]])
        for start, size in zip(starts, sizes, strict=True)
    )


def _equal_sizes(extent: Dimension, count: int) -> list[Dimension]:
    """The extents of equal parts; the last one may be smaller."""
    size = (
        -(-extent // count) if isinstance(extent, int) else _simple((extent + count - 1) // count)
    )
    return [size] * (count - 1) + [_simple(extent - size * (count - 1))]
