"""Loops of what is no stage, in parallel: reductions with values in local memory, and scatters.

No schedule takes their blocks, but which of their loops are independent shows: a block's spatial
axes, and in a scatter a loop whose variable is an index of all elements that it adds to. Every
element is computed by one thread, in the order of the loops as they were.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir import SBlockRealize

from ...fallback.indices.conditions import conjuncts
from ...ir.kernel_rewrite import replace_realized, write_out_unrolled
from ...ir.kernel_structure import (
    Load,
    buffer_of,
    is_among,
    loop_nest,
    statements_of,
    static,
    substitute_values,
    uses,
)
from ...ir.loops import fused, sequence, within
from ...ir.tensor import bits
from ...ir.visits import nodes_in
from ..kernels.independent_loops import are_plain, carries, trip_count, writes_its_own
from .map import MIN_PARALLEL_TRIPS
from .scatter_rows import rows_at_a_time
from .tuning import Processor
from .vector_nests import vector_nest
from .vector_scatters import vector_scatter
from .vector_values import under

_SPATIAL = int(tirx.IterVar.DataPar)


def parallelize_loops(statement: Any, processor: Processor, small: int) -> Any:
    """A statement of a kernel in vectors and with its outer loops in parallel, where it may be.

    Parameters
    ----------
    statement : Stmt
    processor : Processor
    small : int
        Points below which it is not worth other threads.
    """
    nest = loop_nest(statement)
    if nest is None:
        return statement
    loops, realize = nest
    if loops:
        in_vectors = vector_nest(statement, processor, small)
        return in_vectors or _with_spatial_loops_in_parallel(loops, realize, small) or statement
    if realize.block.iter_vars or realize.block.init is not None:
        return statement
    realize = write_out_unrolled(realize)
    parts = statements_of(realize.block.body)
    local = [part for part in parts if isinstance(part, tirx.AllocBuffer)]
    parts = [part for part in parts if not isinstance(part, tirx.AllocBuffer)]
    users = [[n for n, part in enumerate(parts) if _mentions(part, a.buffer)] for a in local]
    shared = [alloc for alloc, numbers in zip(local, users, strict=True) if len(numbers) != 1]
    # What is kept for one statement alone is kept by each of its threads.
    own = [[a for a, at in zip(local, users, strict=True) if at == [n]] for n in range(len(parts))]
    if any(_mentions(part, alloc.buffer) for alloc in shared for part in parts):
        return statement
    changed = [
        _scatter_in_parallel(p, o, processor, small) for p, o in zip(parts, own, strict=True)
    ]
    if not any(changed):
        return statement
    rest = [sequence(*o, p) for p, o in zip(parts, own, strict=True)]
    body = sequence(*(new or old for new, old in zip(changed, rest, strict=True)))
    return replace_realized(realize, body=body)


def _with_spatial_loops_in_parallel(
    loops: Sequence[Any], realize: SBlockRealize, small: int
) -> Any | None:
    """The nest of a block whose leading loops are its spatial axes; None if they stay serial."""
    block = realize.block
    if not are_plain(loops) or trip_count(loops) < small:
        return None
    outer: list[Any] = []
    for around, axis, value in zip(loops, block.iter_vars, realize.iter_values, strict=False):
        is_axis = int(axis.iter_type) == _SPATIAL and value.same_as(around.loop_var)
        if not is_axis or not writes_its_own(block, axis.var):
            break
        if trip_count(outer) < MIN_PARALLEL_TRIPS:
            outer.append(around)
    if not outer:
        return None
    pairs = [(around.loop_var, int(around.extent)) for around in outer]
    return fused(pairs, within(loops[len(outer) :], realize), tirx.ForKind.PARALLEL)


def _mentions(statement: Any, buffer: Any) -> bool:
    return is_among(buffer, nodes_in(statement, tvm.ir.Var))


def _scatter_in_parallel(
    statement: Any, local: Sequence[Any], processor: Processor, small: int
) -> Any | None:
    """Loops that add to elements of a buffer, one of them outermost and in parallel.

    None if they stay serial. `local` are the statements that allocate what the loops keep.
    """
    loops: list[Any] = []
    inner = statement
    while isinstance(inner, tirx.For):
        loops.append(inner)
        inner = inner.body
    if not are_plain(loops) or trip_count(loops) < small:
        return None
    solved, inner = _solved(loops, inner)
    is_shorter, loops = len(solved) < len(loops), solved
    kept = [node.buffer for node in [*local, *nodes_in(inner, tirx.AllocBuffer)]]
    stores = [s for s in nodes_in(inner, tirx.BufferStore) if not is_among(s.buffer, kept)]
    if nodes_in(inner, tirx.Evaluate):  # a call that may do anything
        return None
    if not stores or not all(store.buffer.same_as(stores[0].buffer) for store in stores):
        return None
    if carries(inner, kept):
        return None  # a trip reads what the one before it has kept
    first = _index_of_all(loops, stores, inner, processor.line_bytes)
    rest = [each for each in loops if not each.same_as(first)]
    # What neighbors do in turn is what they do side by side, but for the order of additions.
    body = vector_scatter(rest, [first] if first else [], inner, kept, processor)
    split = rows_at_a_time(loops, inner) if body is None else None
    if split is not None:
        loops = [split.outer if each.same_as(split.rows) else each for each in loops]
        first = split.outer if first is not None and first.same_as(split.rows) else first
        rest, inner = [each for each in loops if not each.same_as(first)], split.inner
    if first is None:
        return body or (sequence(*local, within(loops, inner)) if is_shorter or split else None)
    body = sequence(*local, within(rest, inner)) if body is None else body
    return fused([(first.loop_var, int(first.extent))], body, tirx.ForKind.PARALLEL)


def _solved(loops: Sequence[Any], inner: Any) -> tuple[list[Any], Any]:
    """Loops without those that do something for one value alone, which their branch tells.

    for k in n:                     if 0 <= place[i] < n:
      if k == place[i]:               x[f(place[i])] += ...
        x[f(k)] += ...
    """
    if not isinstance(inner, tirx.IfThenElse) or inner.else_case is not None:
        return list(loops), inner
    written = [store.buffer for store in nodes_in(inner, tirx.BufferStore)]
    ordered = conjuncts(inner.condition)
    for number, conjunct in enumerate(ordered):
        for each in loops:
            value = _value_of(each.loop_var, conjunct)
            if value is None or any(is_among(r.source, written) for r in nodes_in(value, Load)):
                continue  # unknown, or another one after what a trip has written
            # What is read under the conditions before this one is read under them still; in terms
            # of the variable it would be read before that is known to be inside.
            if any(uses(before, each.loop_var) for before in ordered[:number]):
                continue
            ordered[number] = tirx.all(value >= 0, value < each.extent)
            body = substitute_values(under(ordered, inner.then_case), {each.loop_var: value})
            return [other for other in loops if not other.same_as(each)], body
    return list(loops), inner


def _value_of(var: Any, condition: Any) -> Any | None:
    """What a variable must be equal to for a condition to hold; None if that is not said."""
    if not isinstance(condition, tirx.EQ):
        return None
    for side, other in ((condition.a, condition.b), (condition.b, condition.a)):
        if side.same_as(var) and not uses(other, var):
            return other.astype(str(var.ty))
    return None


def _index_of_all(
    loops: Sequence[Any], stores: Sequence[Any], inner: Any, line_bytes: int
) -> Any | None:
    """The loop whose variable is the same index of all elements that stores access; or None.

    Elements of the same index fill a cache line, or threads would compete for it.
    """
    target = stores[0].buffer
    line = line_bytes * 8 // bits(str(target.dtype))
    reads = [load for load in nodes_in(inner, Load) if buffer_of(load).same_as(target)]
    for position in range(len(target.shape)):
        indices = [list(access.indices)[position] for access in [*stores, *reads]]
        chosen = [each for each in loops if all(i.same_as(each.loop_var) for i in indices)]
        behind = [static(extent) for extent in list(target.shape)[position + 1 :]]
        if chosen and None not in behind and math.prod(behind) >= line:  # type: ignore[arg-type]
            return chosen[0]
    return None
