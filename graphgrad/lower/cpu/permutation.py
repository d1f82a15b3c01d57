"""Tensors copied with their axes in another order, where neighbors do not stay neighbors.

Element by element, each would fetch a cache line of its own, and lines at a distance of a power
of two drive one another out of the cache before they are used up. Squares that are transposed in
registers touch each line once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import tirx
from tvm.tirx import ForKind

from ...ir.kernel_structure import Axis, Load, Stage, buffer_of, static, substitute_values
from ...ir.loops import ceil_div, fused, loop, variable
from ..kernels.contraction import fixed_iterators
from .map import SMALL
from .register_transpose import SIDES, transpose_square
from .tuning import Processor

_DTYPES = ("float32", "float64", "int32", "int64", "uint32", "uint64")
"""Types of elements whose vectors can be transposed in registers."""


def nest_of(stage: Stage, blocks: Mapping[str, Any], processor: Processor) -> Any | None:
    """The statement that copies as a stage does; None if it is no large copy of that kind.

    Parameters
    ----------
    stage : Stage
    blocks : dict
        The blocks (SBlockRealize) of the kernel, by name.
    processor : Processor
    """
    realize = blocks[stage.name]
    if stage.work < SMALL or stage.dtype not in _DTYPES or static(realize.predicate) != 1:
        return None
    if not _is_permutation(realize.block):
        return None
    store, load = realize.block.body, realize.block.body.value
    result_axis, source_axis = (_axis_of(stage, access.indices[-1]) for access in (store, load))
    # Where both lie in memory along the same axis, rows are copied as they are.
    if result_axis is None or source_axis is None or result_axis is source_axis:
        return None
    min_side, side = SIDES
    side = min(side, processor.lanes(stage.dtype))
    # The largest square that fits into both axes.
    while side >= min_side and min(result_axis.extent or 0, source_axis.extent or 0) < side:
        side //= 2
    return _nest(stage, realize, result_axis, source_axis, side) if side >= min_side else None


def _is_permutation(block: Any) -> bool:
    """Whether a block copies all of a tensor, each index of which is an axis."""
    store = block.body
    if not isinstance(store, tirx.BufferStore) or not isinstance(store.value, Load):
        return False
    axes = [axis.var for axis in block.iter_vars]
    extents = {axis.var: static(axis.dom.extent) for axis in block.iter_vars}
    starts = [static(axis.dom.min) for axis in block.iter_vars]
    if any(start != 0 for start in starts) or None in extents.values():
        return False
    return all(
        len(access.indices) == len(axes)
        and all(sum(index.same_as(axis) for index in access.indices) == 1 for axis in axes)
        and [extents[index] for index in access.indices] == _shape(access)
        for access in (store, store.value)
    )


def _shape(access: Any) -> list[int | None]:
    return [static(extent) for extent in buffer_of(access).shape]


def _axis_of(stage: Stage, index: Any) -> Axis | None:
    return next((axis for axis in stage.axes if axis.var.same_as(index)), None)


def _nest(stage: Stage, realize: Any, result_axis: Axis, source_axis: Axis, side: int) -> Any:
    """The nest that copies square by square, along the rows of the source.

    Parameters
    ----------
    stage : Stage
    realize : SBlockRealize
        The stage's block.
    result_axis, source_axis : Axis
        The axes along which neighbors in the result, and in the source, are neighbors in memory.
        Squares that would reach beyond the end begin earlier: some elements are copied twice.
    side : int
        Elements along a side of a square.
    """
    store, dtype = realize.block.body, str(result_axis.var.ty.dtype)
    axis_values = fixed_iterators(realize)
    axis_values |= {axis.var: variable(str(axis.var.name), dtype) for axis in stage.axes}
    square_numbers = {axis.var: variable("square", dtype) for axis in (result_axis, source_axis)}
    starts = {}
    for axis in (result_axis, source_axis):
        assert axis.extent is not None
        start = square_numbers[axis.var] * side
        if axis.extent % side:
            start = tirx.min(start, tirx.const(axis.extent - side, dtype))
        starts[axis.var] = start

    def read(row: Any, lane: Any) -> Any:
        indices = {
            **axis_values,
            result_axis.var: starts[result_axis.var] + row,
            source_axis.var: starts[source_axis.var] + lane,
        }
        return substitute_values(store.value, indices)

    def store_column(column: int, values: Any) -> Any:
        column_ramp = tirx.Ramp(starts[result_axis.var], tirx.const(1, dtype), side)
        indices = {**axis_values, source_axis.var: starts[source_axis.var] + column}
        outer_indices = [substitute_values(index, indices) for index in list(store.indices)[:-1]]
        return tirx.BufferStore(store.buffer, values, [*outer_indices, column_ramp])

    outer_axes = [
        axis for axis in stage.axes if axis is not result_axis and axis is not source_axis
    ]
    parallel_loops = [(axis_values[axis.var], axis.extent) for axis in outer_axes]
    parallel_loops.append((square_numbers[result_axis.var], ceil_div(result_axis.extent, side)))
    # Where squares overlap, two tasks may store the same value to the same element.
    square = transpose_square(str(store.buffer.dtype), dtype, side, read, store_column)
    return fused(
        parallel_loops,
        loop(square_numbers[source_axis.var], ceil_div(source_axis.extent, side), square),
        ForKind.PARALLEL,
    )
