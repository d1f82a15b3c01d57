"""Factors copied into panels: their elements in the order in which tiles read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.tirx import ForKind

from ..structure import Axis
from .form import Contraction, known, with_values
from .nest import ceiling, fused, loop, loops, variable
from .plan import Plan

_BLOCK = 16
"""Terms along one axis that are copied together, for all panels: they share lines or pages."""

_FULL = 12
"""Terms from which a block is large enough."""


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
        """Return the load of an element.

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
    """Return the panels that a factor is to be copied into, its elements side by side along `axis`.

    All axes that the factor depends on have static extents.
    """
    outer = [one for one in contraction.used_by(factor, contraction.spatial) if one is not axis]
    used = contraction.used_by(factor, contraction.reduced)
    inner = [one.axis for one in plan.terms if any(one.axis is axis for axis in used)]
    length = plan.length(axis)
    tiles = ceiling(axis.extent, length)
    shape = [*(one.extent for one in outer), tiles, *(one.extent for one in inner), length]
    buffer = tirx.decl_buffer(shape, contraction.dtype, "panels")
    return Panels(factor, axis, buffer, outer, inner)


def filled(contraction: Contraction, plan: Plan, panels: Panels, kind: ForKind) -> Any:
    """Return the nest that fills panels; its outermost loop is of the kind given.

    A block of terms is copied for all tiles before the next one. Elements that are not neighbours
    in memory are copied one by one, in the order in which they are read.
    """
    axis, length = panels.axis, plan.length(panels.axis)
    dtype = str(axis.var.ty.dtype)
    at = {one.var: variable(str(one.var.name), dtype) for one in (*panels.outer, *panels.inner)}
    tile, place = variable("tile", dtype), variable("place", dtype)
    across = [(at[one.var], one.extent) for one in panels.outer]
    within = []
    for one, count in _blocks(contraction, panels):
        if count < known(one):
            block, term = variable("block", dtype), variable("term", dtype)
            across.append((block, known(one) // count))
            at[one.var] = block * count + term if count > 1 else block
            within.append((term, count))
        else:
            within.append((at[one.var], count))
    across.append((tile, ceiling(axis.extent, length)))
    indices = {**at, axis.var: _index(plan, axis, tile, place)}
    value = with_values(contraction.factors[panels.factor], indices)
    body = tirx.BufferStore(panels.buffer, value, panels.at(indices, tile, place).indices)
    within = [(var, trips) for var, trips in within if trips > 1]
    if contraction.step(panels.factor, axis) == 1 and _is_vector(plan, axis):
        body = loops(within, loop(place, length, body, ForKind.VECTORIZED))
    else:
        body = loop(place, length, loops(within, body))
    return fused(across, body, kind)


def _blocks(contraction: Contraction, panels: Panels) -> list[tuple[Axis, int]]:
    """Return the axes summed over, as they lie in memory, and how far a block goes along each."""
    steps = {one.var: abs(contraction.step(panels.factor, one) or 0) for one in panels.inner}
    found: list[tuple[Axis, int]] = []
    volume = 1
    for one in sorted(panels.inner, key=lambda one: steps[one.var]):
        count = 1
        if volume < _FULL:
            is_cut = known(one) > _BLOCK and known(one) % _BLOCK == 0
            count = _BLOCK if is_cut else known(one)
        found.insert(0, (one, count))
        volume *= count
    return found


def _index(plan: Plan, axis: Axis, tile: Any, place: Any) -> Any:
    """Return the index of an element of a tile: beyond the end, as `Frame.read` has it."""
    start = tile * plan.length(axis)
    if not plan.is_ragged(axis):
        return start + place
    number = str(axis.var.ty.dtype)
    if axis is plan.vector:
        return tirx.min(start, tirx.const(known(axis) - plan.width, number)) + place
    return tirx.min(start + place, tirx.const(known(axis) - 1, number))


def _is_vector(plan: Plan, axis: Axis) -> bool:
    """Return whether the elements of a tile along an axis are neighbours of one another."""
    return axis is plan.vector or not plan.is_ragged(axis)
