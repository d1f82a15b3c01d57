"""The loop nest of a contraction, written out as its plan says.

    tasks, parts                      in parallel: of the result, of the sum
      blocks                          of the sum, such that what they read stays in the cache
        tiles                         of the result
          registers = 0
          terms                       of the sum
            rows, vectors, lanes      unrolled, vectorized: registers += factor · factor
          registers → result          or, with parts or blocks, added to partial sums

After unrolling all accesses of the registers have constant indices; this is what lets the code
generator keep them in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tvm import tirx
from tvm.tirx import ForKind

from ....ir.kernel_structure import linear_coefficient, substitute_values, uses
from ....ir.loops import block, loops, sequence, variable
from ...kernels.contraction import Contraction, known
from .elements import Place, Registers, each_element, registers_of
from .frame import Frame
from .pack import Panels, filled, panels_of
from .plan import Loop, Plan
from .prefetch import prefetch_later_terms, prefetch_next_rows
from .store import ResultStore

_Element = Callable[[Place], Any]
"""From a place in a tile to the value there, or to the statement that is done for it."""


def emit(contraction: Contraction, plan: Plan, result_store: ResultStore) -> Any:
    """The statement that computes a contraction.

    Parameters
    ----------
    contraction : Contraction
    plan : Plan
    result_store : ResultStore
        What becomes of the results.
    """
    kind = ForKind.PARALLEL if plan.parallel else ForKind.SERIAL
    panels = {factor: panels_of(contraction, plan, factor, axis) for factor, axis in plan.packed}
    emitter = _Emitter(contraction, plan, result_store, panels, kind)
    fills = [filled(contraction, plan, one, kind) for one in panels.values()]
    statement, buffers = emitter.nest()
    return block(
        "contraction",
        *fills,
        statement,
        buffers=[*(one.buffer for one in panels.values()), *buffers],
    )


class _Emitter:
    """Writes the loops around one contraction, whose copies of factors are there already."""

    def __init__(
        self,
        contraction: Contraction,
        plan: Plan,
        result_store: ResultStore,
        panels: dict[int, Panels],
        kind: ForKind,
    ) -> None:
        self._contraction = contraction
        self._plan = plan
        self._sink = result_store
        self._panels = panels
        self._kind = kind

    def nest(self) -> tuple[Any, list[Any]]:
        """The loops over all tasks, and the buffers that they need."""
        plan = self._plan
        frame = Frame(self._contraction, plan)
        across = [*plan.parts, *plan.tasks]
        if not plan.accumulates:
            body = frame.around(plan.tiles, self._tile(frame, None, []))
            return frame.in_parallel(across, body, self._kind), []
        scope = [*across, *plan.tiles] if plan.parts else list(plan.tiles)
        sums = self._partial_sums(scope)
        body = frame.around([*plan.blocks, *plan.tiles], self._tile(frame, sums, scope))
        if plan.blocks:
            clear = frame.renewed(plan.tiles)
            body = sequence(clear.around(plan.tiles, self._clear(clear, sums, scope)), body)
        if not plan.parts:
            last = frame.renewed(plan.tiles)
            body = sequence(body, last.around(plan.tiles, self._store_sums(last, sums, scope)))
            return frame.in_parallel(across, block("task", body, buffers=[sums]), self._kind), []
        last = Frame(self._contraction, plan)
        total = last.in_parallel(
            [*plan.tasks, *plan.tiles], self._store_sums(last, sums, scope), self._kind
        )
        return sequence(frame.in_parallel(across, body, self._kind), total), [sums]

    def _partial_sums(self, scope: Sequence[Loop]) -> Any:
        lengths = [length for _, length in self._plan.rows]
        shape = [*(one.trips for one in scope), *lengths, self._plan.width]
        return tirx.decl_buffer(shape, self._contraction.dtype, "partial_sums")

    def _tile(self, frame: Frame, sums: Any, scope: Sequence[Loop]) -> Any:
        """The statement that computes one tile, and hands it over or adds it to partial sums."""
        plan, dtype = self._plan, self._contraction.dtype
        registers = registers_of(plan, dtype)
        zero = tirx.const(0, dtype)

        def add(place: Place) -> Any:
            return place.keep(place.register + self._product(frame, place))

        steps = [
            each_element(plan, lambda place: place.keep(zero), registers=registers),
            self._terms(frame, self._term(frame, add, registers)),
        ]
        buffers = list(registers.buffers)
        if sums is not None:
            adding = self._add_element(frame, sums, scope)
            steps.append(each_element(plan, adding, registers=registers))
        elif self._stores_vectors() and not (self._sink.once and len(buffers) > 1):
            steps.append(self._store_vectors(frame, _held, ForKind.UNROLLED, registers))
        else:
            tile, put, got = self._gathered()
            steps.append(each_element(plan, put, registers=registers))
            if self._stores_vectors():
                steps.append(self._store_vectors(frame, got, ForKind.UNROLLED))
            else:
                steps.append(self._store_elements(frame, got))
            buffers.append(tile)
        return block("tile", *steps, buffers=buffers)

    def _gathered(self) -> tuple[Any, _Element, _Element]:
        """A buffer for a whole tile, and what puts registers there and gets them back.

        Then one statement can store all elements, from which it is seen that each is stored once.
        """
        plan = self._plan
        lengths = [length for _, length in plan.rows]
        tile = tirx.decl_buffer([*lengths, plan.width], self._contraction.dtype, "tile")

        def put(place: Place) -> Any:
            return tirx.BufferStore(tile, place.register, [*place.rows, place.column])

        def got(place: Place) -> Any:
            return tirx.BufferLoad(tile, [*place.rows, place.column])

        return tile, put, got

    def _terms(self, frame: Frame, term: Any) -> Any:
        """The loops that add all terms to a tile, and fetch what is read next."""
        plan = self._plan
        term = sequence(*prefetch_later_terms(self._contraction, plan, frame), term)
        if plan.fetched is None:
            return frame.around(plan.terms, term, plan.unrolled)
        line = frame.around(plan.terms[-1:], term)
        fetch = prefetch_next_rows(self._contraction, plan, frame)
        return frame.around(plan.terms[:-1], sequence(fetch, line))

    def _term(self, frame: Frame, add: _Element, registers: Registers) -> Any:
        """The statement that adds a term to each element of a tile, where it is inside the factors.

        Most often it is for all rows, which is asked once. Otherwise each row asks for itself.
        """
        distances = self._contraction.distances
        plain = each_element(self._plan, add, registers=registers)
        if not distances:
            return plain
        rows = [axis for axis, _ in self._plan.rows]
        own = [one for one in distances if any(uses(one, axis.var) for axis in rows)]
        common = [one for one in distances if not any(one is other for other in own)]

        def inside(places: Sequence[Any]) -> Any:
            at = frame.read(places, frame.number(0))
            return _all_nonnegative(substitute_values(one, at) for one in own)

        term = plain
        if own:
            closest = _all_nonnegative(self._lower_bound(frame, one) for one in own)
            single = each_element(self._plan, add, guard=inside, registers=registers)
            term = tirx.IfThenElse(closest, plain, single)
        if common:
            at = frame.read([frame.number(0) for _ in rows], frame.number(0))
            term = tirx.IfThenElse(
                _all_nonnegative(substitute_values(one, at) for one in common), term, None
            )
        return term

    def _lower_bound(self, frame: Frame, distance: Any) -> Any:
        """The least value of an affine function of the axes over all rows of a tile."""
        places = []
        for axis, length in self._plan.rows:
            factor = linear_coefficient(distance, axis.var)
            assert factor is not None
            places.append(frame.number(0 if factor >= 0 else length - 1))
        return substitute_values(distance, frame.read(places, frame.number(0)))

    def _product(self, frame: Frame, place: Place) -> Any:
        plan, rows, column = self._plan, place.rows, place.column
        at = frame.read(rows, column)
        row_axes = [axis.var for axis, _ in plan.rows]
        factors = []
        for number, factor in enumerate(self._contraction.factors):
            if number in self._panels:
                panels = self._panels[number]
                places = {plan.vector.var: column, **dict(zip(row_axes, rows, strict=True))}
                factors.append(panels.at(at, frame.tile_of(panels.axis), places[panels.axis.var]))
            else:
                factors.append(substitute_values(factor, at))
        return factors[0] * factors[1]

    def _clear(self, frame: Frame, sums: Any, scope: Sequence[Loop]) -> Any:
        zero = tirx.const(0, self._contraction.dtype)
        place = [frame.tile(one) for one in scope]
        return each_element(
            self._plan, lambda one: tirx.BufferStore(sums, zero, [*place, *one.rows, one.column])
        )

    def _add_element(self, frame: Frame, sums: Any, scope: Sequence[Loop]) -> _Element:
        """The statement that adds an element to the partial sums; an only one is stored."""
        tile = [frame.tile(one) for one in scope]

        def add(place: Place) -> Any:
            at, value = [*tile, *place.rows, place.column], place.register
            if self._plan.blocks:
                value = tirx.BufferLoad(sums, at) + value
            return tirx.BufferStore(sums, value, at)

        return add

    def _store_sums(self, frame: Frame, sums: Any, scope: Sequence[Loop]) -> Any:
        """The statement that adds up a tile's partial sums, part after part, and hands it over."""
        parts: list[dict[Loop, int]] = [{}]
        for one in self._plan.parts:
            assert one.trips is not None
            parts = [{**chosen, one: trip} for chosen in parts for trip in range(one.trips)]

        def total(place: Place) -> Any:
            value: Any = None
            for chosen in parts:
                tile = [
                    frame.number(chosen[one]) if one in chosen else frame.tile(one) for one in scope
                ]
                term = tirx.BufferLoad(sums, [*tile, *place.rows, place.column])
                value = term if value is None else value + term
            return value

        if self._stores_vectors():
            return self._store_vectors(frame, total, ForKind.SERIAL)
        return self._store_elements(frame, total)

    def _stores_vectors(self) -> bool:
        """Whether vectors of the result are stored as such."""
        plan = self._plan
        whole = not (self._sink.once and plan.is_ragged(plan.vector))
        return whole and self._sink.step(plan.vector) == 1

    def _store_vectors(
        self, frame: Frame, value: _Element, kind: ForKind, registers: Registers | None = None
    ) -> Any:
        """The statement that hands over a tile, vector by vector.

        The last columns may be those of the tile before again: the same values.
        """

        def store(place: Place) -> Any:
            at = self._indices(frame, place.rows)
            at[self._plan.vector.var] = frame.first_column() + place.column
            return self._guarded(frame, place.rows, self._sink.store(at, value(place)))

        return each_element(self._plan, store, kind, registers=registers)

    def _store_elements(self, frame: Frame, value: _Element) -> Any:
        """The statement that hands over a tile that is in memory, each element once."""
        plan = self._plan
        rows = [variable("row", frame.dtype) for _ in plan.rows]
        column = variable("column", frame.dtype)
        index = frame.start(plan.vector) + column
        behind = index - frame.first_column() if plan.is_ragged(plan.vector) else column
        at = self._indices(frame, rows)
        at[plan.vector.var] = index
        body = self._guarded(frame, rows, self._sink.store(at, value(Place(rows, behind))))
        if plan.is_ragged(plan.vector):
            body = tirx.IfThenElse(index < frame.number(known(plan.vector)), body, None)
        lengths = [length for _, length in plan.rows]
        nest = [*zip(rows, lengths, strict=True)]
        if self._sink.step(plan.vector) == 1:
            return loops([*nest, (column, plan.width)], body)
        return loops([(column, plan.width), *nest], body)

    def _indices(self, frame: Frame, rows: Sequence[Any]) -> dict[Any, Any]:
        """The indices, along all axes but that of vectors, of a row's results."""
        at = {axis.var: frame.start(axis) for axis in self._contraction.spatial}
        for (axis, _), row in zip(self._plan.rows, rows, strict=True):
            at[axis.var] = at[axis.var] + row
        return at

    def _guarded(self, frame: Frame, rows: Sequence[Any], body: Any) -> Any:
        """A statement that is done only for rows that the result has."""
        for (axis, _), row in zip(self._plan.rows, rows, strict=True):
            if self._plan.is_ragged(axis):
                extent = self._contraction.extent(axis)
                extent = frame.number(extent) if isinstance(extent, int) else extent
                body = tirx.IfThenElse(frame.start(axis) + row < extent, body, None)
        return body


def _held(place: Place) -> Any:
    return place.register


def _all_nonnegative(values: Iterable[Any]) -> Any:
    return tirx.all(*[value >= 0 for value in values])
