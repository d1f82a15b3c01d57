"""Copies of factors in panels: buffers whose elements lie in the order in which tiles read them.

Goto and van de Geijn call this packing (Anatomy of high-performance matrix multiplication, 2008).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.tirx import ForKind

from ....ir.kernel_structure import Axis, substitute_values
from ....ir.loops import ceil_div, fused, loop, loops, variable
from ...kernels.contraction import Contraction, known
from ..register_transpose import SIDES, transpose_square
from .frame import Frame
from .plan import Plan

_BLOCK_TERMS = 16
"""Terms along one axis that are copied together for all panels: they share cache lines or pages."""

_MIN_BLOCK_TERMS = 12
"""Terms of a block from which on no further axis is added to it."""

_SQUARES_PER_RUN = 32
"""Squares that are copied one after the other along the rows of a source, at most."""


@dataclass(frozen=True)
class Panels:
    """The copy of a factor of a contraction.

    Attributes
    ----------
    factor : int
        The number of the factor.
    axis : Axis
        The axis along which elements lie side by side; see `Plan.packed`.
    buffer : Buffer
        Indexed by the outer axes, the number of the tile along `axis`, the inner axes, and the
        position in the tile.
    outer : list of Axis
        The other axes of the result that the factor depends on.
    inner : list of Axis
        The axes summed over that the factor depends on.
    first : dict
        Of panels that a task fills for itself, the index at which it begins along `axis` and along
        the other axes of the result that the factor depends on, by variable; else empty.
    """

    factor: int
    axis: Axis
    buffer: Any
    outer: list[Axis]
    inner: list[Axis]
    first: Mapping[Any, Any]

    def load(self, indices: Mapping[Any, Any], tile: Any, position: Any) -> Any:
        """The load of an element.

        Parameters
        ----------
        indices : dict
            The index along each axis, by variable.
        tile, position : Expr
            The number of the tile along `axis`, and the position in it.
        """
        outer = [indices[axis.var] for axis in self.outer]
        inner = [indices[axis.var] for axis in self.inner]
        return tirx.BufferLoad(self.buffer, [*outer, tile, *inner, position])


def panels_of(frame: Frame, factor: int, axis: Axis) -> Panels:
    """The panels that a factor is to be copied into, with elements side by side along `axis`.

    All axes that the factor depends on have static extents. Where no other task reads them, each
    task fills those that it needs: they stay in its cache, and take memory once for each thread.
    """
    contraction, plan = frame.contraction, frame.plan
    outer = [
        other for other in contraction.used_by(factor, contraction.spatial) if other is not axis
    ]
    first = {}
    if _is_of_task(plan, axis, outer):
        first = {other.var: frame.start(other) for other in outer}
        first[axis.var] = frame.start_of_task(axis)
        outer = []
    reduced_axes = [
        other for other in contraction.used_by(factor, contraction.reduced) if other is not axis
    ]
    # By variable, because an axis may have two loops.
    terms = {loop.axis.var: loop.axis for loop in plan.terms}
    inner = [term for term in terms.values() if any(term is reduced for reduced in reduced_axes)]
    length = plan.length(axis)
    tiles = plan.tiles[-1].trips if first else ceil_div(axis.extent, length)
    shape = [*(a.extent for a in outer), tiles, *(a.extent for a in inner), length]
    buffer = tirx.decl_buffer(shape, contraction.factor_dtype, "panels")
    return Panels(factor, axis, buffer, outer, inner, first)


def _is_of_task(plan: Plan, axis: Axis, outer: list[Axis]) -> bool:
    """Whether each panel is read by one task, which goes through all terms of its panels at once.

    Tasks then go along the axes of the panels alone, and all tiles of one have the same panels.
    """
    if plan.accumulates or not plan.tasks or not plan.tiles or axis is not plan.vector:
        return False
    *others, group = plan.tasks
    tile = plan.tiles[-1]
    # Groups that end early would fill panels that are none.
    is_even = tile.trips and group.step == tile.trips * tile.step
    is_whole = is_even and group.step * (group.trips or 0) == tile.step * ceil_div(
        axis.extent, tile.step
    )
    return (
        bool(is_whole)
        and group.axis is axis
        and tile.axis is axis
        and len(others) == len(outer)
        and all(any(loop.axis is other for loop in others) for other in outer)
    )


def filled(contraction: Contraction, plan: Plan, panels: Panels, kind: ForKind) -> Any:
    """The nest that fills panels; its outermost loop is of the given kind.

    Where the elements of a tile are neighbors in memory, they are copied as vectors. Where elements
    along another axis are neighbors, squares are transposed in registers. All others are copied one
    by one.
    """
    squares = None
    if contraction.step(panels.factor, panels.axis) != 1:
        squares = _squares(contraction, plan, panels)
    if squares is not None:
        return _transpose_nest(contraction, plan, panels, *squares, kind)
    return _copy_nest(contraction, plan, panels, kind)


def _copy_nest(contraction: Contraction, plan: Plan, panels: Panels, kind: ForKind) -> Any:
    """The nest that copies elements, or vectors of them, in the order in which they lie in memory.

    A block of terms is copied for all tiles before the next block is.
    """
    axis, length = panels.axis, plan.length(panels.axis)
    dtype = str(axis.var.ty.dtype)
    variables = _variables(panels)
    tile, position = variable("tile", dtype), variable("place", dtype)
    tiles = int(panels.buffer.shape[len(panels.outer)])
    outer_loops = [(variables[outer_axis.var], outer_axis.extent) for outer_axis in panels.outer]
    block_loops = []
    for term_axis, count in _blocks(contraction, panels):
        if count < known(term_axis):
            block_number, term = variable("block", dtype), variable("term", dtype)
            outer_loops.append((block_number, known(term_axis) // count))
            variables[term_axis.var] = block_number * count + term if count > 1 else block_number
            block_loops.append((term, count))
        else:
            block_loops.append((variables[term_axis.var], count))
    outer_loops.append((tile, tiles))
    indices = {**panels.first, **variables, axis.var: _index(plan, panels, tile, position)}
    value = substitute_values(contraction.factors[panels.factor], indices)
    body = tirx.BufferStore(panels.buffer, value, panels.load(indices, tile, position).indices)
    block_loops = [(var, trips) for var, trips in block_loops if trips > 1]
    if contraction.step(panels.factor, axis) == 1 and _is_vector(plan, axis):
        body = loops(block_loops, loop(position, length, body, ForKind.VECTORIZED))
    else:
        body = loop(position, length, loops(block_loops, body))
    return fused(outer_loops, body, kind)


def _squares(contraction: Contraction, plan: Plan, panels: Panels) -> tuple[Axis, int] | None:
    """The axis along which the factor is contiguous in memory, and the side of squares along it.

    None if there is no such axis, or if no square is large enough.
    """
    min_side, side = SIDES
    for axis in (*panels.inner, *panels.outer):
        if contraction.step(panels.factor, axis) == 1 and known(axis) >= min_side:
            # Sides are powers of two. Squares cut tiles evenly, but may overlap along the source.
            side = min(side, plan.lanes)
            while known(axis) < side or plan.length(panels.axis) % side != 0:
                side //= 2
            return (axis, side) if side >= min_side else None
    return None


def _transpose_nest(
    contraction: Contraction, plan: Plan, panels: Panels, along: Axis, side: int, kind: ForKind
) -> Any:
    """The nest that fills panels square by square.

    It goes along as few rows of the source as a square has, for one run of squares. Of more rows at
    a time, the cache would lose lines before the next square uses the rest of them.

    Parameters
    ----------
    contraction, plan, panels, kind
        See `filled`.
    along : Axis
        The axis along which the factor is contiguous. Squares that would reach beyond its end
        begin earlier, so some elements are copied twice.
    side : int
        The length of a square's side: a power of two that divides the length of the tile.
    """
    axis = panels.axis
    dtype = str(axis.var.ty.dtype)
    tile, strip, run, square_number = (
        variable(name, dtype) for name in ("tile", "strip", "run", "number")
    )
    squares = ceil_div(known(along), side)
    # All runs have the same length; the last one may copy some elements again.
    runs = ceil_div(squares, _SQUARES_PER_RUN)
    squares_per_run = ceil_div(squares, runs)
    start = (run * squares_per_run + square_number) * side
    if runs * squares_per_run * side > known(along):
        start = tirx.min(start, tirx.const(known(along) - side, dtype))
    variables = _variables(panels)
    other_axes = [
        other_axis for other_axis in (*panels.outer, *panels.inner) if other_axis is not along
    ]
    outer_loops = [
        *((variables[other_axis.var], other_axis.extent) for other_axis in other_axes),
        (tile, int(panels.buffer.shape[len(panels.outer)])),
        (strip, plan.length(axis) // side),
        (run, runs),
    ]

    def read(row: Any, lane: Any) -> Any:
        position = _index(plan, panels, tile, strip * side + row)
        indices = {**panels.first, **variables, along.var: start + lane, axis.var: position}
        return substitute_values(contraction.factors[panels.factor], indices)

    def store(column: int, values: Any) -> Any:
        position = tirx.Ramp(strip * side, tirx.const(1, dtype), side)
        indices = panels.load({**variables, along.var: start + column}, tile, position).indices
        return tirx.BufferStore(panels.buffer, values, indices)

    body = transpose_square(contraction.factor_dtype, dtype, side, read, store)
    return fused(outer_loops, loop(square_number, squares_per_run, body), kind)


def _variables(panels: Panels) -> dict[Any, Any]:
    """New loop variables for the outer and inner axes of panels, by the variable of the axis."""
    dtype = str(panels.axis.var.ty.dtype)
    axes = (*panels.outer, *panels.inner)
    return {axis.var: variable(str(axis.var.name), dtype) for axis in axes}


def _blocks(contraction: Contraction, panels: Panels) -> list[tuple[Axis, int]]:
    """The inner axes in the order in which they lie in memory, and a block's length along each.

    A block is made of the axes with the smallest steps, as many as it needs to be large enough.
    Along the others its length is 1.
    """
    steps = {axis.var: abs(contraction.step(panels.factor, axis) or 0) for axis in panels.inner}
    blocks: list[tuple[Axis, int]] = []
    block_terms = 1
    for axis in sorted(panels.inner, key=lambda axis: steps[axis.var]):
        count = 1
        if block_terms < _MIN_BLOCK_TERMS:
            is_cut = known(axis) > _BLOCK_TERMS and known(axis) % _BLOCK_TERMS == 0
            count = _BLOCK_TERMS if is_cut else known(axis)
        blocks.insert(0, (axis, count))
        block_terms *= count
    return blocks


def _index(plan: Plan, panels: Panels, tile: Any, position: Any) -> Any:
    """The index along the axis of panels of an element of a tile.

    In a ragged tile it is the one at which `Frame.read` reads that element.
    """
    axis = panels.axis
    start = tile * plan.length(axis)
    if panels.first:
        start = panels.first[axis.var] + start
    if not plan.is_ragged(axis):
        return start + position
    dtype = str(axis.var.ty.dtype)
    if axis is plan.vector:
        return tirx.min(start, tirx.const(known(axis) - plan.width, dtype)) + position
    return tirx.min(start + position, tirx.const(known(axis) - 1, dtype))


def _is_vector(plan: Plan, axis: Axis) -> bool:
    """Whether the indices of a tile's elements along an axis follow one another.

    A ragged tile is moved back as a whole along the vector axis. Along a row axis its last index
    repeats.
    """
    return axis is plan.vector or not plan.is_ragged(axis)
