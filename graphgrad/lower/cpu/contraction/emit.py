"""The loop nest of a contraction, written out as its plan says.

    parts, tasks                      in parallel: along the sum, along the result
      blocks                          along the sum, such that what they read stays in the cache
        tiles                         along the result
          registers = 0
          terms                       along the sum
            rows, vectors, lanes      unrolled, vectorized: registers += factor · factor
          registers → result          or, with parts or blocks, added to partial sums

After unrolling, all accesses of the registers have constant indices. This is what lets the code
generator keep them in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from tvm import tirx
from tvm.tirx import ForKind

from ....ir.kernel_structure import linear_coefficient, substitute_values, uses
from ....ir.loops import block, loop, loops, sequence, variable
from ...kernels.contraction import Contraction, first_load, known
from ..pair_products import add_pair_product, attach_definitions
from ..tile_products import configured
from .elements import Element, Registers, each_element, registers_of
from .frame import Frame
from .matrices import products as products_of
from .matrices import register_rows
from .pack import Panels, filled, panels_of
from .plan import Loop, Plan
from .prefetch import prefetch_later_terms, prefetch_next_rows, prefetch_results
from .store import ResultStore

_ForElement = Callable[[Element], Any]
"""From an element of a tile to its value, or to the statement that is run for it."""


def emit(contraction: Contraction, plan: Plan, result_store: ResultStore) -> Any:
    """The statement that computes a contraction.

    Parameters
    ----------
    contraction : Contraction
    plan : Plan
    result_store : ResultStore
        Stores the results, through an epilogue if there is one.
    """
    kind = ForKind.PARALLEL if plan.parallel else ForKind.SERIAL
    frame = Frame(contraction, plan)
    panels = {factor: panels_of(frame, factor, axis) for factor, axis in plan.packed}
    shared = [factor_panels for factor_panels in panels.values() if not factor_panels.first]
    fills = [filled(contraction, plan, factor_panels, kind) for factor_panels in shared]
    statement, buffers = _Emitter(frame, result_store, panels, kind).nest()
    if contraction.are_pairs and not plan.matrices:
        statement = attach_definitions(statement)
    return block(
        "contraction",
        *fills,
        statement,
        buffers=[*(factor_panels.buffer for factor_panels in shared), *buffers],
    )


class _Emitter:
    """The writer of the loops of one contraction; panels that tasks share are filled already."""

    def __init__(
        self, frame: Frame, result_store: ResultStore, panels: dict[int, Panels], kind: ForKind
    ) -> None:
        contraction, plan = frame.contraction, frame.plan
        self._frame = frame
        self._contraction = contraction
        self._plan = plan
        self._sink = result_store
        self._panels = panels
        self._other = next(  # the factor that is the same in all lanes
            (factor for factor in (0, 1) if contraction.step(factor, plan.vector) == 0), None
        )
        self._held = self._held_vectors()
        self._kind = kind

    def nest(self) -> tuple[Any, list[Any]]:
        """The loops over all tasks, and the buffers that must exist around them."""
        plan, frame = self._plan, self._frame
        parallel_loops = [*plan.parts, *plan.tasks]
        if not plan.accumulates:
            body = self._task(frame.around(plan.tiles, self._tile(frame, None, [])))
            return frame.in_parallel(parallel_loops, body, self._kind), []
        # Parts outlive their tasks: their sums are added up after the parallel loop, so each tile
        # of each part has a place of its own. Blocks alone are done with when their task is.
        scope = [*parallel_loops, *plan.tiles] if plan.parts else list(plan.tiles)
        sums = self._partial_sums(scope)
        body = frame.around([*plan.blocks, *plan.tiles], self._tile(frame, sums, scope))
        body = self._task(body)
        if plan.blocks:
            clear_frame = frame.renewed(plan.tiles)
            body = sequence(
                clear_frame.around(plan.tiles, self._clear(clear_frame, sums, scope)), body
            )
        if not plan.parts:
            store_frame = frame.renewed(plan.tiles)
            body = sequence(
                body, store_frame.around(plan.tiles, self._store_sums(store_frame, sums, scope))
            )
            return frame.in_parallel(
                parallel_loops, block("task", body, buffers=[sums]), self._kind
            ), []
        store_frame = Frame(self._contraction, plan)
        store_nest = store_frame.in_parallel(
            [*plan.tasks, *plan.tiles], self._store_sums(store_frame, sums, scope), self._kind
        )
        return sequence(frame.in_parallel(parallel_loops, body, self._kind), store_nest), [sums]

    def _task(self, body: Any) -> Any:
        """A statement that computes tiles, with the panels and registers that are its own."""
        plan, buffers = self._plan, []
        if plan.matrices:
            pairs = plan.length(plan.terms[-1].axis)
            body = configured(register_rows(plan.rows), plan.lanes, pairs, body)
            buffers.append(self._gathered)
        for panels in self._panels.values():
            if panels.first:
                fill = filled(self._contraction, plan, panels, ForKind.SERIAL)
                body = sequence(fill, body)
                buffers.append(panels.buffer)
        return block("task", body, buffers=buffers) if buffers else body

    def _partial_sums(self, scope: Sequence[Loop]) -> Any:
        """The buffer with a tile of sums for each trip of the loops in `scope`."""
        lengths = [length for _, length in self._plan.rows]
        shape = [*(loop.trips for loop in scope), *lengths, self._plan.width]
        return tirx.decl_buffer(shape, self._contraction.dtype, "partial_sums")

    def _tile(self, frame: Frame, sums: Any, scope: Sequence[Loop]) -> Any:
        """The statement that computes one tile, and stores it or adds it to partial sums.

        `sums` is the buffer of partial sums, indexed by the loops in `scope`; None if there is
        none.
        """
        plan, dtype = self._plan, self._contraction.dtype
        if plan.matrices:
            return self._tile_of_matrices(frame, sums, scope)
        registers = registers_of(plan, dtype)
        zero = tirx.const(0, dtype)

        def add(element: Element) -> Any:
            return element.keep(self._added(frame, element))

        steps = [
            each_element(plan, lambda element: element.keep(zero), registers=registers),
            self._terms(frame, self._term(frame, add, registers)),
        ]
        if plan.fetches_results:
            steps.insert(0, prefetch_results(plan, frame, self._sink))
        buffers = [*registers.buffers, *([self._held] if plan.held is not None else [])]
        if sums is not None:
            add_to_sums = self._add_element(frame, sums, scope)
            steps.append(each_element(plan, add_to_sums, registers=registers))
        elif self._stores_vectors() and not (self._sink.once and len(buffers) > 1):
            steps.append(self._store_vectors(frame, _held, ForKind.UNROLLED, registers))
        else:
            steps.append(each_element(plan, self._gather, registers=registers))
            steps.append(self._store(frame, self._in_gathered, ForKind.UNROLLED))
            buffers.append(self._gathered)
        return block("tile", *steps, buffers=buffers)

    def _tile_of_matrices(self, frame: Frame, sums: Any, scope: Sequence[Loop]) -> Any:
        """The same for a tile in registers for matrices, which are read from memory alone."""

        def read(factor: int, rows: Sequence[Any], column: Any) -> Any:
            return first_load(self._factor(frame, factor, rows, column))

        panel = 1 if self._other == 0 else 0
        products = products_of(self._plan, frame, panel, read, self._gathered)
        if sums is None:
            return sequence(products, self._store(frame, self._in_gathered, ForKind.SERIAL))
        add = self._add_element(frame, sums, scope)

        def add_to_sums(element: Element) -> Any:
            return add(replace(element, register=self._in_gathered(element)))

        return sequence(products, each_element(self._plan, add_to_sums, ForKind.SERIAL))

    @cached_property
    def _gathered(self) -> Any:
        """A buffer for a whole tile.

        Registers may be several buffers, each of which would need a statement of its own to store
        its elements. From this buffer one statement stores all of them, so that a later pass sees
        that each is stored once.
        """
        lengths = [length for _, length in self._plan.rows]
        return tirx.decl_buffer([*lengths, self._plan.width], self._contraction.dtype, "tile")

    def _gather(self, element: Element) -> Any:
        """The statement that saves an element in that buffer."""
        return tirx.BufferStore(self._gathered, element.register, [*element.rows, element.column])

    def _in_gathered(self, element: Element) -> Any:
        return tirx.BufferLoad(self._gathered, [*element.rows, element.column])

    def _terms(self, frame: Frame, term: Any) -> Any:
        """The loops that add all terms to a tile, and prefetch what is read next."""
        plan = self._plan
        term = sequence(*prefetch_later_terms(self._contraction, plan, frame), term)
        if plan.held is not None:
            hold, around = self._hold(frame), partial(frame.around, plan.terms[-1:], unrolled=1)
            held = around(sequence(hold, term))
            if plan.held.reduced:
                held = sequence(hold, around(term))
            return frame.around(plan.terms[:-1], held)
        if plan.fetched is None:
            return frame.around(plan.terms, term, plan.unrolled)
        line_loop = frame.around(plan.terms[-1:], term)
        fetch = prefetch_next_rows(self._contraction, plan, frame)
        return frame.around(plan.terms[:-1], sequence(fetch, line_loop))

    def _held_vectors(self) -> Any:
        """A buffer for what is loaded in vectors to multiply by their lanes; a row is its last."""
        plan = self._plan
        lengths = [length for _, length in plan.rows]
        if plan.held is not None and plan.held.reduced:
            lengths.append(plan.terms[-1].trips or 1)
        return tirx.decl_buffer(lengths, self._contraction.dtype, "held")

    def _hold(self, frame: Frame) -> Any:
        """The statement that loads these vectors."""
        plan = self._plan
        assert plan.held is not None and self._other is not None
        variables = [variable("row", frame.dtype) for _ in self._held.shape]
        rows = variables[: len(plan.rows)]
        ahead = {}
        if plan.held.reduced:
            ahead = {plan.held.var: frame.line(plan.held) + variables[-1]}
        value = self._factor(frame, self._other, rows, frame.number(0), ahead)
        *outer, (lane, lanes) = zip(variables, map(int, self._held.shape), strict=True)
        load = tirx.BufferStore(self._held, value, variables)
        return loops(outer, loop(lane, lanes, load, ForKind.VECTORIZED), ForKind.UNROLLED)

    def _term(self, frame: Frame, add: _ForElement, registers: Registers) -> Any:
        """The statement that adds a term to each element of a tile.

        Terms that lie outside of a factor are left out. Most often all rows lie inside, which one
        condition finds out; only where it fails has each row a condition of its own.
        """
        distances = self._contraction.distances
        unguarded = each_element(self._plan, add, registers=registers)
        if not distances:
            return unguarded
        rows = [axis for axis, _ in self._plan.rows]
        # A term is inside of its factors where all distances are nonnegative. Some depend on the
        # row; the others are the same for the whole tile.
        row_distances = [
            distance for distance in distances if any(uses(distance, axis.var) for axis in rows)
        ]
        tile_distances = [
            distance
            for distance in distances
            if not any(distance is row_distance for row_distance in row_distances)
        ]

        def row_is_inside(row_positions: Sequence[Any]) -> Any:
            indices = frame.read(row_positions, frame.number(0))
            return _all_nonnegative(
                substitute_values(distance, indices) for distance in row_distances
            )

        term = unguarded
        if row_distances:
            all_rows_inside = _all_nonnegative(
                self._lower_bound(frame, distance) for distance in row_distances
            )
            row_by_row = each_element(self._plan, add, guard=row_is_inside, registers=registers)
            term = tirx.IfThenElse(all_rows_inside, unguarded, row_by_row)
        if tile_distances:
            indices = frame.read([frame.number(0) for _ in rows], frame.number(0))
            term = tirx.IfThenElse(
                _all_nonnegative(
                    substitute_values(distance, indices) for distance in tile_distances
                ),
                term,
                None,
            )
        return term

    def _lower_bound(self, frame: Frame, distance: Any) -> Any:
        """The least value of an affine function of the axes over all rows of a tile."""
        # The function is affine, so its minimum lies at the first or at the last row.
        lowest_rows = []
        for axis, length in self._plan.rows:
            coefficient = linear_coefficient(distance, axis.var)
            assert coefficient is not None
            lowest_rows.append(frame.number(0 if coefficient >= 0 else length - 1))
        return substitute_values(distance, frame.read(lowest_rows, frame.number(0)))

    def _added(self, frame: Frame, element: Element) -> Any:
        """An element's sum with one more term, the product of both factors."""
        first, second = (
            self._held_lane(frame, element.rows)
            if self._plan.held is not None and number == self._other
            else self._factor(frame, number, element.rows, element.column)
            for number in (0, 1)
        )
        if self._contraction.are_pairs:
            return add_pair_product(element.register, first, second)
        return element.register + first * second

    def _held_lane(self, frame: Frame, rows: Sequence[Any]) -> Any:
        """One element of what is loaded in vectors."""
        plan = self._plan
        assert plan.held is not None
        lane = [frame.trip(plan.terms[-1])] if plan.held.reduced else []
        return tirx.BufferLoad(self._held, [*rows, *lane])

    def _factor(
        self,
        frame: Frame,
        number: int,
        rows: Sequence[Any],
        column: Any,
        terms: Mapping[Any, Any] | None = None,
    ) -> Any:
        """A factor at a position of the tile, read from panels where there are any.

        `terms` are indices along the sum, if they are not those of the loops.
        """
        indices = frame.read(rows, column) | dict(terms or {})
        if number not in self._panels:
            return substitute_values(self._contraction.factors[number], indices)
        panels, row_axes = self._panels[number], [axis.var for axis, _ in self._plan.rows]
        positions = {self._plan.vector.var: column, **dict(zip(row_axes, rows, strict=True))}
        if self._plan.matrices:
            positions[self._plan.terms[-1].axis.var] = frame.trip(self._plan.terms[-1])
        tile = frame.trip(self._plan.tiles[-1]) if panels.first else frame.tile_of(panels.axis)
        return panels.load(indices, tile, positions[panels.axis.var])

    def _clear(self, frame: Frame, sums: Any, scope: Sequence[Loop]) -> Any:
        """The statement that sets the partial sums of a tile to zero."""
        zero = tirx.const(0, self._contraction.dtype)
        tile_position = [frame.trip(loop) for loop in scope]
        return each_element(
            self._plan,
            lambda element: tirx.BufferStore(
                sums, zero, [*tile_position, *element.rows, element.column]
            ),
        )

    def _add_element(self, frame: Frame, sums: Any, scope: Sequence[Loop]) -> _ForElement:
        """The function that adds an element to the partial sums.

        Without blocks each partial sum gets one value only, which is stored over what is there.
        """
        tile_position = [frame.trip(loop) for loop in scope]

        def add(element: Element) -> Any:
            position, value = [*tile_position, *element.rows, element.column], element.register
            if self._plan.blocks:
                value = tirx.BufferLoad(sums, position) + value
            return tirx.BufferStore(sums, value, position)

        return add

    def _store_sums(self, frame: Frame, sums: Any, scope: Sequence[Loop]) -> Any:
        """The statement that adds up the partial sums of a tile, part after part, and stores it."""
        # Parts are added in a fixed order, so that the result does not depend on the threads.
        trips_of_parts: list[dict[Loop, int]] = [{}]
        for part in self._plan.parts:
            assert part.trips is not None
            trips_of_parts = [
                {**trips, part: trip} for trips in trips_of_parts for trip in range(part.trips)
            ]

        def total(element: Element) -> Any:
            value: Any = None
            for trips in trips_of_parts:
                tile_position = [
                    frame.number(trips[loop]) if loop in trips else frame.trip(loop)
                    for loop in scope
                ]
                term = tirx.BufferLoad(sums, [*tile_position, *element.rows, element.column])
                value = term if value is None else value + term
            return value

        return self._store(frame, total, ForKind.SERIAL)

    def _store(self, frame: Frame, value: _ForElement, kind: ForKind) -> Any:
        """The statement that stores a tile that is in memory; `kind` is that of loops over rows."""

        def moved(element: Element) -> Any:
            """The value of a row, which lies further on where all rows were moved back."""
            rows = [
                row + (frame.start(axis) - frame.first(axis)) if self._plan.is_ragged(axis) else row
                for (axis, _), row in zip(self._plan.rows, element.rows, strict=True)
            ]
            return value(replace(element, rows=rows))

        read = moved if self._plan.matrices else value
        if self._stores_vectors():
            return self._store_vectors(frame, read, kind)
        return self._store_elements(frame, read)

    def _stores_vectors(self) -> bool:
        """Whether the result is stored vector by vector, not element by element."""
        # The last vectors of a ragged axis store elements again that the tile before has stored.
        plan = self._plan
        may_repeat = not (self._sink.once and plan.is_ragged(plan.vector))
        return may_repeat and self._sink.step(plan.vector) == 1

    def _store_vectors(
        self, frame: Frame, value: _ForElement, kind: ForKind, registers: Registers | None = None
    ) -> Any:
        """The statement that stores a tile, vector by vector.

        At a ragged end, the first columns are some that the tile before has stored: with the same
        values.
        """

        def store(element: Element) -> Any:
            indices = self._indices(frame, element.rows)
            indices[self._plan.vector.var] = frame.first(self._plan.vector) + element.column
            return self._guarded(frame, element.rows, self._sink.store(indices, value(element)))

        return each_element(self._plan, store, kind, registers=registers)

    def _store_elements(self, frame: Frame, value: _ForElement) -> Any:
        """The statement that stores a tile that is in memory, each element exactly once."""
        plan = self._plan
        rows = [variable("row", frame.dtype) for _ in plan.rows]
        column = variable("column", frame.dtype)
        # At a ragged end the columns that were computed begin before the tile's start. Only those
        # from its start on are stored; they lie further on in the buffer, by the difference.
        index = frame.start(plan.vector) + column
        tile_column = index - frame.first(plan.vector) if plan.is_ragged(plan.vector) else column
        indices = self._indices(frame, rows)
        indices[plan.vector.var] = index
        body = self._guarded(
            frame, rows, self._sink.store(indices, value(Element(rows, tile_column)))
        )
        if plan.is_ragged(plan.vector):
            body = tirx.IfThenElse(index < frame.number(known(plan.vector)), body, None)
        lengths = [length for _, length in plan.rows]
        row_loops = [*zip(rows, lengths, strict=True)]
        # The axis along which the results lie side by side in memory becomes the inner loop.
        if self._sink.step(plan.vector) == 1:
            return loops([*row_loops, (column, plan.width)], body)
        return loops([(column, plan.width), *row_loops], body)

    def _indices(self, frame: Frame, rows: Sequence[Any]) -> dict[Any, Any]:
        """The indices of a row's results, by variable; along the vector axis, that of the tile."""
        indices = {axis.var: frame.start(axis) for axis in self._contraction.spatial}
        for (axis, _), row in zip(self._plan.rows, rows, strict=True):
            indices[axis.var] = indices[axis.var] + row
        return indices

    def _guarded(self, frame: Frame, rows: Sequence[Any], body: Any) -> Any:
        """The statement under the condition that the row lies within the result."""
        for (axis, _), row in zip(self._plan.rows, rows, strict=True):
            if self._plan.is_ragged(axis):
                extent = self._contraction.extent(axis)
                extent = frame.number(extent) if isinstance(extent, int) else extent
                body = tirx.IfThenElse(frame.start(axis) + row < extent, body, None)
        return body


def _held(element: Element) -> Any:
    """The value of an element that is still in its register."""
    return element.register


def _all_nonnegative(values: Iterable[Any]) -> Any:
    """The condition that no value is negative."""
    return tirx.all(*[value >= 0 for value in values])
