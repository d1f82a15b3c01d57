"""The choice of the loops around a tile: what runs in parallel, and what is reused in the cache."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import tvm

from ....ir.kernel_structure import Axis, volume
from ....ir.loops import ceil_div
from ...kernels.contraction import Contraction, known
from ..map import MIN_PARALLEL_TRIPS
from ..tuning import Processor
from .matrices import MIN_PAIRS, matrix_tile
from .plan import Loop, Plan
from .prefetch import next_tile_loop
from .store import ResultStore
from .tile import Tile, best_tile, is_short

_MIN_PARALLEL_MULTIPLY_ADDS = 1 << 18
"""Multiply-adds below which handing work to other threads costs more than it saves."""

_SUFFICIENT_TASKS = 4 * MIN_PARALLEL_TRIPS
"""Tasks that suffice: with so many, the cores' shares differ little whatever their number."""

_SUFFICIENT_BLOCKED_TASKS = 8
"""Tasks that suffice if each goes through a sum in blocks: its tiles share each block's data, so it
should have many of them."""

_HIDING_TERMS = (16, 128)
"""The fewest terms of a tile that take as long as its lines to come from memory, so that it pays to
prefetch these, and the most beside which a wait for them counts."""

_MAX_UNROLLED_MULTIPLY_ADDS = 64
"""Vector multiply-adds in the unrolled terms of a tile, at most."""


def plan(contraction: Contraction, processor: Processor, result_store: ResultStore) -> Plan | None:
    """The plan of a contraction's loops; None if no tile pays.

    Parameters
    ----------
    contraction : Contraction
    processor : Processor
    result_store : ResultStore
        The store of the results.
    """
    if processor.multiplies_matrices and contraction.are_pairs:
        tile = matrix_tile(contraction, processor.contraction, result_store)
        chosen_plan = None if tile is None else _Planner(contraction, tile, processor).plan()
        # Cuts of the sum may have left too few terms for a register.
        if chosen_plan is not None and chosen_plan.matrices:
            return chosen_plan
    tile = best_tile(contraction, processor, result_store)
    if tile is None:
        return None
    chosen_plan = _Planner(contraction, tile, processor).plan()
    fetches = _waits_for_results(contraction, chosen_plan, result_store, processor)
    return replace(chosen_plan, fetches_results=fetches)


def _waits_for_results(
    contraction: Contraction, chosen_plan: Plan, result_store: ResultStore, processor: Processor
) -> bool:
    """Whether the lines to which tiles are stored come from memory, and hold up short sums."""
    if chosen_plan.accumulates or any(axis.extent is None for axis in contraction.axes):
        return False
    itemsize = tvm.DataType(contraction.dtype).itemsize
    least, most = _HIDING_TERMS
    return (
        least <= volume(contraction.reduced) <= most
        # With shorter vectors a line takes two prefetches, which gain nothing.
        and itemsize * chosen_plan.lanes >= processor.line_bytes
        and itemsize * volume(contraction.spatial) > processor.contraction.near_bytes
        and not is_short(contraction, chosen_plan.vector)
        and result_store.step(chosen_plan.vector) == 1
    )


class _Planner:
    """The choice of the loops around one tile of one contraction.

    Parameters
    ----------
    contraction : Contraction
    tile : Tile
    processor : Processor
    """

    def __init__(self, contraction: Contraction, tile: Tile, processor: Processor) -> None:
        self._contraction = contraction
        self._tile = tile
        self._line_bytes, self._costs = processor.line_bytes, processor.contraction
        self._width = tile.width
        self._itemsize = tvm.DataType(contraction.dtype).itemsize
        self._panel_axes = contraction.used_by(tile.panel, contraction.axes)
        other_axes = contraction.used_by(1 - tile.panel, contraction.axes)
        self._both = (self._panel_axes, other_axes)
        self._is_symbolic = any(axis.extent is None for axis in contraction.axes)

    def plan(self) -> Plan:
        """The plan: parts are chosen first, then blocks, then tasks, as each needs those before."""
        tile = self._tile
        terms = [Loop(axis, 1, axis.extent) for axis in self._term_order()]
        parts, terms = self._parts(terms)
        blocks, terms = self._blocks(terms, bool(parts))
        tasks, tiles = self._tasks(terms, bool(parts), bool(blocks))
        packed = []
        if tile.copied or self._is_scattered(tiles, terms):
            packed.append((tile.panel, tile.vector))
        if tile.matrices:
            if self._contraction.step(1 - tile.panel, terms[-1].axis) != 1:
                packed.append((1 - tile.panel, terms[-1].axis))
        elif len(tile.rows) == 1 and not blocks and self._has_distant_rows(tile.rows[0][0], terms):
            packed.append((1 - tile.panel, tile.rows[0][0]))
        chosen_plan = Plan(
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
        chosen_plan = self._plan_held_vectors(chosen_plan)
        return self._plan_term_prefetch(self._plan_row_prefetch(chosen_plan))

    def _plan_held_vectors(self, chosen_plan: Plan) -> Plan:
        """A plan that also loads the factor beside the panel in vectors, if the tile says so."""
        held, lanes = self._tile.held, self._tile.held_lanes
        *outer, innermost = chosen_plan.terms
        if held is None or self._is_symbolic:
            return chosen_plan
        # All trips of loops around it must leave it the same number of trips.
        steps = math.gcd(known(innermost.axis), innermost.trips or 1, lanes)
        split = (*outer, *_split_loop(innermost, steps))
        if self._tile.matrices:
            is_deep = steps >= MIN_PAIRS
            return replace(chosen_plan, terms=split, held=held, matrices=is_deep)
        is_packed = any(factor != self._tile.panel for factor, _ in chosen_plan.packed)
        if held.reduced and (held is not innermost.axis or is_packed or steps < lanes):
            return chosen_plan
        return replace(chosen_plan, terms=split, held=held)

    def _plan_row_prefetch(self, chosen_plan: Plan) -> Plan:
        """A plan that also prefetches rows of the next tile, if rows are contiguous and long.

        The innermost loop of terms is then split at cache lines, with a prefetch before each line.
        """
        other_factor = 1 - self._tile.panel
        *outer, innermost = chosen_plan.terms
        line_elements = self._line_bytes // self._itemsize
        in_lines = self._contraction.step(other_factor, innermost.axis) == 1
        if not (
            in_lines
            and (innermost.trips or 0) > line_elements
            and self._is_fetchable(other_factor, chosen_plan)
        ):
            return chosen_plan
        if next_tile_loop(self._contraction, chosen_plan, other_factor) is None:
            return chosen_plan
        return replace(
            chosen_plan,
            terms=(*outer, *_split_loop(innermost, line_elements)),
            fetched=other_factor,
        )

    def _plan_term_prefetch(self, chosen_plan: Plan) -> Plan:
        """A plan that also prefetches later terms, if steps of split sums read a line each."""
        innermost = chosen_plan.terms[-1].axis
        streamed = [
            factor
            for factor in (0, 1)
            if self._is_fetchable(factor, chosen_plan)
            and abs(self._contraction.step(factor, innermost) or 0) * self._itemsize
            >= self._line_bytes
        ]
        return (
            replace(
                chosen_plan,
                streamed=tuple(streamed),
                prefetch_steps=self._costs.prefetch_steps,
            )
            if chosen_plan.accumulates
            else chosen_plan
        )

    def _is_fetchable(self, factor: int, chosen_plan: Plan) -> bool:
        """Whether prefetching a factor may help.

        It is read in place, always inside its tensor, and the factor beside the panel is broadcast.
        """
        contraction = self._contraction
        broadcast = contraction.step(1 - self._tile.panel, chosen_plan.vector) == 0
        if chosen_plan.held is not None:
            return False  # what it would save is not known, and it is an instruction more
        copied = any(factor == packed_factor for packed_factor, _ in chosen_plan.packed)
        return broadcast and not copied and factor not in contraction.inside

    def _term_order(self) -> list[Axis]:
        """The axes of the sum, from the outermost loop to the innermost.

        Axes of windows that slide along the rows of a tile come first, then the others, those along
        which the other factor moves farthest in memory before those of neighbors. So neighboring
        steps read neighboring elements, and a window's short loops, whose reads overlap from row to
        row, are not unrolled into each other.
        """
        other_factor = 1 - self._tile.panel
        rows = [axis for axis, _ in self._tile.rows]

        def slides(axis: Axis) -> bool:
            return any(self._contraction.share_index(other_factor, [axis, row]) for row in rows)

        def step(axis: Axis) -> int:
            return abs(self._contraction.step(other_factor, axis) or 0)

        def is_held(axis: Axis) -> bool:
            return self._tile.matrices and axis is self._tile.held

        # Axes of one element make no loop. They come first, so that the innermost loop is a real
        # one, which can be unrolled or prefetch.
        return sorted(
            self._contraction.reduced,
            key=lambda axis: (is_held(axis), axis.extent != 1, not slides(axis), -step(axis)),
        )

    def _parts(self, terms: list[Loop]) -> tuple[list[Loop], list[Loop]]:
        """Cut a sum into parts that run in parallel, if it is long and the results are few.

        Returns the loops over parts and the loops of terms in a part. How many parts there are
        depends on the shape alone, so the order of additions is the same with any number of cores.
        """
        # The sizes decide here, and those of a symbolic contraction are not known.
        if self._is_symbolic:
            return [], terms
        result_bytes = self._itemsize * volume(self._contraction.spatial)
        factor_bytes = sum(self._factor_bytes(axes, terms) for axes in self._both)
        term_count = volume(self._contraction.reduced)
        outermost = max(terms, key=lambda loop: (self._step(loop.axis), known(loop.axis)))
        extent = known(outermost.axis)
        # Each part has results of its own. They must stay in the cache, and be few beside what the
        # sum reads, as all of them are read again to be added up.
        if result_bytes > self._costs.max_partial_bytes or factor_bytes < 4 * result_bytes:
            return [], terms
        max_parts = min(MIN_PARALLEL_TRIPS, term_count // self._costs.min_terms_per_part)
        part_count = max(
            (parts for parts in range(1, max_parts + 1) if extent % parts == 0), default=1
        )
        # With fewer parts there is too little to run in parallel.
        if part_count < 4:
            return [], terms
        part = Loop(outermost.axis, extent // part_count, part_count)
        terms_of_part = Loop(outermost.axis, 1, extent // part_count)
        return [part], [terms_of_part if loop is outermost else loop for loop in terms]

    def _blocks(self, terms: list[Loop], in_parts: bool) -> tuple[list[Loop], list[Loop]]:
        """Cut a sum into blocks, if what tiles read again does not fit the cache.

        Returns the loops over blocks and the loops of terms in a block.
        """
        if self._is_symbolic:
            return [], terms
        reused_bytes, kept_bytes = self._panel_bytes(terms), self._costs.near_bytes
        # A part computes all tiles of the result, so all that it reads of both factors is reused.
        if in_parts:
            reused_bytes = sum(self._factor_bytes(axes, terms) for axes in self._both)
            kept_bytes = self._costs.part_bytes
        block_count = ceil_div(reused_bytes, kept_bytes)
        if block_count == 1:
            return [], terms
        long_enough = [
            (loop, loop.trips)
            for loop in terms
            if loop.trips is not None and loop.trips >= block_count
        ]
        if not long_enough:
            return [], terms
        cut_loop, trips = max(long_enough, key=lambda candidate: self._step(candidate[0].axis))
        # Where the tile takes several terms at a time, blocks are made of whole such.
        whole = math.gcd(trips, self._tile.held_lanes) if self._tile.matrices else 1
        block_length = ceil_div(ceil_div(trips, block_count), whole) * whole
        block = Loop(cut_loop.axis, block_length, ceil_div(trips, block_length))
        terms_of_block = Loop(cut_loop.axis, 1, block_length)
        return [block], [terms_of_block if loop is cut_loop else loop for loop in terms]

    def _tasks(
        self, terms: Sequence[Loop], in_parts: bool, in_blocks: bool
    ) -> tuple[list[Loop], list[Loop]]:
        """The loops over tiles, in order: those that make up tasks, and those inside a task.

        Panels of a group stay in the cache while all rows go past them; the loop over the panels of
        one group is the innermost.
        """
        tile, spatial = self._tile, self._contraction.spatial
        lengths = {axis.var: length for axis, length in tile.rows} | {tile.vector.var: self._width}
        loops = {}
        for axis in spatial:
            length = lengths.get(axis.var, 1)
            trips = None if axis.extent is None else ceil_div(axis.extent, length)
            loops[axis.var] = Loop(axis, length, trips)
        panel_axes = [
            axis for axis in spatial if self._in(axis, self._panel_axes) and axis is not tile.vector
        ]
        row_axes = [axis for axis in spatial if not self._in(axis, self._panel_axes)]
        # As the other factor lies in memory: the axis along which it moves farthest is outermost.
        row_axes.sort(key=lambda axis: -self._step(axis))
        panels_per_group = self._group(loops[tile.vector.var], terms)
        outer, inner = _split_loop(loops[tile.vector.var], panels_per_group)
        ordered = [
            *(loops[axis.var] for axis in panel_axes),
            outer,
            *(loops[axis.var] for axis in row_axes),
        ]
        if in_parts:
            panel_bytes, other_bytes = (self._factor_bytes(axes, terms) for axes in self._both)
            # The parts themselves are the parallel work. Of the two factors, the larger one is the
            # one that the outer loops go along, so that it is read the fewest times.
            if panel_bytes > other_bytes:
                ordered.insert(len(panel_axes) + 1, inner)
                return [], ordered
            return [], [*ordered, inner]
        tasks, remaining = _split_leading(
            ordered, _SUFFICIENT_BLOCKED_TASKS if in_blocks else _SUFFICIENT_TASKS
        )
        return tasks, [*remaining, inner]

    def _unrolled(self, terms: Sequence[Loop]) -> int:
        """How many of the innermost loops of a short sum are unrolled.

        An element that is loaded once then serves all terms that use it.
        """
        multiply_adds, count = self._tile.registers, 0
        while is_short(self._contraction, self._tile.vector) and count < len(terms):
            multiply_adds *= terms[-1 - count].trips or _MAX_UNROLLED_MULTIPLY_ADDS
            if multiply_adds > _MAX_UNROLLED_MULTIPLY_ADDS:
                break
            count += 1
        return count

    def _group(self, vectors: Loop, terms: Sequence[Loop]) -> int:
        """The number of panels in a group, which stay in the cache together.

        It divides the number of all panels. Unequal groups would be unequal work for the cores.
        """
        assert vectors.trips is not None
        max_panels = max(self._costs.near_bytes // self._panel_bytes(terms), 1)
        return max(
            panels
            for panels in range(1, vectors.trips + 1)
            if vectors.trips % panels == 0 and panels <= max_panels
        )

    def _is_scattered(self, tiles: Sequence[Loop], terms: Sequence[Loop]) -> bool:
        """Whether panels that are read in place would evict one another from the cache.

        Cache lines at distances that are multiples of a large power of two share a few sets.
        """
        panel_loops = [loop for loop in terms if self._in(loop.axis, self._panel_axes)]
        steps = [
            abs(self._contraction.step(self._tile.panel, loop.axis) or 0) for loop in panel_loops
        ]
        distance = min((step for step in steps if step > 1), default=0) * self._itemsize
        if not distance or not self._contraction.can_be_copied(self._tile.panel):
            return False
        panels_per_group = next(
            (loop.trips for loop in reversed(tiles) if loop.axis is self._tile.vector), 1
        )
        contiguous_bytes = (panels_per_group or 1) * self._width * self._itemsize
        # The largest power of two that divides the distance. Of each so many bytes of addresses,
        # and hence of cache sets, the reads reach only as many as are contiguous.
        power_of_two = distance & -distance
        reachable_bytes = self._costs.near_bytes * min(1.0, contiguous_bytes / power_of_two)
        is_large = (panels_per_group or 1) * self._panel_bytes(terms) > reachable_bytes
        is_reused = self._reuse(self._tile.panel) >= self._costs.min_panel_reuse
        return is_large and (is_reused or self._tile.panel in self._contraction.lasting)

    def _has_distant_rows(self, axis: Axis, terms: Sequence[Loop]) -> bool:
        """Whether to copy the other factor, because its steps along the sum are far apart.

        Its rows along `axis` are neighbors in memory, so each step of the sum reads only a part of
        a cache line, and each time on another page.
        """
        contraction, other_factor = self._contraction, 1 - self._tile.panel
        if contraction.step(other_factor, axis) != 1 or contraction.step(
            other_factor, self._tile.vector
        ):
            return False
        steps = [
            contraction.step(other_factor, loop.axis) or 0 for loop in terms if loop.trips != 1
        ]
        is_far = min(steps, default=0) * self._itemsize >= self._costs.far_step_bytes
        return (
            is_far
            and contraction.can_be_copied(other_factor)
            and self._reuse(other_factor) >= self._costs.min_copy_reuse
        )

    def _reuse(self, factor: int) -> int:
        """The number of results that read each element of a factor."""
        spatial = self._contraction.spatial
        return volume(axis for axis in spatial if not self._contraction.depends(factor, axis))

    def _panel_bytes(self, terms: Sequence[Loop]) -> int:
        """The bytes that a tile reads of the factor that is read in vectors."""
        return self._width * self._itemsize * self._points(self._panel_axes, terms)

    def _factor_bytes(self, axes: Sequence[Axis], terms: Sequence[Loop]) -> int:
        """The bytes that all tiles read of the factor that depends on `axes`."""
        results = volume(axis for axis in axes if not axis.reduced)
        return results * self._itemsize * self._points(axes, terms)

    def _points(self, axes: Sequence[Axis], terms: Sequence[Loop]) -> int:
        """The number of trips, in all, of those loops of terms that go along one of `axes`."""
        used_loops = [loop for loop in terms if self._in(loop.axis, axes)]
        return math.prod(
            volume([loop.axis]) if loop.trips is None else loop.trips for loop in used_loops
        )

    def _step(self, axis: Axis) -> int:
        """How far in memory the other factor moves along an axis; 0 if that varies."""
        return abs(self._contraction.step(1 - self._tile.panel, axis) or 0)

    @staticmethod
    def _in(axis: Axis, axes: Sequence[Axis]) -> bool:
        """Whether an axis is one of `axes`, by identity."""
        return any(axis is candidate for candidate in axes)


def _split_loop(loop: Loop, inner: int) -> tuple[Loop, Loop]:
    """A loop as two, the inner one of which has `inner` trips."""
    assert loop.trips is not None
    return (
        Loop(loop.axis, loop.step * inner, ceil_div(loop.trips, inner)),
        Loop(loop.axis, loop.step, inner),
    )


def _split_leading(loops: Sequence[Loop], sufficient_trips: int) -> tuple[list[Loop], list[Loop]]:
    """The fewest leading loops that have `sufficient_trips` trips in all, and the other loops."""
    trips = 1
    for position, loop in enumerate(loops):
        if trips >= sufficient_trips:
            return list(loops[:position]), list(loops[position:])
        trips *= sufficient_trips if loop.trips is None else loop.trips
    return list(loops), []
