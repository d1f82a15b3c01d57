"""Tensors copied with their axes in another order, where neighbors do not stay neighbors.

Element by element, each would bring a line of memory for itself, and lines at a distance of a power
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
from .vector_unit import VectorUnit

_DTYPES = ("float32", "float64", "int32", "int64", "uint32", "uint64")
"""Of whose vectors the elements can be exchanged."""


def nest_of(stage: Stage, blocks: Mapping[str, Any], unit: VectorUnit) -> Any | None:
    """The statement that does what a stage does; None if that is no such copy.

    Parameters
    ----------
    stage : Stage
    blocks : dict
        The blocks (SBlockRealize) of the kernel, by name.
    unit : VectorUnit
    """
    realize = blocks[stage.name]
    if stage.work < SMALL or stage.dtype not in _DTYPES or static(realize.predicate) != 1:
        return None
    if not _is_permutation(realize.block):
        return None
    store, load = realize.block.body, realize.block.body.value
    to, of = (_axis_of(stage, access.indices[-1]) for access in (store, load))
    if to is None or of is None or to is of:
        return None
    least, side = SIDES
    side = min(side, unit.lanes(stage.dtype))
    while side >= least and min(to.extent or 0, of.extent or 0) < side:
        side //= 2
    return _nest(stage, realize, to, of, side) if side >= least else None


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


def _nest(stage: Stage, realize: Any, to: Axis, of: Axis, side: int) -> Any:
    """The nest that copies square by square, along the rows of the source.

    Parameters
    ----------
    stage : Stage
    realize : SBlockRealize
        Its block.
    to, of : Axis
        Along which the result and the source lie in memory. Squares that would reach beyond the end
        begin earlier: some elements are copied twice.
    side : int
    """
    store, dtype = realize.block.body, str(to.var.ty.dtype)
    at = fixed_iterators(realize)
    at |= {axis.var: variable(str(axis.var.name), dtype) for axis in stage.axes}
    numbers = {axis.var: variable("square", dtype) for axis in (to, of)}
    starts = {}
    for axis in (to, of):
        assert axis.extent is not None
        start = numbers[axis.var] * side
        if axis.extent % side:
            start = tirx.min(start, tirx.const(axis.extent - side, dtype))
        starts[axis.var] = start

    def read(row: Any, lane: Any) -> Any:
        indices = {**at, to.var: starts[to.var] + row, of.var: starts[of.var] + lane}
        return substitute_values(store.value, indices)

    def put(column: int, values: Any) -> Any:
        whole = tirx.Ramp(starts[to.var], tirx.const(1, dtype), side)
        indices = {**at, of.var: starts[of.var] + column}
        places = [substitute_values(index, indices) for index in list(store.indices)[:-1]]
        return tirx.BufferStore(store.buffer, values, [*places, whole])

    others = [axis for axis in stage.axes if axis is not to and axis is not of]
    across = [(at[axis.var], axis.extent) for axis in others]
    across.append((numbers[to.var], ceil_div(to.extent, side)))
    square = transpose_square(str(store.buffer.dtype), dtype, side, read, put)
    return fused(across, loop(numbers[of.var], ceil_div(of.extent, side), square), ForKind.PARALLEL)
