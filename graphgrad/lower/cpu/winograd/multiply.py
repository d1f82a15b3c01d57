"""The product of two matrices, computed tile by tile in registers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from ....ir.loops import (
    Index,
    Statement,
    block,
    ceil_div,
    index,
    load,
    registers,
    sequence,
    serial,
    store,
    unrolled,
    vectorized,
)


@dataclass(frozen=True)
class Panel:
    """The size of a register tile, which is also as wide as a panel of columns.

    Attributes
    ----------
    rows : int
        The most rows that registers have room for.
    vectors : int
        Vectors in a row.
    lanes : int
        Elements of a vector.
    """

    rows: int
    vectors: int
    lanes: int

    @property
    def width(self) -> int:
        """The number of elements of a row."""
        return self.vectors * self.lanes


def product(
    panel: Panel,
    rows: int,
    terms: int,
    left: Callable[[Index, Index], Any],
    right: Callable[[Index, Index], Any],
    result: Callable[[Index, Index], tuple[Any, list[Index]]],
    adds: bool = False,
    at_a_time: int | None = None,
) -> Statement:
    """The statement of ``result[i, j] = Σ left[i, t] · right[t, j]`` for one panel of columns.

    Parameters
    ----------
    panel : Panel
        The register tile. The product may have more rows, which are then cut into tiles.
    rows, terms : int
        The extents of i and of t.
    left : callable
        Given a row and a term; its value is shared by the lanes.
    right : callable
        Given a term and a column of the panel.
    result : callable
        Given a row and a column, returns the buffer and the indices there.
    adds : bool
        Whether the result holds sums already, to which the product is added.
    at_a_time : int, optional
        The terms of a run. Terms are added up run by run, and then the sums of all runs, because
        rounding errors grow with the square root of the number of terms added one after the other.
        This takes twice as many registers.
    """
    max_height = panel.rows if at_a_time is None else panel.rows // 2
    # Tiles of nearly equal height: as few as fit, and none much lower than the others.
    tiles = -(-rows // max_height)
    height = -(-rows // tiles)
    whole_tiles, remaining_rows = divmod(rows, height)

    def tile(start: Index, height: int) -> Statement:
        return _Tile(panel, height, start, left, right, result).statement(terms, adds, at_a_time)

    statements = [serial(whole_tiles, lambda i: tile(i * height, height))]
    if remaining_rows:
        statements.append(tile(index(whole_tiles * height), remaining_rows))
    return sequence(*statements)


def ragged_product(
    panel: Panel,
    rows: Any,
    terms: Any,
    left: Callable[[Index, Index], Any],
    right: Callable[[Index, Index], Any],
    result: Callable[[Index, Index], tuple[Any, list[Index]]],
    adds: bool = False,
) -> Statement:
    """The statement of a product as `product` states it, of extents that a kernel computes.

    All tiles are whole. So there must be up to ``panel.rows - 1`` more rows that can be read and
    stored, whatever they hold.
    """

    def tile(i: Index) -> Statement:
        start = i * panel.rows
        return _Tile(panel, panel.rows, start, left, right, result).statement(terms, adds, None)

    return serial(ceil_div(rows, panel.rows), tile)


@dataclass(frozen=True)
class _Tile:
    """Some rows of a product, one panel wide, from the row `start` on."""

    panel: Panel
    height: int
    start: Index
    left: Callable[[Index, Index], Any]
    right: Callable[[Index, Index], Any]
    result: Callable[[Index, Index], tuple[Any, list[Index]]]

    def statement(self, terms: int, adds: bool, at_a_time: int | None) -> Statement:
        """The statement that computes and stores the tile."""
        if at_a_time is None or at_a_time >= terms:
            sums = self._registers("sums")
            body = [self._blank(sums), self._added(sums, 0, terms), self._stored(sums, adds)]
            return block("scratch", *body, buffers=[sums])
        sums, totals = self._registers("sums"), self._registers("totals")
        runs = -(-terms // at_a_time)
        run_length = -(-terms // runs)

        def run(i: Index) -> Statement:
            terms_of_run = (
                run_length
                if terms % run_length == 0
                else tirx.min(terms - i * run_length, run_length)
            )
            return sequence(
                self._blank(sums),
                self._added(sums, i * run_length, terms_of_run),
                self._each(
                    lambda *element: store(
                        totals, element, load(totals, element) + load(sums, element)
                    )
                ),
            )

        # Equal runs may be fewer than asked for: rounding up the length can make one needless.
        runs = -(-terms // run_length)
        body = [self._blank(totals), serial(runs, run), self._stored(totals, adds)]
        return block("scratch", *body, buffers=[sums, totals])

    def _registers(self, name: str) -> Any:
        """New registers for the whole tile."""
        return registers(name, (self.height, self.panel.vectors, self.panel.lanes))

    def _each(self, body: Callable[[Index, Index, Index], Statement]) -> Statement:
        """Straight code for every vector of the tile, given row, vector and lane."""
        return unrolled(
            self.height,
            lambda row: unrolled(
                self.panel.vectors,
                lambda vector: vectorized(self.panel.lanes, lambda lane: body(row, vector, lane)),
            ),
        )

    def _blank(self, sums: Any) -> Statement:
        """The statement that sets registers to zero."""
        return self._each(lambda *element: store(sums, element, tirx.const(0, "float32")))

    def _added(self, sums: Any, first_term: Index, term_count: Any) -> Statement:
        """The statement that adds `term_count` terms, from `first_term` on, to registers."""

        def add_term(term_index: Index) -> Statement:
            def add_to_element(row: Index, vector: Index, lane: Index) -> Statement:
                addend = self.left(self.start + row, first_term + term_index) * self.right(
                    first_term + term_index, vector * self.panel.lanes + lane
                )
                return store(sums, [row, vector, lane], load(sums, [row, vector, lane]) + addend)

            return self._each(add_to_element)

        return serial(term_count, add_term)

    def _stored(self, sums: Any, adds: bool) -> Statement:
        """The statement that stores registers in the result, or adds them to it."""

        def store_element(row: Index, vector: Index, lane: Index) -> Statement:
            buffer, indices = self.result(self.start + row, vector * self.panel.lanes + lane)
            value = load(sums, [row, vector, lane])
            return store(buffer, indices, load(buffer, indices) + value if adds else value)

        return self._each(store_element)
