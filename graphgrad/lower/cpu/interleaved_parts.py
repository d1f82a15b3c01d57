"""The nests of an interleaved tensor's residue classes in shared loops.

Each residue class of a tensor (`residues.py`) has a nest of its own, which goes over all of the
tensor and stores to every other element along a strided axis. Where such a nest has little to
compute, as in the data gradient of a strided depthwise convolution, what takes time is memory: in
shared loops the nests store neighbors one after the other, and what all of them read is in the
cache.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import tirx
from tvm.s_tir import SBlockRealize
from tvm.tirx import ForKind

from ...ir.kernel_rewrite import replace_statements
from ...ir.kernel_structure import (
    Load,
    buffer_of,
    is_among,
    statements_of,
    static,
    substitute_values,
    uses,
)
from ...ir.loops import block, fused, sequence, within
from ...ir.visits import nodes_in
from .buffer_views import BufferView


@dataclass(frozen=True)
class _Nest:
    """The nest of one part.

    Attributes
    ----------
    base : Buffer
        The whole tensor.
    loops : list of For
        Those that vectors of the part do not lie along, from the outermost.
    body : Stmt
        What is inside them.
    is_map : bool
        Whether the trips of all loops are independent of each other.
    """

    base: Any
    loops: list[Any]
    body: Any
    is_map: bool


def interleave_parts(root: SBlockRealize, parts: Sequence[BufferView]) -> SBlockRealize:
    """A kernel's root block in which neighboring nests of the same tensor's parts share loops.

    Parameters
    ----------
    root : SBlockRealize
        Scheduled; accesses are of the parts, not of the whole tensors yet.
    parts : sequence of BufferView
    """
    if not parts:
        return root
    groups: list[tuple[Any, list[_Nest]]] = []
    for statement in statements_of(root.block.body):
        nest = _nest_of(statement, parts)
        before = groups[-1][1] if groups else []
        if nest is not None and before and before[0].base.same_as(nest.base):
            before.append(nest)
            groups[-1] = (sequence(*statements_of(groups[-1][0]), statement), before)
        else:
            groups.append((statement, [] if nest is None else [nest]))
    statements = [_shared(nests) or original for original, nests in groups]
    flat = [each for statement in statements for each in statements_of(statement)]
    return replace_statements(root, flat, root.block.alloc_buffers)


def _nest_of(statement: Any, parts: Sequence[BufferView]) -> _Nest | None:
    """The nest that a statement is; None unless it stores to one part, and reads none."""
    inner = statement
    if isinstance(statement, SBlockRealize):  # around the loops of a contraction
        if statement.block.alloc_buffers or statement.block.iter_vars:
            return None
        inner = statement.block.body
    realizes = nodes_in(inner, SBlockRealize)
    own = [buffer for realize in realizes for buffer in realize.block.alloc_buffers]
    stores = [s for s in nodes_in(inner, tirx.BufferStore) if not is_among(s.buffer, own)]
    views = [view for view in parts if stores and stores[0].buffer.same_as(view.buffer)]
    part_buffers = [view.buffer for view in parts]
    if (
        not views
        or not all(store.buffer.same_as(views[0].buffer) for store in stores)
        or any(is_among(buffer_of(load), part_buffers) for load in nodes_in(inner, Load))
    ):
        return None
    values = {
        iterator.var: value
        for realize in realizes
        for iterator, value in zip(realize.block.iter_vars, realize.iter_values, strict=True)
    }
    vector_indices = [substitute_values(store.indices[-1], values) for store in stores]
    loops: list[Any] = []
    while _is_plain(inner) and not any(uses(each, inner.loop_var) for each in vector_indices):
        loops.append(inner)
        inner = inner.body
    return _Nest(views[0].base, loops, inner, all(r.block.iter_vars for r in realizes))


def _is_plain(statement: Any) -> bool:
    """Whether a statement is a loop from zero, serial or parallel, of a known number of trips."""
    return (
        isinstance(statement, tirx.For)
        and statement.kind in (ForKind.SERIAL, ForKind.PARALLEL)
        and static(statement.min) == 0
        and static(statement.extent) is not None
        and not statement.annotations
    )


def _shared(nests: Sequence[_Nest]) -> Any | None:
    """One nest in the place of several; None if they have no loops in common."""
    if len(nests) < 2:
        return None
    tasks = max((int(nest.loops[0].extent) for nest in nests if nest.loops), default=0)
    first, *others = aligned = [_with_tasks(nest, tasks) for nest in nests]
    count = min(len(nest.loops) for nest in aligned)
    shared = 0
    while shared < count and all(_alike(first.loops[shared], n.loops[shared]) for n in others):
        shared += 1
    if shared == 0:
        return None
    bodies = []
    for nest in aligned:
        pairs = zip(nest.loops[:shared], first.loops[:shared], strict=True)
        names = {own.loop_var: other.loop_var for own, other in pairs if own is not other}
        body = within(nest.loops[shared:], nest.body)
        bodies.append(substitute_values(body, names) if names else body)
    return block("interleaved", within(first.loops[:shared], sequence(*bodies)))


def _with_tasks(nest: _Nest, tasks: int) -> _Nest:
    """A nest whose first loop has a number of trips, by fusion of leading loops; else as it is."""
    extents = [int(each.extent) for each in nest.loops]
    for count in range(2, len(extents) + 1):
        if nest.is_map and math.prod(extents[:count]) == tasks:
            leading, inner = nest.loops[:count], within(nest.loops[count:], nest.body)
            around = [(each.loop_var, int(each.extent)) for each in leading]
            whole = fused(around, inner, leading[0].kind)
            loops = [whole]
            while len(loops) < len(nest.loops) - count + 1:
                loops.append(loops[-1].body)
            return replace(nest, loops=loops, body=loops[-1].body)
    return nest


def _alike(loop: Any, other: Any) -> bool:
    return loop.kind == other.kind and static(loop.extent) == static(other.extent)
