"""The loops around a tile: which run in parallel, what is used again while it is in the cache."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import tvm

from ....ir.kernel_structure import Axis, volume
from ....ir.loops import ceil_div
from ...kernels.contraction import Contraction, known
from ..map import MIN_PARALLEL_TRIPS
from ..vector_unit import VectorUnit
from .plan import Loop, Plan
from .prefetch import next_tile_loop
from .store import ResultStore
from .tile import CACHE, Tile, best_tile, is_short

_MIN_PARALLEL_MULTIPLY_ADDS = 1 << 18
"""Multiply-adds below which handing work to other threads costs more than it saves."""

_MIN_TERMS_PER_PART = 256
"""Terms that a part of a sum must have, so that adding up the parts takes no time."""

_PAGE_STRIDE_BYTES = 1024
"""Bytes between what neighboring steps of a sum read, from which each step costs a page."""

_SUFFICIENT_TASKS = 4 * MIN_PARALLEL_TRIPS
"""Tasks that suffice: cores that share them evenly have equal parts, but for a small rest."""

_SUFFICIENT_BLOCKED_TASKS = 8
"""Tasks where each goes through a sum block by block, and must have many tiles to do so."""

_CACHE_LINE_BYTES = 64
"""Bytes of a line of the cache, which is what comes into it at a time."""

_MAX_UNROLLED_MULTIPLY_ADDS = 64
"""Multiply-adds of vectors in the unrolled terms of a tile at most."""

_MIN_COPY_REUSE = 128
"""Results that must read each element of a factor, for copying it to be worth it."""

_MIN_PANEL_COPY_REUSE = 1100
"""The same for panels that could be read in place: what one core copies another has to fetch."""


def plan(contraction: Contraction, unit: VectorUnit, result_store: ResultStore) -> Plan | None:
    """How to compute a contraction; None if no tile pays.

    Parameters
    ----------
    contraction : Contraction
    unit : VectorUnit
    result_store : ResultStore
        What will become of the results.
    """
    tile = best_tile(contraction, unit, result_store)
    return None if tile is None else _Planner(contraction, tile).plan()


class _Planner:
    """Chooses the loops around one tile of one contraction.

    Parameters
    ----------
    contraction : Contraction
    tile : Tile
    """

    def __init__(self, contraction: Contraction, tile: Tile) -> None:
        self._contraction = contraction
        self._tile = tile
        self._width = tile.width
        self._itemsize = tvm.DataType(contraction.dtype).itemsize
        self._panel_axes = contraction.used_by(tile.panel, contraction.axes)
        other = contraction.used_by(1 - tile.panel, contraction.axes)
        self._both = (self._panel_axes, other)
        self._is_symbolic = any(axis.extent is None for axis in contraction.axes)

    def plan(self) -> Plan:
        tile = self._tile
        terms = [Loop(axis, 1, axis.extent) for axis in self._term_order()]
        parts, terms = self._parts(terms)
        blocks, terms = self._blocks(terms, bool(parts))
        tasks, tiles = self._tasks(terms, bool(parts), bool(blocks))
        packed = []
        if tile.copied or self._is_scattered(tiles, terms):
            packed.append((tile.panel, tile.vector))
        if len(tile.rows) == 1 and not blocks and self._has_distant_rows(tile.rows[0][0], terms):
            packed.append((1 - tile.panel, tile.rows[0][0]))
        chosen = Plan(
            vector=tile.vector,
            lanes=tile.lanes,
            vectors=tile.vectors,
            rows=tile.rows,
            tasks=tuple(tasks),
            parts=tuple(parts),
            blocks=tuple(blocks),
            tiles=tuple(tiles),
            terms=tuple(terms),
            packed=tuple(packed),
            parallel=volume(self._contraction.axes) >= _MIN_PARALLEL_MULTIPLY_ADDS,
            unrolled=self._unrolled(terms),
        )
        return self._plan_term_prefetch(self._plan_row_prefetch(chosen))

    def _plan_row_prefetch(self, chosen: Plan) -> Plan:
        """A plan that fetches rows of the next tile, if they lie in lines."""
        other = 1 - self._tile.panel
        *outer, innermost = chosen.terms
        line = _CACHE_LINE_BYTES // self._itemsize
        in_lines = self._contraction.step(other, innermost.axis) == 1
        if not (in_lines and (innermost.trips or 0) > line and self._is_fetchable(other, chosen)):
            return chosen
        if next_tile_loop(self._contraction, chosen, other) is None:
            return chosen
        return replace(chosen, terms=(*outer, *_split_loop(innermost, line)), fetched=other)

    def _plan_term_prefetch(self, chosen: Plan) -> Plan:
        """A plan that fetches later terms, if each part of the sum reads other lines."""
        innermost = chosen.terms[-1].axis
        streamed = [
            factor
            for factor in (0, 1)
            if self._is_fetchable(factor, chosen)
            and abs(self._contraction.step(factor, innermost) or 0) * self._itemsize
            >= _CACHE_LINE_BYTES
        ]
        return replace(chosen, streamed=tuple(streamed)) if chosen.accumulates else chosen

    def _is_fetchable(self, factor: int, chosen: Plan) -> bool:
        """Whether a factor is read where it lies, and tiles use what they read of it."""
        contraction = self._contraction
        broadcast = contraction.step(1 - self._tile.panel, chosen.vector) == 0
        copied = any(factor == one for one, _ in chosen.packed)
        return broadcast and not copied and factor not in contraction.inside

    def _term_order(self) -> list[Axis]:
        """Order the sum: windows that slide over rows outside, then as the other factor lies.

        So neighboring steps read neighboring elements, and a window's short loops, whose reads
        overlap from row to row, are not unrolled into each other.
        """
        other = 1 - self._tile.panel
        rows = [axis for axis, _ in self._tile.rows]

        def slides(axis: Axis) -> bool:
            return any(self._contraction.share_index(other, [axis, row]) for row in rows)

        def step(axis: Axis) -> int:
            return abs(self._contraction.step(other, axis) or 0)

        return sorted(
            self._contraction.reduced,
            key=lambda axis: (axis.extent != 1, not slides(axis), -step(axis)),
        )

    def _parts(self, terms: list[Loop]) -> tuple[list[Loop], list[Loop]]:
        """Cut a sum into parts if it is long and the results are few."""
        if self._is_symbolic:
            return [], terms
        results = self._itemsize * volume(self._contraction.spatial)
        factors = sum(self._factor_bytes(axes, terms) for axes in self._both)
        total = volume(self._contraction.reduced)
        outermost = max(terms, key=lambda one: (self._step(one.axis), known(one.axis)))
        extent = known(outermost.axis)
        if results > CACHE or factors < 4 * results:
            return [], terms
        most = min(MIN_PARALLEL_TRIPS, total // _MIN_TERMS_PER_PART)
        count = max((n for n in range(1, most + 1) if extent % n == 0), default=1)
        if count < 4:
            return [], terms
        part = Loop(outermost.axis, extent // count, count)
        rest = Loop(outermost.axis, 1, extent // count)
        return [part], [rest if one is outermost else one for one in terms]

    def _blocks(self, terms: list[Loop], in_parts: bool) -> tuple[list[Loop], list[Loop]]:
        """Cut a sum into blocks if what tiles read again does not fit the cache."""
        if self._is_symbolic:
            return [], terms
        size = self._panel_bytes(terms)
        if in_parts:
            size = sum(self._factor_bytes(axes, terms) for axes in self._both)
        count = ceil_div(size, CACHE)
        if count == 1:
            return [], terms
        long = [(one, one.trips) for one in terms if one.trips is not None and one.trips >= count]
        if not long:
            return [], terms
        cut, trips = max(long, key=lambda one: self._step(one[0].axis))
        length = ceil_div(trips, count)
        block = Loop(cut.axis, length, ceil_div(trips, length))
        rest = Loop(cut.axis, 1, length)
        return [block], [rest if one is cut else one for one in terms]

    def _tasks(
        self, terms: Sequence[Loop], in_parts: bool, in_blocks: bool
    ) -> tuple[list[Loop], list[Loop]]:
        """Order the loops over tiles, and cut them into tasks."""
        tile, spatial = self._tile, self._contraction.spatial
        lengths = {axis.var: length for axis, length in tile.rows} | {tile.vector.var: self._width}
        loops = {}
        for axis in spatial:
            length = lengths.get(axis.var, 1)
            trips = None if axis.extent is None else ceil_div(axis.extent, length)
            loops[axis.var] = Loop(axis, length, trips)
        panel = [a for a in spatial if self._in(a, self._panel_axes) and a is not tile.vector]
        rows = [a for a in spatial if not self._in(a, self._panel_axes)]
        rows.sort(key=lambda axis: -self._step(axis))
        group = self._group(loops[tile.vector.var], terms)
        outer, inner = _split_loop(loops[tile.vector.var], group)
        across = [*(loops[a.var] for a in panel), outer, *(loops[a.var] for a in rows)]
        if in_parts:
            panel_bytes, other_bytes = (self._factor_bytes(axes, terms) for axes in self._both)
            if panel_bytes > other_bytes:
                across.insert(len(panel) + 1, inner)
                return [], across
            return [], [*across, inner]
        tasks, rest = _split_leading(
            across, _SUFFICIENT_BLOCKED_TASKS if in_blocks else _SUFFICIENT_TASKS
        )
        return tasks, [*rest, inner]

    def _unrolled(self, terms: Sequence[Loop]) -> int:
        """How many loops of a short sum are unrolled: elements read once serve all terms."""
        size, count = self._tile.registers, 0
        while is_short(self._contraction, self._tile.vector) and count < len(terms):
            size *= terms[-1 - count].trips or _MAX_UNROLLED_MULTIPLY_ADDS
            if size > _MAX_UNROLLED_MULTIPLY_ADDS:
                break
            count += 1
        return count

    def _group(self, vectors: Loop, terms: Sequence[Loop]) -> int:
        """How many panels go through the cache together.

        All groups are equal, or the cores that share them would not have equal parts.
        """
        assert vectors.trips is not None
        most = max(CACHE // self._panel_bytes(terms), 1)
        return max(n for n in range(1, vectors.trips + 1) if vectors.trips % n == 0 and n <= most)

    def _is_scattered(self, tiles: Sequence[Loop], terms: Sequence[Loop]) -> bool:
        """Whether panels, read in place, would drive one another out of the cache.

        Lines at a distance of a large power of two share a few places in it.
        """
        used = [one for one in terms if self._in(one.axis, self._panel_axes)]
        steps = [abs(self._contraction.step(self._tile.panel, one.axis) or 0) for one in used]
        distance = min((step for step in steps if step > 1), default=0) * self._itemsize
        if not distance or not self._contraction.can_be_copied(self._tile.panel):
            return False
        group = next((one.trips for one in reversed(tiles) if one.axis is self._tile.vector), 1)
        run = (group or 1) * self._width * self._itemsize
        power = distance & -distance
        places = CACHE * min(1.0, run / power)
        is_large = (group or 1) * self._panel_bytes(terms) > places
        return is_large and self._reuse(self._tile.panel) >= _MIN_PANEL_COPY_REUSE

    def _has_distant_rows(self, axis: Axis, terms: Sequence[Loop]) -> bool:
        """Whether the other factor is copied: its rows lie side by side, but far between.

        Then each step of the sum reads of it a part of a line, and of another page.
        """
        contraction, other = self._contraction, 1 - self._tile.panel
        if contraction.step(other, axis) != 1 or contraction.step(other, self._tile.vector):
            return False
        steps = [contraction.step(other, one.axis) or 0 for one in terms if one.trips != 1]
        is_far = min(steps, default=0) * self._itemsize >= _PAGE_STRIDE_BYTES
        return is_far and contraction.can_be_copied(other) and self._reuse(other) >= _MIN_COPY_REUSE

    def _reuse(self, factor: int) -> int:
        """How many results read each element of a factor."""
        spatial = self._contraction.spatial
        return volume(a for a in spatial if not self._contraction.depends(factor, a))

    def _panel_bytes(self, terms: Sequence[Loop]) -> int:
        """The bytes that a tile reads of the factor that is read in vectors."""
        return self._width * self._itemsize * self._points(self._panel_axes, terms)

    def _factor_bytes(self, axes: Sequence[Axis], terms: Sequence[Loop]) -> int:
        """The bytes that all tiles read of the factor that depends on `axes`."""
        results = volume(axis for axis in axes if not axis.reduced)
        return results * self._itemsize * self._points(axes, terms)

    def _points(self, axes: Sequence[Axis], terms: Sequence[Loop]) -> int:
        used = [one for one in terms if self._in(one.axis, axes)]
        return math.prod(volume([one.axis]) if one.trips is None else one.trips for one in used)

    def _step(self, axis: Axis) -> int:
        return abs(self._contraction.step(1 - self._tile.panel, axis) or 0)

    @staticmethod
    def _in(axis: Axis, axes: Sequence[Axis]) -> bool:
        return any(axis is other for other in axes)


def _split_loop(loop: Loop, inner: int) -> tuple[Loop, Loop]:
    """A loop as two, the inner one with so many trips."""
    assert loop.trips is not None
    return (
        Loop(loop.axis, loop.step * inner, ceil_div(loop.trips, inner)),
        Loop(loop.axis, loop.step, inner),
    )


def _split_leading(loops: Sequence[Loop], most: int) -> tuple[list[Loop], list[Loop]]:
    """Just enough leading loops to have work for every core, and the others."""
    trips = 1
    for position, one in enumerate(loops):
        if trips >= most:
            return list(loops[:position]), list(loops[position:])
        trips *= most if one.trips is None else one.trips
    return list(loops), []
