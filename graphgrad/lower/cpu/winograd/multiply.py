"""Products of matrices in tiles of registers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from ....ir.loops import (
    Index,
    Statement,
    block,
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
    """A tile of registers: some rows of some vectors.

    Attributes
    ----------
    rows, vectors, lanes : int
    """

    rows: int
    vectors: int
    lanes: int

    @property
    def width(self) -> int:
        """Elements of a row."""
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
        Of at most that many rows.
    rows, terms : int
    left : callable
        Given a row and a term; its value is shared by the lanes.
    right : callable
        Given a term and a column of the panel.
    result : callable
        Given a row and a column, returns the buffer and the indices there.
    adds : bool
        Whether the result holds sums already, to be added to.
    at_a_time : int, optional
        Add up so many terms, and then these sums: rounding errors grow with the square root of the
        number of terms in a row. Takes twice as many registers.
    """
    most = panel.rows if at_a_time is None else panel.rows // 2
    tiles = -(-rows // most)
    height = -(-rows // tiles)
    whole, rest = divmod(rows, height)

    def tile(start: Index, height: int) -> Statement:
        return _Tile(panel, height, start, left, right, result).statement(terms, adds, at_a_time)

    parts = [serial(whole, lambda i: tile(i * height, height))]
    if rest:
        parts.append(tile(index(whole * height), rest))
    return sequence(*parts)


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
        chunks = -(-terms // at_a_time)
        length = -(-terms // chunks)

        def chunk(i: Index) -> Statement:
            count = length if terms % length == 0 else tirx.min(terms - i * length, length)
            return sequence(
                self._blank(sums),
                self._added(sums, i * length, count),
                self._each(lambda *at: store(totals, at, load(totals, at) + load(sums, at))),
            )

        chunks = -(-terms // length)
        body = [self._blank(totals), serial(chunks, chunk), self._stored(totals, adds)]
        return block("scratch", *body, buffers=[sums, totals])

    def _registers(self, name: str) -> Any:
        return registers(name, (self.height, self.panel.vectors, self.panel.lanes))

    def _each(self, body: Callable[[Index, Index, Index], Statement]) -> Statement:
        """Straight code for every vector of the tile, given row, vector and lane."""
        return unrolled(
            self.height,
            lambda i: unrolled(
                self.panel.vectors,
                lambda v: vectorized(self.panel.lanes, lambda lane: body(i, v, lane)),
            ),
        )

    def _blank(self, sums: Any) -> Statement:
        return self._each(lambda *at: store(sums, at, tirx.const(0, "float32")))

    def _added(self, sums: Any, first: Index, count: Any) -> Statement:
        def add(t: Index) -> Statement:
            def one(i: Index, v: Index, lane: Index) -> Statement:
                term = self.left(self.start + i, first + t) * self.right(
                    first + t, v * self.panel.lanes + lane
                )
                return store(sums, [i, v, lane], load(sums, [i, v, lane]) + term)

            return self._each(one)

        return serial(count, add)

    def _stored(self, sums: Any, adds: bool) -> Statement:
        def one(i: Index, v: Index, lane: Index) -> Statement:
            buffer, indices = self.result(self.start + i, v * self.panel.lanes + lane)
            value = load(sums, [i, v, lane])
            return store(buffer, indices, load(buffer, indices) + value if adds else value)

        return self._each(one)
