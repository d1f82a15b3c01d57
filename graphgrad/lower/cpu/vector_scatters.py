"""Additions at places that data choose, with places and terms computed in vectors.

    for each vector of i:
      place[lanes] = ...; term[lanes] = ...; is_inside[lanes] = ...
      for lane:
        if is_inside[lane]:
          total[place[lane]] += term[lane]

Two lanes may add to the same element: the additions go one after another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import tirx

from ...fallback.walk import BINARY
from ...ir.kernel_structure import (
    Load,
    is_among,
    linear_coefficient,
    static,
    stride,
    substitute_values,
    uses,
)
from ...ir.loops import block, loop, sequence, variable, within
from ...ir.visits import nodes_in, replace_nodes
from ..kernels.blocked_sums import added_term
from .tuning import Processor
from .vector_values import NotInVectors, VectorValues, common_conditions, distinct, lanes_of, under

_MIN_OPERATIONS = 8
"""Operations of an addition, its places included, below which vectors save less than they cost,
where the additions themselves go one after another."""

_MAX_REPEATED_LOADS = 16
"""Loads that computing places where they are used may add, besides as many as there are."""


def vector_scatter(
    loops: Sequence[Any],
    around: Sequence[Any],
    inner: Any,
    local: Sequence[Any],
    processor: Processor,
) -> Any | None:
    """Loops around additions to elements of a tensor, in vectors; None if that does not serve.

    Parameters
    ----------
    loops : sequence of For
        Those around the additions, which may change places.
    around : sequence of For
        Plain loops outside of these.
    inner : Stmt
        What is done in them.
    local : sequence of Buffer
        The local memory that it keeps values in.
    processor : Processor
    """
    kept = [*local, *(node.buffer for node in nodes_in(inner, tirx.AllocBuffer))]
    inner = _with_places_written_out(inner, kept)
    stores = [s for s in nodes_in(inner, tirx.BufferStore) if not is_among(s.buffer, kept)]
    computed = [value for s in nodes_in(inner, tirx.BufferStore) for value in (s.value, *s.indices)]
    operations = sum(len(nodes_in(value, (*BINARY, tirx.Cast))) for value in distinct(computed))
    if len(stores) != 1:
        return None
    reads = [load for load in nodes_in(inner, Load) if load.source.same_as(stores[0].buffer)]
    if len(reads) != 1:  # the sum so far decides what is added, or where
        return None
    term = added_term(stores[0])
    widest = processor.lanes(str(stores[0].buffer.dtype))
    long = [each for each in loops if lanes_of(int(each.extent), widest) > 1]
    if term is None or not long:
        return None
    loads = [load for load in nodes_in(inner, Load) if not is_among(load.source, kept)]
    accesses = [stores[0], *distinct(loads)]
    # The loop along which most of what is accessed are neighbors; of several, the innermost.
    lane_loop = max(
        reversed(long), key=lambda each: sum(stride(a, each.loop_var) == 1 for a in accesses)
    )
    # Of a row, additions are vectors too.
    if operations < _MIN_OPERATIONS and stride(stores[0], lane_loop.loop_var) != 1:
        return None
    inner = replace_nodes(
        inner,
        tirx.BufferStore,
        lambda s: tirx.BufferStore(s.buffer, term, s.indices) if s.same_as(stores[0]) else s,
    )
    lanes = lanes_of(int(lane_loop.extent), widest)
    ranges = {each.loop_var: (0, int(each.extent)) for each in (*around, *loops)}
    _, trips = ranges.pop(lane_loop.loop_var)
    position = next(n for n, each in enumerate(loops) if each.same_as(lane_loop))
    behind = loops[position + 1 :]
    count, left = divmod(trips, lanes)
    dtype = str(lane_loop.loop_var.ty)
    number, whole = variable("vector", dtype), tirx.const(lanes, dtype)
    ranges[number] = (0, count)

    def vector(start: Any, length: int) -> Any:
        step = _vector(lane_loop.loop_var, start, length, inner, kept, ranges)
        return within(behind, step)

    try:
        parts = [loop(number, count, vector(number * whole, lanes))]
        if left:
            parts.append(vector(count * whole, left))
    except NotInVectors:
        return None
    return within(loops[:position], sequence(*parts))


def _with_places_written_out(inner: Any, kept: Sequence[Any]) -> Any:
    """A statement that keeps no integers: what is kept twice would not be known for the same place.

    It is the same statement where that would repeat much.
    """
    stores = nodes_in(inner, tirx.BufferStore)
    written = [store.buffer for store in stores]
    values: dict[Any, Any] = {}

    def computed(node: Any) -> Any:
        return replace_nodes(node, Load, lambda load: values.get(load.source, load))

    for store in stores:
        (*_, last) = store.buffer.shape
        is_number = len(store.buffer.shape) == 1 and static(last) == 1
        is_kept_once = (
            is_among(store.buffer, kept)
            and [store.buffer.same_as(buffer) for buffer in written].count(True) == 1
        )
        if is_number and is_kept_once and "int" in str(store.buffer.dtype):
            values[store.buffer] = computed(store.value)

    def remaining(statements: Any) -> Any:
        rest = [s for s in statements.seq if getattr(s, "buffer", None) not in values]
        return sequence(*rest)

    changed = replace_nodes(computed(inner), tirx.SeqStmt, remaining) if values else inner
    loads = len(nodes_in(changed, Load))
    return changed if loads <= 2 * len(nodes_in(inner, Load)) + _MAX_REPEATED_LOADS else inner


def _vector(
    var: Any,
    start: Any,
    lanes: int,
    inner: Any,
    local: Sequence[Any],
    ranges: Mapping[Any, tuple[int, int]],
) -> Any:
    """The additions of some neighboring trips of a loop over `var`."""
    lane = variable("lane", str(var.ty))
    alike, inner = common_conditions(inner, var, local)
    values = VectorValues(lane, lanes, ranges, local)
    body = substitute_values(inner, {var: start + lane})
    ((added, condition),) = values.run(body)
    # Elements of one row: each lane has its own.
    in_row = (
        (condition is None or not uses(condition, lane))
        and stride(added, lane) == 1
        and linear_coefficient(added.indices[-1], lane) == 1
    )
    indices = list(added.indices)
    if not in_row:
        indices = [values.keep(index) if uses(index, lane) else index for index in indices]
    total = tirx.BufferLoad(added.buffer, indices)
    addition = tirx.BufferStore(added.buffer, total + values.keep(added.value), indices)
    additions = values.each_lane(addition) if in_row else addition
    additions = under([] if condition is None else [condition], additions)
    statements = values.used([additions])
    additions = additions if in_row else loop(lane, lanes, additions)
    step = block("additions", *statements, additions, buffers=values.buffers)
    return under(alike, step)
