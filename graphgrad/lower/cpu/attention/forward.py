"""Attention in blocks of queries and keys, with the softmax computed as keys come.

Dao, *FlashAttention-2* (2023), section 3.1; Rabe and Staats, *Self-attention does not need O(n²)
memory* (2021).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import tirx

from ....ir.loops import (
    Index,
    Statement,
    ceil_div,
    index,
    load,
    parallel,
    scratch,
    sequence,
    serial,
    store,
    unravel,
)
from ....ops.define import OPAQUE
from ....ops.tensor_table import kernel
from ..tuning import Processor
from ..winograd.multiply import ragged_product
from .blocks import (
    DTYPE,
    Attention,
    Blocks,
    Masked,
    Rows,
    added_product,
    along_row,
    cleared,
    each_vector,
    scaled,
    task,
    transposed_rows,
)

_LOWEST = float(np.finfo(np.float32).min)
"""The least finite score: maxima begin there, so that −∞ less a maximum is −∞, not NaN."""


def forward_kernel(problem: Attention, processor: Processor) -> tirx.PrimFunc:
    """The kernel of ``(q, k, v, [bias]) -> (y, logsumexp)``; a task is a block of queries."""
    return _Forward(problem, processor).kernel()


class _Forward:
    """The kernel, in parts."""

    def __init__(self, problem: Attention, processor: Processor):
        self.problem, self.blocks = problem, Blocks(problem, processor)
        p = problem
        self.q = scratch("q", [p.batch, p.heads, p.queries, p.features])
        self.k = scratch("k", [p.batch, p.shared_heads, p.keys, p.features])
        self.v = scratch("v", [p.batch, p.shared_heads, p.keys, p.value_features])
        self.bias = None if p.bias is None else scratch("bias", p.bias)
        self.y = scratch("y", [p.batch, p.heads, p.queries, p.value_features])
        self.logsumexp = scratch("logsumexp", [p.batch, p.heads, p.queries])

    def kernel(self) -> tirx.PrimFunc:
        p, blocks = self.problem, self.blocks
        bias = [] if self.bias is None else [self.bias]

        def body(trip: Index) -> Statement:
            b, h, number = unravel(trip, [p.batch, p.heads, blocks.count])
            first = number * blocks.width
            return blocks.per_size(
                number, lambda queries: _Queries(self, b, h, first, queries).statement()
            )

        params = [self.q, self.k, self.v, *bias, self.y, self.logsumexp]
        return kernel(params, [parallel(p.batch * p.heads * blocks.count, body)], OPAQUE)


class _Queries:
    """The results of a block of queries of one head.

    Parameters
    ----------
    whole : _Forward
    b, h, first : Index
        The example, the head and the first query.
    queries : int
    """

    def __init__(self, whole: _Forward, b: Index, h: Index, first: Index, queries: int):
        self.whole, self.problem, self.blocks = whole, whole.problem, whole.blocks
        self.b, self.h, self.first, self.queries = b, h, first, queries
        shared = tirx.floordiv(h, self.problem.group)
        self.q, self.y = Rows(whole.q, b, h), Rows(whole.y, b, h)
        self.k, self.v = Rows(whole.k, b, shared), Rows(whole.v, b, shared)
        self.masked = Masked(self.problem, whole.bias, b, h, first)
        self.tile = self.blocks.scores(queries)
        self.step = self.blocks.keys_at_a_time(self.tile)
        width = self.tile.width
        self.q_columns = scratch("q_columns", [self.problem.features, width])
        self.scores = scratch("scores", [self.step, width])
        self.sums = scratch("sums", [width, self.problem.value_features])
        # For each query: the maximum so far, the next one, the sum of exponentials so far, and
        # the factor by which sums change with the maximum.
        self.maxima, self.next_maxima, self.totals, self.factors = (
            scratch(name, [width]) for name in ("maxima", "next_maxima", "totals", "factors")
        )

    def statement(self) -> Statement:
        p, lanes = self.problem, self.blocks.lanes
        zero, one = tirx.const(0, DTYPE), tirx.const(1, DTYPE)
        attended = self.blocks.attended(self.first, self.queries)

        def inverse(column: Index) -> Any:
            total = load(self.totals, [column])
            return tirx.Select(total == zero, zero, one / total)

        def logsumexp(column: Index) -> Any:
            total = load(self.totals, [column])
            value = load(self.maxima, [column]) + tirx.log(total)
            # NaN stays NaN.
            return tirx.Select(total == zero, tirx.const(math.inf, DTYPE), value)

        def result(row: Index) -> Statement:
            factor = load(self.factors, [row])
            return sequence(
                along_row(
                    p.value_features,
                    lanes,
                    lambda column: store(
                        *self.y.at(self.first + row, column),
                        load(self.sums, [row, column]) * factor,
                    ),
                ),
                store(
                    self.whole.logsumexp,
                    [self.b, self.h, self.first + row],
                    load(self.totals, [row]),
                ),
            )

        return task(
            "queries",
            [
                *(self.q_columns, self.scores, self.sums),
                *(self.maxima, self.next_maxima, self.totals, self.factors),
            ],
            transposed_rows(self.q, self.first, self.queries, self.tile, self.q_columns),
            scaled(self.q_columns, self.tile, p.scale),
            self._each(lambda column: store(self.maxima, [column], tirx.const(_LOWEST, DTYPE))),
            self._each(lambda column: store(self.totals, [column], zero)),
            cleared(self.sums, self.queries, lanes),
            serial(ceil_div(attended, self.step), lambda j: self._keys(j * self.step, attended)),
            self._each(lambda column: store(self.factors, [column], inverse(column))),
            self._each(lambda column: store(self.totals, [column], logsumexp(column))),
            serial(self.queries, result),
        )

    def _keys(self, start: Index, attended: Any) -> Statement:
        """What a block of keys, from `start` on, adds to the sums."""
        p, tile = self.problem, self.tile
        count = tirx.min(attended - start, index(self.step))
        scores = ragged_product(
            tile,
            count,
            p.features,
            self.k.from_row(start, index(p.keys - 1)),
            lambda term, column: load(self.q_columns, [term, column]),
            lambda row, column: (self.scores, [row, column]),
        )

        def mask(row: Index, column: Index) -> Statement:
            value = self.masked.biased(load(self.scores, [row, column]), start + row, column)
            chosen = self.masked.chosen(value, -math.inf, start + row, column)
            return store(self.scores, [row, column], chosen)

        def take_maximum(row: Index, column: Index) -> Statement:
            greater = tirx.max(load(self.next_maxima, [column]), load(self.scores, [row, column]))
            return store(self.next_maxima, [column], greater)

        def weigh(row: Index, column: Index) -> Statement:
            difference = load(self.scores, [row, column]) - load(self.maxima, [column])
            return store(self.scores, [row, column], tirx.exp(difference))

        def add_up(row: Index, column: Index) -> Statement:
            total = load(self.totals, [column]) + load(self.scores, [row, column])
            return store(self.totals, [column], total)

        def factor(column: Index) -> Any:
            return tirx.exp(load(self.maxima, [column]) - load(self.next_maxima, [column]))

        def rescale(row: Index) -> Statement:
            by = load(self.factors, [row])
            return along_row(
                p.value_features,
                tile.lanes,
                lambda column: store(self.sums, [row, column], load(self.sums, [row, column]) * by),
            )

        return sequence(
            scores,
            *([each_vector(count, tile, mask)] if self.masked.changes else []),
            self._each(lambda c: store(self.next_maxima, [c], load(self.maxima, [c]))),
            each_vector(count, tile, take_maximum),
            self._each(lambda c: store(self.factors, [c], factor(c))),
            self._each(lambda c: store(self.maxima, [c], load(self.next_maxima, [c]))),
            self._each(
                lambda c: store(self.totals, [c], load(self.totals, [c]) * load(self.factors, [c]))
            ),
            each_vector(count, tile, weigh),
            each_vector(count, tile, add_up),
            serial(self.queries, rescale),
            added_product(
                self.blocks.along(p.value_features),
                p.value_features,
                self.queries,
                count,
                lambda row, term: load(self.scores, [term, row]),
                self.v.from_row(start),
                lambda row, column: (self.sums, [row, column]),
            ),
        )

    def _each(self, body: Any) -> Statement:
        """Loops over the queries, given the column of each."""
        return each_vector(1, self.tile, lambda _, column: body(column))
