"""The gradient of attention in blocks, with the weights computed again from the logsumexp.

Dao, *FlashAttention-2* (2023), section 3.1, algorithm 2. A task has one head of keys and values,
with all queries that attend them. So no two tasks add to one gradient, and nothing depends on the
number of cores.
"""

from __future__ import annotations

from typing import Any

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
    vectorized,
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
    cleared,
    copied,
    each_vector,
    scaled,
    task,
    transposed_rows,
)


def backward_kernel(problem: Attention, processor: Processor) -> tirx.PrimFunc:
    """The kernel of ``(q, k, v, y, logsumexp, ct, [bias]) -> (q̄, k̄, v̄)``."""
    return _Backward(problem, processor).kernel()


class _Backward:
    """The kernel, in parts; `k_sums` and `v_sums` are memory of a task's own."""

    def __init__(self, problem: Attention, processor: Processor):
        self.problem, self.blocks = problem, Blocks(problem, processor)
        p = problem
        queries = [p.batch, p.heads, p.queries]
        keys = [p.batch, p.shared_heads, p.keys]
        self.q, self.q_result = (scratch(n, [*queries, p.features]) for n in ("q", "q_result"))
        self.k, self.k_result = (scratch(n, [*keys, p.features]) for n in ("k", "k_result"))
        self.v, self.v_result = (scratch(n, [*keys, p.value_features]) for n in ("v", "v_result"))
        self.y, self.ct = (scratch(n, [*queries, p.value_features]) for n in ("y", "ct"))
        self.logsumexp = scratch("logsumexp", queries)
        self.bias = None if p.bias is None else scratch("bias", p.bias)
        # The last tile of keys may have more rows than there are keys.
        rows = p.keys + max(self.blocks.along(n).rows for n in (p.features, p.value_features)) - 1
        self.k_sums = scratch("k_sums", [rows, p.features])
        self.v_sums = scratch("v_sums", [rows, p.value_features])

    def kernel(self) -> tirx.PrimFunc:
        p = self.problem
        bias = [] if self.bias is None else [self.bias]
        operands = [self.q, self.k, self.v, self.y, self.logsumexp, self.ct, *bias]
        params = [*operands, self.q_result, self.k_result, self.v_result]
        return kernel(params, [parallel(p.batch * p.shared_heads, self._head)], OPAQUE)

    def _head(self, trip: Index) -> Statement:
        """What is done for one head of keys and values."""
        p, blocks, lanes = self.problem, self.blocks, self.blocks.lanes
        b, shared = unravel(trip, [p.batch, p.shared_heads])

        def queries_block(trip: Index) -> Statement:
            g, number = unravel(trip, [p.group, blocks.count])
            h, first = shared * p.group + g, number * blocks.width
            return blocks.per_size(
                number, lambda queries: _Queries(self, b, h, shared, first, queries).statement()
            )

        def result(sums: Any, target: Any) -> Statement:
            rows = Rows(target, b, shared)
            return serial(
                p.keys,
                lambda row: copied(
                    int(sums.shape[1]),
                    lanes,
                    lambda column: (sums, [row, column]),
                    lambda column: rows.at(row, column),
                ),
            )

        return task(
            "head",
            [self.k_sums, self.v_sums],
            *(cleared(sums, int(sums.shape[0]), lanes) for sums in (self.k_sums, self.v_sums)),
            serial(p.group * blocks.count, queries_block),
            result(self.k_sums, self.k_result),
            result(self.v_sums, self.v_result),
        )


class _Queries:
    """The gradient of a block of queries of one head, and what it adds to those of the keys.

    Parameters
    ----------
    whole : _Backward
    b, h, shared, first : Index
        The example, the heads of queries and of keys, and the first query.
    queries : int
    """

    def __init__(
        self, whole: _Backward, b: Index, h: Index, shared: Index, first: Index, queries: int
    ):
        self.whole, self.problem, self.blocks = whole, whole.problem, whole.blocks
        self.b, self.h, self.first, self.queries = b, h, first, queries
        p = self.problem
        self.q, self.ct, self.y = (Rows(each, b, h) for each in (whole.q, whole.ct, whole.y))
        self.k, self.v = Rows(whole.k, b, shared), Rows(whole.v, b, shared)
        self.masked = Masked(p, whole.bias, b, h, first)
        self.tile = self.blocks.scores(queries)
        self.step = self.blocks.keys_at_a_time(self.tile)
        self.of_keys, self.of_values = map(self.blocks.along, (p.features, p.value_features))
        self.extra_rows = max(self.of_keys.rows, self.of_values.rows) - 1
        width = self.tile.width
        self.q_columns = scratch("q_columns", [p.features, width])
        self.ct_columns = scratch("ct_columns", [p.value_features, width])
        rows = self.step + self.extra_rows
        self.weights, self.slopes = (scratch(n, [rows, width]) for n in ("weights", "slopes"))
        self.q_sums = scratch("q_sums", [queries, p.features])
        # For each query: the logsumexp, and Σ ȳ ∘ y.
        self.logsumexp, self.inner = (scratch(n, [width]) for n in ("logsumexps", "inner"))
        self.partial = scratch("partial", [self.blocks.lanes])

    def statement(self) -> Statement:
        p, lanes = self.problem, self.blocks.lanes
        attended = self.blocks.attended(self.first, self.queries)
        result = Rows(self.whole.q_result, self.b, self.h)
        return task(
            "queries",
            [
                *(self.q_columns, self.ct_columns, self.weights, self.slopes),
                *(self.q_sums, self.logsumexp, self.inner, self.partial),
            ],
            transposed_rows(self.q, self.first, self.queries, self.tile, self.q_columns),
            transposed_rows(self.ct, self.first, self.queries, self.tile, self.ct_columns),
            scaled(self.q_columns, self.tile, p.scale),
            cleared(self.q_sums, self.queries, lanes),
            # Columns past the last query hold anything; nothing reads what comes of them.
            each_vector(1, self.tile, lambda _, column: self._row_values(column)),
            serial(self.queries, self._inner_product),
            serial(ceil_div(attended, self.step), lambda j: self._keys(j * self.step, attended)),
            serial(
                self.queries,
                lambda row: copied(
                    p.features,
                    lanes,
                    lambda column: (self.q_sums, [row, column]),
                    lambda column: result.at(self.first + row, column),
                ),
            ),
        )

    def _row_values(self, column: Index) -> Statement:
        query = tirx.min(self.first + column, index(self.problem.queries - 1))
        value = load(self.whole.logsumexp, [self.b, self.h, query])
        return store(self.logsumexp, [column], value)

    def _inner_product(self, row: Index) -> Statement:
        """The statement of Σ ȳ ∘ y of one query."""
        lanes = self.blocks.lanes
        zero, query = tirx.const(0, DTYPE), self.first + row

        def add(column: Index, lane: Index) -> Statement:
            term = self.ct.value(query, column) * self.y.value(query, column)
            return store(self.partial, [lane], load(self.partial, [lane]) + term)

        def add_lane(lane: Index) -> Statement:
            total = load(self.inner, [row]) + load(self.partial, [lane])
            return store(self.inner, [row], total)

        return sequence(
            vectorized(lanes, lambda lane: store(self.partial, [lane], zero)),
            serial(
                self.problem.value_features // lanes,
                lambda n: vectorized(lanes, lambda lane: add(n * lanes + lane, lane)),
            ),
            store(self.inner, [row], zero),
            serial(lanes, add_lane),
        )

    def _keys(self, start: Index, attended: Any) -> Statement:
        """What is done for a block of keys from `start` on."""
        p, tile, whole = self.problem, self.tile, self.whole
        count = tirx.min(attended - start, index(self.step))
        last = index(p.keys - 1)

        def scores(rows: Rows, features: int, columns: Any, target: Any) -> Statement:
            return ragged_product(
                tile,
                count,
                features,
                rows.from_row(start, last),
                lambda term, column: load(columns, [term, column]),
                lambda row, column: (target, [row, column]),
            )

        def weigh(row: Index, column: Index) -> Statement:
            value = self.masked.biased(load(self.weights, [row, column]), start + row, column)
            value = tirx.exp(value - load(self.logsumexp, [column]))
            chosen = self.masked.chosen(value, 0.0, start + row, column)
            return store(self.weights, [row, column], chosen)

        def slope(row: Index, column: Index) -> Statement:
            value = load(self.slopes, [row, column]) - load(self.inner, [column])
            value = load(self.weights, [row, column]) * value
            return store(self.slopes, [row, column], value * tirx.const(p.scale, DTYPE))

        def clear(row: Index, column: Index) -> Statement:
            zero, at = tirx.const(0, DTYPE), [count + row, column]
            return sequence(store(self.weights, at, zero), store(self.slopes, at, zero))

        def over_queries(panel: Any, columns: int, left: Any, right: Rows, sums: Any) -> Statement:
            return added_product(
                panel,
                columns,
                count,
                self.queries,
                lambda row, term: load(left, [row, term]),
                right.from_row(self.first),
                lambda row, column: (sums, [start + row, column]),
            )

        return sequence(
            scores(self.k, p.features, self.q_columns, self.weights),
            scores(self.v, p.value_features, self.ct_columns, self.slopes),
            each_vector(count, tile, weigh),
            each_vector(count, tile, slope),
            # The tiles of the next products are whole: their rows past this block's keys add
            # zeros to the gradients of the keys there.
            each_vector(self.extra_rows, tile, clear),
            over_queries(self.of_values, p.value_features, self.weights, self.ct, whole.v_sums),
            over_queries(self.of_keys, p.features, self.slopes, self.q, whole.k_sums),
            added_product(
                self.of_keys,
                p.features,
                self.queries,
                count,
                lambda row, term: load(self.slopes, [term, row]),
                self.k.from_row(start),
                lambda row, column: (self.q_sums, [row, column]),
            ),
        )
