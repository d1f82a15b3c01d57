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

from ...ir.kernel_rewrite import replace_realized
from ...ir.kernel_structure import (
    Load,
    buffer_of,
    is_among,
    loop_nest,
    statements_of,
    static,
)
from ...ir.loops import fused, sequence, within
from ...ir.visits import nodes_in
from .map import MIN_PARALLEL_TRIPS

_SPATIAL = int(tirx.IterVar.DataPar)

_LINE = 16
"""Neighboring elements that one thread should write: those of a cache line."""


def parallelize_loops(statement: Any, small: int) -> Any:
    """A statement of a kernel with its outer loops in parallel; as it is if none may be.

    Parameters
    ----------
    statement : Stmt
    small : int
        Points below which it is not worth other threads.
    """
    nest = loop_nest(statement)
    if nest is None:
        return statement
    loops, realize = nest
    if loops:
        return _with_spatial_loops_in_parallel(loops, realize, small) or statement
    if realize.block.iter_vars or realize.block.init is not None:
        return statement
    parts = statements_of(realize.block.body)
    local = [part for part in parts if isinstance(part, tirx.AllocBuffer)]
    parts = [part for part in parts if not isinstance(part, tirx.AllocBuffer)]
    users = [[n for n, part in enumerate(parts) if _mentions(part, a.buffer)] for a in local]
    shared = [alloc for alloc, numbers in zip(local, users, strict=True) if len(numbers) != 1]
    # What is kept for one statement alone is kept by each of its threads.
    own = [[a for a, at in zip(local, users, strict=True) if at == [n]] for n in range(len(parts))]
    if any(_mentions(part, alloc.buffer) for alloc in shared for part in parts):
        return statement
    changed = [_scatter_in_parallel(p, o, small) for p, o in zip(parts, own, strict=True)]
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
    if not _are_plain(loops) or _trips(loops) < small:
        return None
    outer: list[Any] = []
    for around, axis, value in zip(loops, block.iter_vars, realize.iter_values, strict=False):
        is_axis = int(axis.iter_type) == _SPATIAL and value.same_as(around.loop_var)
        if not is_axis or not _writes_its_own(block, axis.var):
            break
        if _trips(outer) < MIN_PARALLEL_TRIPS:
            outer.append(around)
    if not outer:
        return None
    pairs = [(around.loop_var, int(around.extent)) for around in outer]
    return fused(pairs, within(loops[len(outer) :], realize), tirx.ForKind.PARALLEL)


def _writes_its_own(block: Any, var: Any) -> bool:
    """Whether each value of a variable has elements of its own in all that a block writes.

    TVM asks so of a spatial axis, but compiles a kernel in which it is not.
    """
    body = sequence(*([block.init] if block.init is not None else []), block.body)
    local = [node.buffer for node in nodes_in(body, tirx.AllocBuffer)]
    stores = [s for s in nodes_in(body, tirx.BufferStore) if not is_among(s.buffer, local)]
    if nodes_in(body, tirx.Evaluate):  # a call that may do anything
        return False
    for store in stores:
        accesses = [*stores, *nodes_in(body, Load)]
        of_same = [list(a.indices) for a in accesses if buffer_of(a).same_as(store.buffer)]
        own = [i for i, index in enumerate(store.indices) if index.same_as(var)]
        if not any(all(indices[i].same_as(var) for indices in of_same) for i in own):
            return False
    return bool(stores)


def _mentions(statement: Any, buffer: Any) -> bool:
    return is_among(buffer, nodes_in(statement, tvm.ir.Var))


def _scatter_in_parallel(statement: Any, local: Sequence[Any], small: int) -> Any | None:
    """Loops that add to elements of a buffer, one of them outermost and in parallel.

    None if they stay serial. `local` are the statements that allocate what the loops keep.
    """
    loops: list[Any] = []
    inner = statement
    while isinstance(inner, tirx.For):
        loops.append(inner)
        inner = inner.body
    if not _are_plain(loops) or _trips(loops) < small:
        return None
    kept = [node.buffer for node in [*local, *nodes_in(inner, tirx.AllocBuffer)]]
    stores = [s for s in nodes_in(inner, tirx.BufferStore) if not is_among(s.buffer, kept)]
    if nodes_in(inner, tirx.Evaluate):  # a call that may do anything
        return None
    if not stores or not all(store.buffer.same_as(stores[0].buffer) for store in stores):
        return None
    target = stores[0].buffer
    reads = [load for load in nodes_in(inner, Load) if buffer_of(load).same_as(target)]
    for position in range(len(target.shape)):
        indices = [list(access.indices)[position] for access in [*stores, *reads]]
        chosen = [each for each in loops if all(i.same_as(each.loop_var) for i in indices)]
        behind = [static(extent) for extent in list(target.shape)[position + 1 :]]
        if not chosen or None in behind or math.prod(behind) < _LINE:  # type: ignore[arg-type]
            continue
        (first,) = chosen
        rest = [each for each in loops if not each.same_as(first)]
        pair = (first.loop_var, int(first.extent))
        body = sequence(*local, within(rest, inner))
        return fused([pair], body, tirx.ForKind.PARALLEL)
    return None


def _are_plain(loops: Sequence[Any]) -> bool:
    """Whether loops are serial, from 0, of known lengths, so that they may change places."""
    return bool(loops) and all(
        each.kind == tirx.ForKind.SERIAL
        and static(each.min) == 0
        and static(each.extent) is not None
        and not each.annotations
        for each in loops
    )


def _trips(loops: Sequence[Any]) -> int:
    return math.prod(static(each.extent) or 1 for each in loops)
