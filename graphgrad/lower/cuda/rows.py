"""Reductions in which neighboring terms are neighbors in memory: a warp for each result.

The 32 threads of a warp read neighboring vectors of terms, each adds up its own, and they combine
what they have by shuffles, in a tree of fixed order. Where there are few results with many terms,
each warp reduces a part of them, and a further launch reduces the parts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import tirx

from ...ir.kernel_structure import static, stride, substitute_values
from ...ir.loops import index, load, loop, registers, sequence, store, variable
from ...ir.warps import SHUFFLE, WARP, shuffled
from ..kernels.blocked_sums import sum_in_blocks
from .lanes import over_lanes, split_lanes, wide_lanes
from .reduction import MAX_TERMS_PER_THREAD, Reduction, Step, parts_of, results_of
from .threads import at_point, one_thread_per_point

_MIN_TERMS = 32
"""Terms of a result for which a warp is used."""

_MIN_BUSY_WARPS = 1 << 12
"""Warps that keep a large GPU busy."""

_MIN_TERMS_PER_PART = 1024
"""Terms that a part must have to be worth its warp."""

_MAX_SINGLE_WARP_TERMS = 4096
"""Terms up to which one warp computes a result, however few results there are."""


def rows_step(reduction: Reduction, name: str) -> Step | None:
    """The launch that computes a reduction, or parts of it, with a warp each; None if none fits."""
    rows = _rows(reduction)
    if rows is None:
        return None
    parts = _parts(reduction, rows.vectors)
    if parts == 1:
        every = index(rows.vectors)
        kernel = _one_warp_each(reduction, reduction.spatial, rows, index(0), every)
        return Step(kernel, [], None)
    length = math.ceil(rows.vectors / parts)
    parts = math.ceil(rows.vectors / length)
    part, targets, rest, buffers = parts_of(reduction, parts, name, True)
    first = part.loop_var * length
    count = index(length)
    if rows.vectors % length:
        count = tirx.min(count, rows.vectors - first)
    spatial = [*reduction.spatial, part]
    kernel = _one_warp_each(replace(reduction, targets=targets), spatial, rows, first, count)
    return Step(kernel, buffers, rest)


@dataclass(frozen=True)
class _Rows:
    """The terms of a result as vectors.

    Attributes
    ----------
    loops : list of For
        Over the vectors.
    vectors : int
        How many they are.
    lanes : int
        Terms of a vector.
    lane : Var
    values : dict
        The values of the reduced loops' variables.
    """

    loops: list[Any]
    vectors: int
    lanes: int
    lane: Any
    values: dict[Any, Any]


def _rows(reduction: Reduction) -> _Rows | None:
    """The terms of a reduction as vectors; None if a warp is not for it."""
    extents = [static(each.extent) for each in reduction.reduced]
    if not reduction.along_terms or None in extents:
        return None
    if reduction.combine is None or not reduction.are_apart:
        return None
    terms = math.prod(extents)  # type: ignore[arg-type]
    if terms < _MIN_TERMS or results_of(reduction) == 0:
        return None
    inner = _neighboring_loops(reduction)
    length = math.prod(extents[-inner:])  # type: ignore[arg-type]
    lanes = wide_lanes(reduction.loads)
    while length % lanes:
        lanes //= 2
    if lanes == 1:
        return _Rows(reduction.reduced, terms, 1, index(0), {})
    loops, lane, values = split_lanes(reduction.reduced, lanes, inner)
    return _Rows(loops, terms // lanes, lanes, lane, values)


def _neighboring_loops(reduction: Reduction) -> int:
    """How many of the innermost reduced loops go through neighbors in memory, one after another."""
    innermost = reduction.reduced[-1].loop_var
    along = [load for load in reduction.loads if stride(load, innermost) == 1]
    extent, count = 1, 0
    for each in reversed(reduction.reduced):
        if any(stride(load, each.loop_var) != extent for load in along):
            break
        extent, count = extent * int(each.extent), count + 1
    return count


def _parts(reduction: Reduction, vectors: int) -> int:
    """Into how many parts to cut the terms of each result."""
    terms = math.prod(int(each.extent) for each in reduction.reduced)
    if terms <= _MAX_SINGLE_WARP_TERMS:
        return 1
    wished_parts = math.ceil(_MIN_BUSY_WARPS / results_of(reduction))
    wished_parts = min(wished_parts, max(terms // _MIN_TERMS_PER_PART, 1))
    parts = max(wished_parts, math.ceil(terms / (WARP * MAX_TERMS_PER_THREAD)))
    # Parts of equal length, in which all threads of a warp have as many vectors, if there are some.
    whole = [n for n in range(parts, 2 * parts) if vectors % (n * WARP) == 0]
    return whole[0] if whole else parts


def _one_warp_each(
    reduction: Reduction, spatial: list[Any], rows: _Rows, first: Any, count: Any
) -> Any:
    """A kernel in which one warp reduces `count` vectors of terms of a result from `first` on."""
    held = [registers("held", (rows.lanes,), str(t.result.dtype)) for t in reduction.targets]
    thread = loop(variable("thread"), WARP, tirx.Evaluate(0))
    trip = variable("trip")

    def added(vector: Any) -> Any:
        """The statement that takes a vector of terms in."""
        lane = variable("lane")
        at = at_point(rows.loops, first + vector)
        accumulators = [load(buffer, [lane]) for buffer in held]
        values = [substitute_values(v, rows.values) for v in reduction.update(accumulators)]
        values = [substitute_values(value, {**at, rows.lane: lane}) for value in values]
        # Components do not depend on each other, so that each is stored as it is computed.
        stores = [store(b, [lane], value) for b, value in zip(held, values, strict=True)]
        body = sequence(*stores)
        return over_lanes(lane, rows.lanes, body)

    trips = tvm.sym.Analyzer().simplify(tirx.floordiv(count, WARP))
    left = tvm.sym.Analyzer().simplify(count - trips * WARP)
    statements = [
        *(tirx.AllocBuffer(buffer) for buffer in held),
        *(
            store(buffer, [index(lane)], value)
            for buffer, value in zip(held, reduction.initial, strict=True)
            for lane in range(rows.lanes)
        ),
        sum_in_blocks(
            loop(trip, trips, added(trip * WARP + thread.loop_var)), scope="local", total=None
        ),
    ]
    if static(left) != 0:
        rest = added(trips * WARP + thread.loop_var)
        statements.append(tirx.IfThenElse(thread.loop_var < left, rest, None))
    statements += combined_in_warp(reduction, held, rows.lanes)
    stored = [
        statement
        for target, buffer in zip(reduction.targets, held, strict=True)
        for statement in target.stored(load(buffer, [index(0)]))
    ]
    statements.append(tirx.IfThenElse(thread.loop_var == 0, sequence(*stored), None))
    return one_thread_per_point([*spatial, thread], sequence(*statements))


def is_shuffle(node: Any) -> bool:
    """Whether an expression is a value that another thread has."""
    return (
        isinstance(node, tvm.ir.Call)
        and str(getattr(node.op, "name", "")) == "tirx.call_extern"
        and str(node.args[0].value) == SHUFFLE
    )


def combined_in_warp(reduction: Reduction, held: list[Any], lanes: int) -> list[Any]:
    """The statements that combine what the lanes, then the threads of a warp have."""
    others = [registers("other", (1,), str(buffer.dtype)) for buffer in held]
    statements = [tirx.AllocBuffer(buffer) for buffer in others]
    distance = lanes // 2
    while distance:
        for lane in range(distance):
            pairs = [[load(b, [index(at)]) for b in held] for at in (lane, lane + distance)]
            statements += _taken_in(reduction, held, lane, *pairs)
        distance //= 2
    distance = WARP // 2
    while distance:
        own = [load(buffer, [index(0)]) for buffer in held]
        statements += [
            store(other, [index(0)], shuffled(value, distance))
            for other, value in zip(others, own, strict=True)
        ]
        pairs = [own, [load(other, [index(0)]) for other in others]]
        statements += _taken_in(reduction, held, 0, *pairs)
        distance //= 2
    return statements


def _taken_in(
    reduction: Reduction, held: list[Any], lane: int, left: list[Any], right: list[Any]
) -> list[Any]:
    """The statements that store the combination of two parts."""
    assert reduction.combine is not None
    values = reduction.combine(left, right)
    return [store(b, [index(lane)], value) for b, value in zip(held, values, strict=True)]
