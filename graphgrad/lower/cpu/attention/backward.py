"""The gradient of attention in blocks, with the weights computed again from the logsumexp.

Dao, *FlashAttention-2* (2023), section 3.1, algorithm 2. A task has all queries of some keys: of
one head of keys and values. So no two tasks add to one gradient.
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
from .blocks import Attention, Blocks, each_vector, filled, scaled, transposed_rows
from .forward import each_vector_of

_DTYPE = "float32"
import os
_STRIDE = int(os.environ.get("STRIDE", 1<<20))


def backward_kernel(problem: Attention, lanes: int, registers: int) -> tirx.PrimFunc:
    return _Backward(problem, Blocks(problem, lanes, registers)).kernel()


class _Backward:
    def __init__(self, problem: Attention, blocks: Blocks):
        self.problem, self.blocks = problem, blocks
        p = problem
        queries = [p.batch, p.heads, p.queries]
        keys = [p.batch, p.shared_heads, p.keys]
        self.q = scratch("q", [*queries, p.features])
        self.k = scratch("k", [*keys, p.features])
        self.v = scratch("v", [*keys, p.value_features])
        self.bias = None if p.bias is None else scratch("bias", p.bias)
        self.out = scratch("out", [*queries, p.value_features])
        self.lse = scratch("logsumexp", queries)
        self.dout = scratch("dout", [*queries, p.value_features])
        self.dq = scratch("dq", [*queries, p.features])
        self.dk = scratch("dk", [*keys, p.features])
        self.dv = scratch("dv", [*keys, p.value_features])

    def kernel(self) -> tirx.PrimFunc:
        p = self.problem
        bias = [] if self.bias is None else [self.bias]
        params = [self.q, self.k, self.v, self.out, self.lse, self.dout, *bias]
        return kernel(
            [*params, self.dq, self.dk, self.dv],
            [parallel(p.batch * p.shared_heads, self._task)],
            OPAQUE,
        )

    def _task(self, trip: Index) -> Statement:
        p, blocks = self.problem, self.blocks
        b, shared = unravel(trip, [p.batch, p.shared_heads])
        # A tile of keys may be longer than what is left of them.
        rows = p.keys + blocks.registers
        dk = scratch("dk_sums", [rows, p.features])
        dv = scratch("dv_sums", [rows, p.value_features])
        lanes = blocks.lanes

        stride = _STRIDE
        spans = -(-p.keys // stride)

        def span(s: Index) -> Statement:
            skipped = index(0)
            if p.offset is not None:
                skipped = tirx.floordiv(tirx.max(s * stride - p.offset, 0), blocks.width)
            skipped = tirx.min(skipped, index(blocks.count))

            def query_block(g, trip: Index) -> Statement:
                i = skipped + trip
                h = shared * p.group + g
                last = self._block(b, h, shared, i, blocks.last, dk, dv, s * stride)
                if blocks.count == 1 or blocks.last == blocks.width:
                    return last
                whole = self._block(b, h, shared, i, blocks.width, dk, dv, s * stride)
                return tirx.IfThenElse(i < blocks.count - 1, whole, last)

            return serial(p.group, lambda g: serial(index(blocks.count) - skipped, lambda trip: query_block(g, trip)))

        def copied(sums: Any, columns: int, target: Any) -> Statement:
            return serial(
                p.keys,
                lambda row: each_vector_of(
                    sums, row, columns, lanes, lambda value: value,
                    lambda column: (target, [b, shared, row, column]),
                ),
            )

        return block(
            "attention",
            filled(dk, rows, p.features, lanes, 0.0),
            filled(dv, rows, p.value_features, lanes, 0.0),
            serial(spans, span),
            copied(dk, p.features, self.dk),
            copied(dv, p.value_features, self.dv),
            buffers=[dk, dv],
        )

    def _block(self, b, h, shared, i, queries, dk, dv, begin) -> Statement:
        p = self.problem
        first = i * self.blocks.width
        panel = self.blocks.score_panel(queries)
        step = self.blocks.block_keys(panel)
        width, lanes = panel.width, panel.lanes
        qt = scratch("qt", [p.features, width])
        dot = scratch("dout_t", [p.value_features, width])
        weights = scratch("weights", [step + self.blocks.registers, width])
        slopes = scratch("slopes", [step + self.blocks.registers, width])
        end_key = tirx.min(self.blocks.keys_of(first, queries), begin + _STRIDE)
        dq = scratch("dq_sums", [width, p.features])
        lse = scratch("lse", [width])
        delta = scratch("delta", [width])
        partial = registers("partial", [lanes])
        number = registers("number", [1])

        def row_delta(row: Index) -> Statement:
            zero = tirx.const(0, _DTYPE)
            one = lambda body: each_vector(1, _one(panel), lambda _, __, lane: body(lane))
            at = lambda column: [b, h, first + row, column]
            return sequence(
                one(lambda lane: store(partial, [lane], zero)),
                serial(p.value_features // lanes, lambda n: one(lambda lane: store(partial, [lane],
                    load(partial, [lane]) + load(self.dout, at(n * lanes + lane)) * load(self.out, at(n * lanes + lane))))),
                store(number, [index(0)], zero),
                serial(lanes, lambda lane: store(number, [index(0)], load(number, [index(0)]) + load(partial, [lane]))),
                store(delta, [row], load(number, [index(0)])),
                store(lse, [row], load(self.lse, [b, h, first + row])),
            )

        def keys_block(j: Index) -> Statement:
            start = begin + j * step
            count = tirx.min(end_key - start, index(step))

            def key_row(source):
                return lambda row, term: load(source, [b, shared, tirx.min(start + row, index(p.keys - 1)), term])

            scores = ragged_product(panel, count, p.features, key_row(self.k),
                lambda term, column: load(qt, [term, column]), lambda row, column: (weights, [row, column]))
            products = ragged_product(panel, count, p.value_features, key_row(self.v),
                lambda term, column: load(dot, [term, column]), lambda row, column: (slopes, [row, column]))

            def weight(row, vector, lane):
                column = vector * lanes + lane
                value = load(weights, [row, column])
                if self.bias is not None:
                    value = value + self._bias(b, h, tirx.min(first + column, p.queries - 1), start + row)
                value = tirx.exp(value - load(lse, [column]))
                if p.offset is not None:
                    allowed = start + row <= first + column + p.offset
                    value = tirx.Select(allowed, value, tirx.const(0, _DTYPE))
                return store(weights, [row, column], value)

            def slope(row, vector, lane):
                column = vector * lanes + lane
                value = load(weights, [row, column]) * (load(slopes, [row, column]) - load(delta, [column]))
                return store(slopes, [row, column], value * tirx.const(p.scale, _DTYPE))

            def added(panel, rows, terms, left, right, result, columns, make):
                return [make(panel, rows, terms, left,
                             lambda term, column, c=c: right(term, column + c),
                             lambda row, column, c=c: result(row, column + c), adds=True)
                        for c in range(0, columns, panel.width)]

            of_keys, of_values = self.blocks.feature_panel(p.features), self.blocks.feature_panel(p.value_features)
            # Tiles of the next products are whole, and what is past the keys of this block must not
            # count: it would be added to the gradients of the next ones.
            def blank(row, vector, lane):
                column = vector * lanes + lane
                return sequence(*(store(buffer, [count + row, column], tirx.const(0, _DTYPE)) for buffer in (weights, slopes)))

            tallest = max(of_keys.rows, of_values.rows)
            return sequence(
                scores, products,
                each_vector(count, panel, weight),
                each_vector(count, panel, slope),
                each_vector(tallest - 1, panel, blank),
                *added(of_values, count, queries, lambda row, term: load(weights, [row, term]),
                       lambda term, column: load(self.dout, [b, h, first + term, column]),
                       lambda row, column: (dv, [start + row, column]), p.value_features, ragged_product),
                *added(of_keys, count, queries, lambda row, term: load(slopes, [row, term]),
                       lambda term, column: load(self.q, [b, h, first + term, column]),
                       lambda row, column: (dk, [start + row, column]), p.features, ragged_product),
                *added(of_keys, queries, count, lambda row, term: load(slopes, [term, row]),
                       lambda term, column: load(self.k, [b, shared, start + term, column]),
                       lambda row, column: (dq, [row, column]), p.features, product),
            )

        end = index(queries - 1)
        return block(
            "queries",
            transposed_rows(lambda row, column: (self.q, [b, h, first + row, column]), width, end, p.features, lanes, qt),
            transposed_rows(lambda row, column: (self.dout, [b, h, first + row, column]), width, end, p.value_features, lanes, dot),
            scaled(qt, p.features, panel, p.scale),
            tirx.IfThenElse(begin == 0, filled(dq, queries, p.features, lanes, 0.0),
                serial(queries, lambda row: each_vector_of(self.dq, row, p.features, lanes, lambda value: value,
                    lambda column: (dq, [row, column]), lambda column: [b, h, first + row, column]))),
            # Lanes past the last query hold anything, and nothing is added up across lanes.
            filled_vector(lse, width, lanes), filled_vector(delta, width, lanes),
            serial(queries, row_delta),
            serial(ceil_div(tirx.max(end_key - begin, 0), step), keys_block),
            serial(queries, lambda row: each_vector_of(dq, row, p.features, lanes, lambda value: value,
                lambda column: (self.dq, [b, h, first + row, column]))),
            buffers=[qt, dot, weights, slopes, dq, lse, delta, partial, number],
        )

    def _bias(self, b, h, query, key):
        at = zip((b, h, query, key), self.problem.bias, strict=True)
        return load(self.bias, [index(0) if extent == 1 else i for i, extent in at])


def _one(panel):
    from ..winograd.multiply import Panel
    return Panel(1, 1, panel.lanes)

def filled_vector(buffer, width, lanes):
    from ....ir.loops import vectorized
    return serial(width // lanes, lambda n: vectorized(lanes, lambda lane: store(buffer, [n * lanes + lane], tirx.const(0, _DTYPE))))
