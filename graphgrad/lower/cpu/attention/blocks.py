"""The sizes of an attention and of its blocks, and what its kernels have in common.

A task keeps the scores of a block of queries and a block of keys in its core's cache, with queries
in the lanes of vectors: what is known of a query, such as the maximum of its scores, is a part of a
vector too, and nothing is added up across lanes. The factors that lanes share are read where they
are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from ....ir.loops import (
    Index,
    Statement,
    block,
    index,
    load,
    serial,
    store,
    unrolled,
    vectorized,
)
from ..register_transpose import transpose_matrix
from ..tuning import Processor
from ..winograd.multiply import Panel, product, ragged_product

DTYPE = "float32"

_MANY_REGISTERS = 32
_WIDE, _NARROW = (4, 3, 5, 2, 1), (2, 3, 1)
"""Vectors of a tile's row, the best first, where there are many registers and where there are not:
a tile's loads and multiply-adds are balanced where it is about as high as wide."""

_MAX_KEYS = 96
"""Keys of a block at most: the scores are to stay in the nearest cache, or near it."""

_SPARE_REGISTERS = 2
"""Registers of a tile that hold neither sums nor a vector of each factor's columns."""

Place = Callable[[Index], tuple[Any, list[Index]]]
"""From a column to a buffer, and the indices there."""


@dataclass(frozen=True)
class Attention:
    """The sizes of an attention, whose tensors are (batch, heads, positions, features).

    Attributes
    ----------
    batch, heads, shared_heads : int
        Heads of queries, and those of keys and values, which they share in groups.
    queries, keys, features, value_features : int
    scale : float
    offset : int or None
        Query i attends keys up to i + offset; None where it attends all.
    bias : tuple of int or None
        The shape of what is added to the scores, whose extents may be 1.
    """

    batch: int
    heads: int
    shared_heads: int
    queries: int
    keys: int
    features: int
    value_features: int
    scale: float
    offset: int | None = None
    bias: tuple[int, ...] | None = None

    @property
    def group(self) -> int:
        """How many heads of queries share one of keys and values."""
        return self.heads // self.shared_heads


@dataclass(frozen=True)
class Blocks:
    """The blocks of an attention on a processor."""

    problem: Attention
    processor: Processor

    @property
    def lanes(self) -> int:
        """Elements of a vector."""
        return self.processor.lanes(DTYPE)

    @property
    def width(self) -> int:
        """Queries of a block, but for the last one."""
        return self._row_vectors[0] * self.lanes

    @property
    def count(self) -> int:
        """Blocks of queries."""
        return -(-self.problem.queries // self.width)

    def per_size(self, number: Index, body: Callable[[int], Statement]) -> Statement:
        """What is done for a block of queries of a number, given how many queries it has."""
        last = self.problem.queries - (self.count - 1) * self.width
        if self.count == 1 or last == self.width:
            return body(last)
        return tirx.IfThenElse(number < self.count - 1, body(self.width), body(last))

    def scores(self, queries: int) -> Panel:
        """The register tile of scores, keys by queries."""
        return self._panel(-(-queries // self.lanes))

    def along(self, features: int) -> Panel:
        """The register tile of a product whose columns are features."""
        vectors = features // self.lanes
        return self._panel(next(n for n in self._row_vectors if vectors % n == 0))

    def keys_at_a_time(self, tile: Panel) -> int:
        """Keys of a block, a multiple of the height of the tile of scores."""
        keys = self.problem.keys
        even = -(-keys // -(-keys // _MAX_KEYS))
        return -(-even // tile.rows) * tile.rows

    def attended(self, first: Index, queries: int) -> Any:
        """How many keys, counted from the first one, some query of a block may attend."""
        keys = index(self.problem.keys)
        if self.problem.offset is None:
            return keys
        return tirx.max(tirx.min(first + (queries + self.problem.offset), keys), index(0))

    @property
    def _row_vectors(self) -> tuple[int, ...]:
        return _WIDE if self.processor.registers >= _MANY_REGISTERS else _NARROW

    def _panel(self, vectors: int) -> Panel:
        rows = (self.processor.registers - vectors - _SPARE_REGISTERS) // vectors
        return Panel(rows, vectors, self.lanes)


@dataclass(frozen=True)
class Rows:
    """The rows of one head in a buffer."""

    buffer: Any
    batch: Index
    head: Index

    def at(self, row: Index, column: Index) -> tuple[Any, list[Index]]:
        """The place of an element."""
        return self.buffer, [self.batch, self.head, row, column]

    def value(self, row: Index, column: Index) -> Any:
        """The value of an element."""
        return load(*self.at(row, column))

    def from_row(self, first: Index, last: Index | None = None) -> Callable[[Index, Index], Any]:
        """The rows from one on; past the last, where one is given, that one again."""
        if last is None:
            return lambda row, column: self.value(first + row, column)
        return lambda row, column: self.value(tirx.min(first + row, last), column)


def transposed_rows(rows: Rows, first: Index, count: int, panel: Panel, target: Any) -> Statement:
    """A statement that stores rows as columns of `target`, which is one panel wide.

    Parameters
    ----------
    rows : Rows
    first : Index
        The first row.
    count : int
        Of rows; the last one is repeated in the columns that are left.
    panel : Panel
    target : Buffer
    """
    last = first + (count - 1)
    return transpose_matrix(
        panel.width,
        int(target.shape[0]),
        panel.lanes,
        lambda row, column: rows.at(tirx.min(first + row, last), column),
        lambda row, column: (target, [column, row]),
    )


def each_vector(rows: Any, panel: Panel, body: Callable[[Index, Index], Statement]) -> Statement:
    """Loops over the elements of rows that are one panel wide, given row and column."""
    return serial(
        rows,
        lambda row: unrolled(
            panel.vectors,
            lambda vector: vectorized(
                panel.lanes, lambda lane: body(row, vector * panel.lanes + lane)
            ),
        ),
    )


def scaled(buffer: Any, panel: Panel, factor: float) -> Statement:
    """A statement that multiplies a buffer, one panel wide, by a number."""

    def element(row: Index, column: Index) -> Statement:
        value = load(buffer, [row, column]) * tirx.const(factor, DTYPE)
        return store(buffer, [row, column], value)

    return each_vector(int(buffer.shape[0]), panel, element)


def along_row(columns: int, lanes: int, body: Callable[[Index], Statement]) -> Statement:
    """Loops over the elements of a row, given the column."""
    return serial(
        columns // lanes,
        lambda vector: vectorized(lanes, lambda lane: body(vector * lanes + lane)),
    )


def copied(columns: int, lanes: int, source: Place, target: Place) -> Statement:
    """A statement that copies a row."""
    return along_row(columns, lanes, lambda column: store(*target(column), load(*source(column))))


def cleared(buffer: Any, rows: Any, lanes: int) -> Statement:
    """A statement that stores zeros in the rows of a buffer."""
    zero = tirx.const(0, DTYPE)
    columns = int(buffer.shape[1])

    def row_cleared(row: Index) -> Statement:
        return along_row(columns, lanes, lambda column: store(buffer, [row, column], zero))

    return serial(rows, row_cleared)


def added_product(
    panel: Panel,
    columns: int,
    rows: Any,
    terms: Any,
    left: Callable[[Index, Index], Any],
    right: Callable[[Index, Index], Any],
    result: Callable[[Index, Index], tuple[Any, list[Index]]],
) -> Statement:
    """The statement of ``result[i, j] += Σ left[i, t] · right[t, j]``, panel by panel.

    Where the number of rows is computed by the kernel, more rows are read and stored; see
    `ragged_product`.
    """
    make = product if isinstance(rows, int) else ragged_product
    return serial(
        columns // panel.width,
        lambda number: make(
            panel,
            rows,
            terms,
            left,
            lambda term, column: right(term, number * panel.width + column),
            lambda row, column: result(row, number * panel.width + column),
            adds=True,
        ),
    )


class Masked:
    """The scores of a block of queries of one head, as masks and biases change them.

    Parameters
    ----------
    problem : Attention
    bias : Buffer or None
    batch, head, first : Index
        Of the block, whose first query `first` is.
    """

    def __init__(self, problem: Attention, bias: Any, batch: Index, head: Index, first: Index):
        self._problem, self._bias = problem, bias
        self._batch, self._head, self._first = batch, head, first

    @property
    def changes(self) -> bool:
        """Whether scores are changed at all."""
        return self._bias is not None or self._problem.offset is not None

    def biased(self, score: Any, key: Index, column: Index) -> Any:
        """The score of a key and the query of a column, with its bias."""
        if self._bias is None:
            return score
        # Columns past the last query read what the last one has.
        query = tirx.min(self._first + column, index(self._problem.queries - 1))
        places = (self._batch, self._head, query, key)
        extents: Sequence[int] = self._problem.bias or ()
        pairs = zip(places, extents, strict=True)
        return score + load(self._bias, [index(0) if n == 1 else place for place, n in pairs])

    def chosen(self, value: Any, otherwise: float, key: Index, column: Index) -> Any:
        """A value where the query may attend the key, else a number."""
        if self._problem.offset is None:
            return value
        allowed = key <= self._first + column + self._problem.offset
        return tirx.Select(allowed, value, tirx.const(otherwise, DTYPE))


def task(name: str, buffers: Sequence[Any], *statements: Statement) -> Statement:
    """Statements with memory of a thread's own."""
    return block(name, *statements, buffers=list(buffers))
