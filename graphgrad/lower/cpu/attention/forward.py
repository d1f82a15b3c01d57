"""Attention in blocks of queries and keys, with the softmax computed online.

Dao, *FlashAttention-2* (2023), section 3.1; Rabe and Staats, *Self-attention does not need O(n²)
memory* (2021).
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from ....ir.loops import (
    Index,
    Statement,
    block,
    ceil_div,
    index,
    load,
    parallel,
    registers,
    scratch,
    sequence,
    serial,
    store,
    unravel,
)
from ....ops.define import OPAQUE
from ....ops.tensor_table import kernel
from ..winograd.multiply import product, ragged_product
from .blocks import (
    LOWEST,
    Attention,
    Blocks,
    each_vector,
    filled,
    scaled,
    transposed_rows,
)

_DTYPE = "float32"


def forward_kernel(problem: Attention, lanes: int, registers: int) -> tirx.PrimFunc:
    """The kernel of ``(q, k, v, [bias]) -> (out, logsumexp)``."""
    return _Forward(problem, Blocks(problem, lanes, registers)).kernel()


class _Forward:
    """The parts of the kernel."""

    def __init__(self, problem: Attention, blocks: Blocks):
        self.problem, self.blocks = problem, blocks
        p = problem
        self.q = scratch("q", [p.batch, p.heads, p.queries, p.features])
        self.k = scratch("k", [p.batch, p.shared_heads, p.keys, p.features])
        self.v = scratch("v", [p.batch, p.shared_heads, p.keys, p.value_features])
        self.bias = None if p.bias is None else scratch("bias", p.bias)
        self.out = scratch("out", [p.batch, p.heads, p.queries, p.value_features])
        self.lse = scratch("logsumexp", [p.batch, p.heads, p.queries])

    def kernel(self) -> tirx.PrimFunc:
        p = self.problem
        params = [self.q, self.k, self.v, self.out, self.lse]
        if self.bias is not None:
            params.insert(3, self.bias)
        tasks = p.batch * p.heads * self.blocks.count
        return kernel(params, [parallel(tasks, self._task)], OPAQUE)

    def _task(self, trip: Index) -> Statement:
        b, h, i = unravel(trip, [self.problem.batch, self.problem.heads, self.blocks.count])
        last = self._block(b, h, i, self.blocks.last)
        if self.blocks.count == 1 or self.blocks.last == self.blocks.width:
            return last
        whole = self._block(b, h, i, self.blocks.width)
        return tirx.IfThenElse(i < self.blocks.count - 1, whole, last)

    def _block(self, b: Index, h: Index, i: Index, queries: int) -> Statement:
        """The results of a block of queries."""
        p = self.problem
        first = i * self.blocks.width
        shared = tirx.floordiv(h, p.group) if p.group > 1 else h
        panel = self.blocks.score_panel(queries)
        step = self.blocks.block_keys(panel)
        width = panel.width
        qt = scratch("qt", [p.features, width])
        scores = scratch("scores", [step, width])
        sums = scratch("sums", [width, p.value_features])
        maxima = registers("maxima", [panel.vectors, panel.lanes])
        news = registers("news", [panel.vectors, panel.lanes])
        totals = registers("totals", [panel.vectors, panel.lanes])
        factors = scratch("factors", [width])

        def at(vector: Index, lane: Index) -> list[Index]:
            return [vector, lane]

        def keys_block(j: Index) -> Statement:
            start = j * step
            count = tirx.min(self.blocks.keys_of(first, queries) - start, index(step))

            def key_row(row: Index, term: Index) -> Any:
                return load(self.k, [b, shared, tirx.min(start + row, index(p.keys - 1)), term])

            multiply = ragged_product(
                panel,
                count,
                p.features,
                key_row,
                lambda term, column: load(qt, [term, column]),
                lambda row, column: (scores, [row, column]),
            )

            def masked(row: Index, vector: Index, lane: Index) -> Any:
                column = vector * panel.lanes + lane
                value = load(scores, [row, column])
                if self.bias is not None:
                    value = value + self._bias(b, h, tirx.min(first + column, p.queries - 1), start + row)
                if p.offset is not None:
                    allowed = start + row <= first + column + p.offset
                    value = tirx.Select(allowed, value, tirx.const(float("-inf"), _DTYPE))
                return value

            def take_maximum(row: Index, vector: Index, lane: Index) -> Statement:
                column = vector * panel.lanes + lane
                return store(news, at(vector, lane), tirx.max(load(news, at(vector, lane)), load(scores, [row, column])))

            one = lambda body: each_vector(1, panel, body)
            mask = []
            if self.bias is not None or p.offset is not None:
                mask = [each_vector(count, panel, lambda r, v, l: store(scores, [r, v * panel.lanes + l], masked(r, v, l)))]

            def weight(row: Index, vector: Index, lane: Index) -> Statement:
                place = [row, vector * panel.lanes + lane]
                return store(scores, place, tirx.exp(load(scores, place) - load(maxima, at(vector, lane))))

            def total(row: Index, vector: Index, lane: Index) -> Statement:
                place = [row, vector * panel.lanes + lane]
                return store(totals, at(vector, lane), load(totals, at(vector, lane)) + load(scores, place))

            features = self.blocks.feature_panel(p.value_features)
            rescale = serial(
                queries,
                lambda row: each_vector_of(sums, row, p.value_features, panel.lanes, lambda value: value * load(factors, [row])),
            )
            add = [
                product(
                    features,
                    queries,
                    count,
                    lambda row, term: load(scores, [term, row]),
                    lambda term, column, c=c: load(self.v, [b, shared, start + term, column + c]),
                    lambda row, column, c=c: (sums, [row, column + c]),
                    adds=True,
                )
                for c in range(0, p.value_features, features.width)
            ]
            return sequence(
                multiply,
                *mask,
                one(lambda _, v, l: store(news, at(v, l), load(maxima, at(v, l)))),
                each_vector(count, panel, take_maximum),
                one(lambda _, v, l: store(factors, [v * panel.lanes + l], tirx.exp(load(maxima, at(v, l)) - load(news, at(v, l))))),
                one(lambda _, v, l: store(maxima, at(v, l), load(news, at(v, l)))),
                one(lambda _, v, l: store(totals, at(v, l), load(totals, at(v, l)) * load(factors, [v * panel.lanes + l]))),
                each_vector(count, panel, weight),
                each_vector(count, panel, total),
                rescale,
                *add,
            )

        one = lambda body: each_vector(1, panel, body)
        zero, lowest = tirx.const(0, _DTYPE), tirx.const(LOWEST, _DTYPE)
        inverse = lambda v, l: tirx.Select(
            load(totals, at(v, l)) > zero, tirx.const(1, _DTYPE) / load(totals, at(v, l)), zero
        )
        return block(
            "attention",
            transposed_rows(
                lambda row, column: (self.q, [b, h, first + row, column]),
                width, index(queries - 1), p.features, panel.lanes, qt,
            ),
            scaled(qt, p.features, panel, p.scale),
            one(lambda _, v, l: store(maxima, at(v, l), lowest)),
            one(lambda _, v, l: store(totals, at(v, l), zero)),
            filled(sums, width, p.value_features, panel.lanes, 0.0),
            serial(ceil_div(self.blocks.keys_of(first, queries), step), keys_block),
            one(lambda _, v, l: store(factors, [v * panel.lanes + l], inverse(v, l))),
            serial(
                queries,
                lambda row: each_vector_of(
                    sums, row, p.value_features, panel.lanes,
                    lambda value: value * load(factors, [row]),
                    lambda column: (self.out, [b, h, first + row, column]),
                ),
            ),
            one(lambda _, v, l: store(totals, at(v, l), tirx.Select(
                load(totals, at(v, l)) > zero,
                load(maxima, at(v, l)) + tirx.log(load(totals, at(v, l))),
                tirx.const(float("inf"), _DTYPE)))),
            serial(queries, lambda row: store(self.lse, [b, h, first + row], load(totals, [tirx.floordiv(row, panel.lanes), tirx.floormod(row, panel.lanes)]))),
            buffers=[qt, scores, sums, maxima, news, totals, factors],
        )

    def _bias(self, b: Index, h: Index, query: Index, key: Index) -> Any:
        at = zip((b, h, query, key), self.problem.bias, strict=True)
        return load(self.bias, [index(0) if extent == 1 else i for i, extent in at])


def each_vector_of(buffer, row, columns, lanes, value, target=None, source=None):
    from ....ir.loops import vectorized
    def element(vector, lane):
        column = vector * lanes + lane
        where, indices = target(column) if target else (buffer, [row, column])
        return store(where, indices, value(load(buffer, source(column) if source else [row, column])))
    return serial(columns // lanes, lambda vector: vectorized(lanes, lambda lane: element(vector, lane)))
