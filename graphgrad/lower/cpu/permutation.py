"""Tensors copied with their axes in another order, where neighbors do not stay neighbors.

Element by element, each would fetch a cache line of its own, and lines at a distance of a power
of two drive one another out of the cache before they are used up. Squares that are transposed in
registers touch each line once. The copy may be of another dtype.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import prim
from tvm.tirx import ForKind

from ...ir.kernel_structure import Axis, Load, Stage, static, substitute_values
from ...ir.loops import ceil_div, fused, loop, variable
from ..kernels.contraction import fixed_iterators
from .map import SMALL
from .register_transpose import SIDES, transpose_square
from .tuning import Processor

_DTYPES = ("float32", "float64", "int32", "int64", "uint32", "uint64")
"""Types of elements whose vectors can be transposed in registers."""

_NARROW = ("bfloat16", "float16")
"""Types of elements whose bits are transposed as integers of 32."""


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
    dtype = _dtype_in_registers(realize.block.body)
    if stage.work < SMALL or dtype is None or static(realize.predicate) != 1:
        return None
    axes = _last_axes(stage, realize)
    if axes is None:
        return None
    result_axis, source_axis = axes
    # Where both lie in memory along the same axis, rows are copied as they are.
    if result_axis is source_axis:
        return None
    min_side, side = SIDES
    side = min(side, processor.lanes(dtype))
    # The largest square that fits into both axes.
    while side >= min_side and min(result_axis.extent or 0, source_axis.extent or 0) < side:
        side //= 2
    if side < min_side:
        return None
    return _nest(stage, realize, result_axis, source_axis, side, dtype)


def _last_axes(stage: Stage, realize: Any) -> tuple[Axis, Axis] | None:
    """The axes along which neighbors are neighbors in the result, and in the source.

    None unless each axis is one index of the result and one of the source, but for a constant:
    either may be a part of a tensor.
    """
    store = realize.block.body
    if any(axis.extent is None for axis in stage.axes):
        return None
    if any(static(axis.dom.min) != 0 for axis in realize.block.iter_vars):
        return None
    last_axes = []
    for access in (store, _load(store)):
        axes = [_axis_of(stage, index, fixed_iterators(realize)) for index in access.indices]
        moving = [id(axis) for axis in axes if axis and axis.extent != 1]
        if sorted(moving) != sorted(id(axis) for axis in stage.axes if axis.extent != 1):
            return None
        last_axes.append(axes[-1])
    result_axis, source_axis = last_axes
    return None if result_axis is None or source_axis is None else (result_axis, source_axis)


def _load(store: Any) -> Any:
    """What a statement stores, without a cast."""
    return store.value.value if isinstance(store.value, prim.Cast) else store.value


def _dtype_in_registers(store: Any) -> str | None:
    """The dtype of what is transposed; None of statements that do not copy, or other dtypes.

    Elements are cast as they are stored; those of half precision, as they are read.
    """
    if not isinstance(store, tirx.BufferStore) or not isinstance(_load(store), Load):
        return None
    source, result = str(_load(store).ty), str(store.value.ty)
    if source in _NARROW:
        source = "uint32" if result == source else result
    return source if source in _DTYPES else None


def _axis_of(stage: Stage, index: Any, fixed: Mapping[Any, Any]) -> Axis | None:
    """The axis that an index is, but for a constant; None if there is no single one."""
    *steps, start = tvm.sym.detect_linear_equation(
        substitute_values(index, fixed), [axis.var for axis in stage.axes]
    ) or [None]
    moving = [axis for axis, step in zip(stage.axes, steps, strict=False) if static(step) != 0]
    is_axis = len(moving) == 1 and sum(static(step) or 0 for step in steps) == 1
    return moving[0] if is_axis and static(start) is not None else None


def _nest(
    stage: Stage, realize: Any, result_axis: Axis, source_axis: Axis, side: int, register_dtype: str
) -> Any:
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
    register_dtype : str
        See `_dtype_in_registers`.
    """
    store, dtype = realize.block.body, str(result_axis.var.ty.dtype)
    value, result_dtype = _load(store), str(store.buffer.dtype)
    as_bits = str(value.ty) in _NARROW and str(value.ty) == result_dtype
    if as_bits:
        value = tirx.reinterpret("uint16", value).astype("uint32")
    elif str(value.ty) in _NARROW:
        value = store.value
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
        return substitute_values(value, indices)

    def store_column(column: int, values: Any) -> Any:
        indices = {
            **axis_values,
            result_axis.var: starts[result_axis.var],
            source_axis.var: starts[source_axis.var] + column,
        }
        *outer_indices, start = (substitute_values(index, indices) for index in store.indices)
        column_ramp = tirx.Ramp(start, tirx.const(1, dtype), side)
        vector = f"{result_dtype}x{side}"
        if as_bits:
            values = tirx.reinterpret(vector, prim.Cast(f"uint16x{side}", values))
        elif register_dtype != result_dtype:
            values = prim.Cast(vector, values)
        return tirx.BufferStore(store.buffer, values, [*outer_indices, column_ramp])

    outer_axes = [
        axis for axis in stage.axes if axis is not result_axis and axis is not source_axis
    ]
    parallel_loops = [(axis_values[axis.var], axis.extent) for axis in outer_axes]
    parallel_loops.append((square_numbers[result_axis.var], ceil_div(result_axis.extent, side)))
    # Where squares overlap, two tasks may store the same value to the same element.
    square = transpose_square(register_dtype, dtype, side, read, store_column)
    return fused(
        parallel_loops,
        loop(square_numbers[source_axis.var], ceil_div(source_axis.extent, side), square),
        ForKind.PARALLEL,
    )
