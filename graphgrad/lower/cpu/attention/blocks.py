"""The sizes of an attention and of its blocks, and what the loops over them have in common.

A task keeps the scores of a block of queries and a block of keys in its core's cache, with the
queries in the lanes of vectors: what is known of a query, such as the maximum of its scores, is
a vector too, and no sum goes across lanes. The factors that lanes share are read where they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx

from ....ir.loops import (
    Index,
    Statement,
    index,
    load,
    sequence,
    serial,
    store,
    unrolled,
    vectorized,
)
from ...cpu.register_transpose import transpose_matrix
from ..winograd.multiply import Panel

LOWEST = float(np.finfo(np.float32).min)
"""The least finite score: a maximum of scores begins there, so that −∞ less it is −∞, not NaN."""

_QUERY_VECTORS = 4
_MAX_KEYS = 96
_SPARE_REGISTERS = 2
"""Registers of a tile that hold no sums."""


@dataclass(frozen=True)
class Attention:
    """The sizes of an attention; its tensors are (batch, heads, positions, features).

    Attributes
    ----------
    batch, heads, shared_heads : int
        Query heads, and those of keys and values, which they share in groups.
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
        """How many query heads share a head of keys and values."""
        return self.heads // self.shared_heads


@dataclass(frozen=True)
class Blocks:
    """The blocks of an attention.

    Attributes
    ----------
    problem : Attention
    lanes, registers : int
        Elements of a vector, and vectors that registers hold.
    """

    problem: Attention
    lanes: int
    registers: int

    @property
    def width(self) -> int:
        """Queries of a whole block."""
        return _QUERY_VECTORS * self.lanes

    @property
    def count(self) -> int:
        """Blocks of queries."""
        return -(-self.problem.queries // self.width)

    @property
    def last(self) -> int:
        """Queries of the last block."""
        return self.problem.queries - (self.count - 1) * self.width

    def score_panel(self, queries: int) -> Panel:
        """The register tile of scores: keys by queries."""
        return self._panel(-(-queries // self.lanes))

    def feature_panel(self, features: int) -> Panel:
        """The register tile of a product along features."""
        vectors = features // self.lanes
        return self._panel(next(n for n in (4, 3, 5, 2, 1) if vectors % n == 0))

    def _panel(self, vectors: int) -> Panel:
        return Panel((self.registers - vectors - _SPARE_REGISTERS) // vectors, vectors, self.lanes)

    def block_keys(self, panel: Panel) -> int:
        """Keys of a block, a multiple of the height of the tile of scores."""
        height = panel.rows
        blocks = -(-self.problem.keys // _MAX_KEYS)
        each = -(-self.problem.keys // blocks)
        return -(-each // height) * height

    def keys_of(self, first_query: Index, queries: int) -> Any:
        """How many keys the queries of a block attend at most."""
        offset = self.problem.offset
        if offset is None:
            return index(self.problem.keys)
        return tirx.max(tirx.min(first_query + (queries + offset), index(self.problem.keys)), 0)


def each_vector(
    rows: Any, panel: Panel, body: Callable[[Index, Index, Index], Statement]
) -> Statement:
    """Loops over the elements of some rows, given row, vector and lane."""
    return serial(
        rows,
        lambda row: unrolled(
            panel.vectors,
            lambda vector: vectorized(panel.lanes, lambda lane: body(row, vector, lane)),
        ),
    )


def transposed_rows(
    source: Callable[[Index, Index], Any],
    rows: int,
    last: Any,
    columns: int,
    lanes: int,
    target: Any,
) -> Statement:
    """A statement that stores rows, of which those past the last repeat it, as columns of `target`.

    `source` gives buffer and indices of a row and a column.
    """
    return transpose_matrix(
        rows,
        columns,
        lanes,
        lambda row, column: source(tirx.min(row, last), column),
        lambda row, column: (target, [column, row]),
    )


def scaled(buffer: Any, rows: Any, panel: Panel, factor: float) -> Statement:
    """A statement that multiplies the rows of a buffer, one panel wide, by a number."""

    def element(row: Index, vector: Index, lane: Index) -> Statement:
        at = [row, vector * panel.lanes + lane]
        return store(buffer, at, load(buffer, at) * tirx.const(factor, "float32"))

    return each_vector(rows, panel, element)


def filled(buffer: Any, rows: Any, width: int, lanes: int, value: float) -> Statement:
    """A statement that stores a number in the rows of a buffer."""
    return serial(
        rows,
        lambda row: serial(
            width // lanes,
            lambda vector: vectorized(
                lanes,
                lambda lane: store(
                    buffer, [row, vector * lanes + lane], tirx.const(value, "float32")
                ),
            ),
        ),
    )


def cases(condition: Any, first: Statement, second: Statement | None) -> Statement:
    """One of two statements; the first where there is no second."""
    return first if second is None else tirx.IfThenElse(condition, first, second)


__all__ = ["sequence"]
