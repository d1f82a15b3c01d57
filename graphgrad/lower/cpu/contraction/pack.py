"""Factors copied into panels: their elements in the order in which tiles read them."""

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
from .plan import Plan

_BLOCK_TERMS = 16
"""Terms along one axis that are copied together, for all panels: they share lines or pages."""

_MIN_BLOCK_TERMS = 12
"""Terms from which a block is large enough."""

_SQUARES_PER_RUN = 32
"""Squares copied one after the other along the rows of a source."""


@dataclass(frozen=True)
class Panels:
    """A factor of a contraction, copied.

    Attributes
    ----------
    factor : int
        Which one.
    axis : Axis
        The axis of the tile along which elements lie side by side.
    buffer : Buffer
        Indexed by the outer axes, the tile along `axis`, the inner axes, and the place in the tile.
    outer, inner : list of Axis
        The other axes of the result that the factor depends on, and those summed over.
    """

    factor: int
    axis: Axis
    buffer: Any
    outer: list[Axis]
    inner: list[Axis]

    def at(self, indices: Mapping[Any, Any], tile: Any, place: Any) -> Any:
        """The load of an element.

        Parameters
        ----------
        indices : dict
            The index along each axis, by variable.
        tile, place : Expr
            Which tile along `axis`, and where in it.
        """
        outer = [indices[axis.var] for axis in self.outer]
        inner = [indices[axis.var] for axis in self.inner]
        return tirx.BufferLoad(self.buffer, [*outer, tile, *inner, place])


def panels_of(contraction: Contraction, plan: Plan, factor: int, axis: Axis) -> Panels:
    """The panels that a factor is to be copied into, its elements side by side along `axis`.

    All axes that the factor depends on have static extents.
    """
    outer = [one for one in contraction.used_by(factor, contraction.spatial) if one is not axis]
    used = contraction.used_by(factor, contraction.reduced)
    terms = {one.axis.var: one.axis for one in plan.terms}  # an axis may have two loops
    inner = [one for one in terms.values() if any(one is axis for axis in used)]
    length = plan.length(axis)
    tiles = ceil_div(axis.extent, length)
    shape = [*(one.extent for one in outer), tiles, *(one.extent for one in inner), length]
    buffer = tirx.decl_buffer(shape, contraction.dtype, "panels")
    return Panels(factor, axis, buffer, outer, inner)


def filled(contraction: Contraction, plan: Plan, panels: Panels, kind: ForKind) -> Any:
    """The nest that fills panels; its outermost loop is of the kind given.

    Where the elements of a tile are neighbors in memory, they are copied as vectors. Where those
    along another axis are, squares are transposed in registers. Others are copied one by one.
    """
    found = None
    if contraction.step(panels.factor, panels.axis) != 1:
        found = _squares(contraction, plan, panels)
    if found is not None:
        return _transpose_nest(contraction, plan, panels, *found, kind)
    return _copy_nest(contraction, plan, panels, kind)


def _copy_nest(contraction: Contraction, plan: Plan, panels: Panels, kind: ForKind) -> Any:
    """The nest that copies elements, or vectors of them, in the order in which they lie.

    A block of terms is copied for all tiles before the next one.
    """
    axis, length = panels.axis, plan.length(panels.axis)
    dtype = str(axis.var.ty.dtype)
    at = _variables(panels)
    tile, place = variable("tile", dtype), variable("place", dtype)
    across = [(at[one.var], one.extent) for one in panels.outer]
    within = []
    for one, count in _blocks(contraction, panels):
        if count < known(one):
            number, term = variable("block", dtype), variable("term", dtype)
            across.append((number, known(one) // count))
            at[one.var] = number * count + term if count > 1 else number
            within.append((term, count))
        else:
            within.append((at[one.var], count))
    across.append((tile, ceil_div(axis.extent, length)))
    indices = {**at, axis.var: _index(plan, axis, tile, place)}
    value = substitute_values(contraction.factors[panels.factor], indices)
    body = tirx.BufferStore(panels.buffer, value, panels.at(indices, tile, place).indices)
    within = [(var, trips) for var, trips in within if trips > 1]
    if contraction.step(panels.factor, axis) == 1 and _is_vector(plan, axis):
        body = loops(within, loop(place, length, body, ForKind.VECTORIZED))
    else:
        body = loop(place, length, loops(within, body))
    return fused(across, body, kind)


def _squares(contraction: Contraction, plan: Plan, panels: Panels) -> tuple[Axis, int] | None:
    """The axis along which the factor lies in memory, and the side of squares along it.

    None if no square is large enough.
    """
    least, side = SIDES
    for axis in (*panels.inner, *panels.outer):
        if contraction.step(panels.factor, axis) == 1 and known(axis) >= least:
            side = min(side, plan.lanes)
            while known(axis) < side or plan.length(panels.axis) % side != 0:
                side //= 2
            return (axis, side) if side >= least else None
    return None


def _transpose_nest(
    contraction: Contraction, plan: Plan, panels: Panels, along: Axis, side: int, kind: ForKind
) -> Any:
    """The nest that fills panels square by square.

    It goes along a few rows of memory at a time, as far as a run: of many rows, a cache would lose
    the next lines before they are used.

    Parameters
    ----------
    contraction, plan, panels, kind
        See `filled`.
    along : Axis
        The axis along which the factor lies in memory. Squares that would reach beyond its end
        begin earlier: some elements are copied twice.
    side : int
        Elements along a side of a square: a power of two that divides the length of the tile.
    """
    axis = panels.axis
    dtype = str(axis.var.ty.dtype)
    tile, strip, run, number = (
        variable(name, dtype) for name in ("tile", "strip", "run", "number")
    )
    squares = ceil_div(known(along), side)
    runs = ceil_div(squares, _SQUARES_PER_RUN)
    length = ceil_div(squares, runs)
    start = (run * length + number) * side
    if runs * length * side > known(along):
        start = tirx.min(start, tirx.const(known(along) - side, dtype))
    at = _variables(panels)
    others = [one for one in (*panels.outer, *panels.inner) if one is not along]
    around = [
        *((at[one.var], one.extent) for one in others),
        (tile, ceil_div(axis.extent, plan.length(axis))),
        (strip, plan.length(axis) // side),
        (run, runs),
    ]

    def read(row: Any, lane: Any) -> Any:
        place = _index(plan, axis, tile, strip * side + row)
        indices = {**at, along.var: start + lane, axis.var: place}
        return substitute_values(contraction.factors[panels.factor], indices)

    def store(column: int, values: Any) -> Any:
        place = tirx.Ramp(strip * side, tirx.const(1, dtype), side)
        indices = panels.at({**at, along.var: start + column}, tile, place).indices
        return tirx.BufferStore(panels.buffer, values, indices)

    body = transpose_square(contraction.dtype, dtype, side, read, store)
    return fused(around, loop(number, length, body), kind)


def _variables(panels: Panels) -> dict[Any, Any]:
    """New variables for the axes of panels, by variable."""
    dtype = str(panels.axis.var.ty.dtype)
    axes = (*panels.outer, *panels.inner)
    return {one.var: variable(str(one.var.name), dtype) for one in axes}


def _blocks(contraction: Contraction, panels: Panels) -> list[tuple[Axis, int]]:
    """The axes summed over, as they lie in memory, and how far a block goes along each."""
    steps = {one.var: abs(contraction.step(panels.factor, one) or 0) for one in panels.inner}
    found: list[tuple[Axis, int]] = []
    volume = 1
    for one in sorted(panels.inner, key=lambda one: steps[one.var]):
        count = 1
        if volume < _MIN_BLOCK_TERMS:
            is_cut = known(one) > _BLOCK_TERMS and known(one) % _BLOCK_TERMS == 0
            count = _BLOCK_TERMS if is_cut else known(one)
        found.insert(0, (one, count))
        volume *= count
    return found


def _index(plan: Plan, axis: Axis, tile: Any, place: Any) -> Any:
    """The index of an element of a tile: beyond the end, as `Frame.read` has it."""
    start = tile * plan.length(axis)
    if not plan.is_ragged(axis):
        return start + place
    number = str(axis.var.ty.dtype)
    if axis is plan.vector:
        return tirx.min(start, tirx.const(known(axis) - plan.width, number)) + place
    return tirx.min(start + place, tirx.const(known(axis) - 1, number))


def _is_vector(plan: Plan, axis: Axis) -> bool:
    """Whether the elements of a tile along an axis are neighbors of one another."""
    return axis is plan.vector or not plan.is_ragged(axis)
