"""Schedules of loops over time: what one step computes is scheduled as a kernel of its own.

A loop over time (see `graphgrad.fallback.lowering.scans`) is a block for one time in a serial loop.
The stages in it, and those in front of and behind the loop, are no kernel that a schedule takes,
but each run of such stages is: its parameters are the tensors that others access too. What a step
accesses at one time, a row, is a buffer of its own meanwhile, so that rows that were written before
and the row that is written now are different tensors. Loops over time may be inside each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Range
from tvm.s_tir import SBlock, SBlockRealize

from ...ir.kernel_rewrite import replace_block, replace_realized
from ...ir.kernel_structure import (
    Load,
    is_among,
    loop_nest,
    stage_of,
    statements_of,
    static,
    substitute_values,
    uses,
)
from ...ir.loops import block, loop, sequence
from ...ir.visits import nodes_in
from ..kernels.local_values import bind_local_values
from .buffer_views import BufferView, joined

ScheduleKernel = Callable[[tirx.PrimFunc], tirx.PrimFunc]

_OPAQUE = int(tirx.IterVar.Opaque)
"""The kind of a block's iterator that is a time."""


class _Refused(Exception):
    """A kernel that is not made of stages and of loops over time alone."""


@dataclass(frozen=True)
class _TimeLoop:
    """A serial loop around the block of one time."""

    loop: Any
    time: Any
    block: SBlock


@dataclass
class _Run:
    """Stages that follow one another."""

    nests: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class _Row:
    """The elements of a buffer at one time.

    Attributes
    ----------
    base : Buffer
    index : Expr
        The first index, which depends on the time.
    buffer : Buffer
        What stands for them.
    """

    base: Any
    index: Any
    buffer: Any


def schedule_time_loops(func: tirx.PrimFunc, schedule: ScheduleKernel) -> tirx.PrimFunc | None:
    """A kernel in which runs of stages are scheduled, in loops over time and around them.

    None if it has no such loop, or holds anything else.

    Parameters
    ----------
    func : PrimFunc
    schedule : callable
        Schedules a kernel that is made of stages.
    """
    root = func.body
    if not isinstance(root, SBlockRealize) or root.block.iter_vars:
        return None
    try:
        parts, buffers = _parts(root.block)
        if not any(isinstance(part, _TimeLoop) for part in parts):
            return None
        statements, left = _scheduled(parts, buffers, [], schedule)
    except _Refused:
        return None
    return func.with_body(
        replace_realized(root, body=sequence(*statements), alloc_buffers=left)
    )


def _parts(outer: SBlock) -> tuple[list[_Run | _TimeLoop], list[Any]]:
    """What a block is made of, and the buffers that it and blocks without loops in it allocate."""
    parts: list[_Run | _TimeLoop] = []
    buffers = list(outer.alloc_buffers)
    for statement in statements_of(outer.body):
        nest = loop_nest(statement)
        if nest is None:
            raise _Refused
        loops, realize = nest
        inner = realize.block
        if inner.match_buffers or inner.init is not None and not inner.iter_vars:
            raise _Refused
        if not inner.iter_vars and not loops and _holds_blocks(inner):
            inner_parts, inner_buffers = _parts(inner)
            buffers += inner_buffers
        elif _is_time_loop(loops, realize):
            inner_parts = [_TimeLoop(loops[0], inner.iter_vars[0].var, inner)]
        else:
            changed = replace_realized_block(statement, bind_local_values(inner))
            if stage_of(changed) is None:
                raise _Refused
            inner_parts = [_Run([changed])]
        for part in inner_parts:
            if isinstance(part, _Run) and parts and isinstance(parts[-1], _Run):
                parts[-1].nests += part.nests
            else:
                parts.append(part)
    return parts, buffers


def _holds_blocks(outer: SBlock) -> bool:
    return bool(nodes_in(outer.body, SBlock))


def _is_time_loop(loops: Sequence[Any], realize: Any) -> bool:
    """Whether a nest is one serial loop around a block of one time."""
    iterators = realize.block.iter_vars
    return (
        len(loops) == len(iterators) == 1
        and loops[0].kind == tirx.ForKind.SERIAL
        and int(iterators[0].iter_type) == _OPAQUE
        and realize.iter_values[0].same_as(loops[0].loop_var)
        and realize.block.init is None
        and _holds_blocks(realize.block)
    )


def replace_realized_block(nest: Any, changed: SBlock) -> Any:
    """A loop nest around another block."""
    nested = loop_nest(nest)
    assert nested is not None
    loops, realize = nested
    if changed.same_as(realize.block):
        return nest
    result: Any = SBlockRealize(realize.iter_values, realize.predicate, changed)
    for around in reversed(loops):
        result = loop(around.loop_var, around.extent, result, around.kind, around.min)
    return result


def _scheduled(
    parts: Sequence[_Run | _TimeLoop],
    buffers: Sequence[Any],
    times: Sequence[Any],
    schedule: ScheduleKernel,
) -> tuple[list[Any], list[Any]]:
    """Scheduled parts, and those buffers that lie outside of any single one.

    Parameters
    ----------
    parts : sequence
    buffers : sequence of Buffer
        What the block around the parts allocates.
    times : sequence of Var
        The times of all loops around the parts.
    schedule : callable
    """
    accessed = [_accessed(part) for part in parts]
    left, own = [], [[] for _ in parts]
    for buffer in buffers:
        users = [number for number, names in enumerate(accessed) if buffer in names]
        if len(users) == 1 and isinstance(parts[users[0]], _Run):
            own[users[0]].append(buffer)
        elif users:
            left.append(buffer)
    statements = []
    for part, internal in zip(parts, own, strict=True):
        if isinstance(part, _Run):
            statements.append(_scheduled_run(part, internal, times, schedule))
        else:
            statements.append(_scheduled_loop(part, times, schedule))
    return statements, left


def _accessed(part: _Run | _TimeLoop) -> dict[Any, Any]:
    """The buffers that a part accesses, as keys."""
    nests = part.nests if isinstance(part, _Run) else [part.block.body]
    accessed: dict[Any, Any] = {}
    for nest in nests:
        for node in nodes_in(nest, (Load, tirx.BufferStore)):
            accessed[node.source if isinstance(node, Load) else node.buffer] = node
    return accessed


def _scheduled_loop(part: _TimeLoop, times: Sequence[Any], schedule: ScheduleKernel) -> Any:
    """A loop over time whose step is scheduled."""
    parts, buffers = _parts(part.block)
    # Passes of TVM overlook uses of what statements have in common (see `explicit_bindings`):
    # what depends on the time reads it from memory, which they let alone.
    dtype = str(part.time.ty)
    time = tirx.decl_buffer((1,), dtype, "time", scope="local")
    inside = tirx.Var(part.time.name, dtype)
    statements, left = _scheduled(parts, buffers, [*times, part.time], schedule)
    read = {part.time: tirx.BufferLoad(time, [0])}
    body = sequence(
        tirx.AllocBuffer(time),
        tirx.BufferStore(time, inside, [0]),
        *(substitute_values(statement, read) for statement in statements),
    )
    iterator = part.block.iter_vars[0]
    axis = tirx.IterVar(iterator.dom, inside, iterator.iter_type)
    step = SBlock(
        [axis], [], [], part.block.name_hint, body, alloc_buffers=left,
        annotations=part.block.annotations,
    )  # fmt: skip
    realize = SBlockRealize([part.loop.loop_var], tirx.const(True, "bool"), step)
    return loop(part.loop.loop_var, part.loop.extent, realize, start=part.loop.min)


def _scheduled_run(
    run: _Run, internal: Sequence[Any], times: Sequence[Any], schedule: ScheduleKernel
) -> Any:
    """The statement of stages that are scheduled as a kernel of their own."""
    nests, rows = _with_rows(run.nests, internal, times)
    accessed = _accessed(_Run(nests))
    parameters = [buffer for buffer in accessed if not is_among(buffer, internal)]
    variables = [time for time in times if any(uses(nest, time) for nest in nests)]
    kernel = tirx.PrimFunc(
        [*parameters, *variables], block("root", *nests, buffers=internal)
    )
    body = schedule(kernel.with_attr("tirx.noalias", True)).body
    views = [BufferView(row.buffer, row.base, _in_base(row.index)) for row in rows]
    root = joined(body, views).block
    return block("stages", *statements_of(root.body), buffers=root.alloc_buffers)


def _in_base(index: Any) -> Callable[[Sequence[Any]], list[Any]]:
    return lambda indices: [index, *indices]


def _with_rows(
    nests: Sequence[Any], internal: Sequence[Any], times: Sequence[Any]
) -> tuple[list[Any], list[_Row]]:
    """Nests in which the rows that are accessed at one time are buffers of their own.

    Raises
    ------
    _Refused
        What one of them writes, another may access under another name.
    """
    rows: list[_Row] = []
    others: list[Any] = []
    written: list[Any] = []

    def row_of(buffer: Any, indices: Sequence[Any]) -> _Row | None:
        if is_among(buffer, internal) or not _is_row(indices, times) or len(indices) < 2:
            return None
        for row in rows:
            if row.base.same_as(buffer) and tvm_ffi.structural_equal(row.index, indices[0]):
                return row
        stand_in = tirx.decl_buffer(list(buffer.shape)[1:], str(buffer.dtype), buffer.name)
        rows.append(_Row(buffer, indices[0], stand_in))
        return rows[-1]

    def change(node: Any) -> Any:
        is_store = isinstance(node, tirx.BufferStore)
        buffer = node.buffer if is_store else node.source
        indices = list(node.indices)
        row = row_of(buffer, indices)
        if row is None:
            others.append(buffer)
            if is_store:
                written.append(buffer)
            return node
        if is_store:
            written.append(row)
            return tirx.BufferStore(row.buffer, node.value, indices[1:])
        return tirx.BufferLoad(row.buffer, indices[1:])

    def rewrite(node: Any) -> Any:
        return _region_of_row(node, rows) if isinstance(node, SBlock) else change(node)

    kinds = (Load, tirx.BufferStore, SBlock)
    changed = [tvm_ffi.structural_map(nest, (kinds, rewrite)) for nest in nests]
    _check_apart(rows, others, written)
    return changed, rows


def _is_row(indices: Sequence[Any], times: Sequence[Any]) -> bool:
    """Whether an access is at one time: the first index depends on times alone, and others not."""
    variables = nodes_in(indices[0], tvm.ir.Var)
    return (
        bool(variables)
        and all(is_among(var, times) for var in variables)
        and not nodes_in(indices[0], Load)
        and not any(uses(index, time) for index in indices[1:] for time in times)
    )


def _region_of_row(outer: SBlock, rows: Sequence[_Row]) -> SBlock:
    """A block that says what it accesses of rows."""

    def moved(region: Any) -> Any:
        first = region.region[0].min
        for row in rows:
            if row.base.same_as(region.source) and tvm_ffi.structural_equal(row.index, first):
                return tvm.ir.TensorRegion(row.buffer, list(region.region)[1:], region.ty)
        return region

    return replace_block(
        outer, reads=[*map(moved, outer.reads)], writes=[*map(moved, outer.writes)]
    )


def _check_apart(rows: Sequence[_Row], others: Sequence[Any], written: Sequence[Any]) -> None:
    """Raise unless what is written under one name is accessed under no other."""
    for target in written:
        if not isinstance(target, _Row):
            if any(row.base.same_as(target) for row in rows):
                raise _Refused
            continue
        if is_among(target.base, others):
            raise _Refused
        for row in rows:
            if row is not target and row.base.same_as(target.base):
                if not _differ(row.index, target.index):
                    raise _Refused


def _differ(a: Any, b: Any) -> bool:
    """Whether two indices are never the same."""
    analyzer = tvm.sym.Analyzer()
    modulus = None
    if isinstance(a, tirx.FloorMod) and isinstance(b, tirx.FloorMod):
        modulus = static(a.b)
        if modulus is None or static(b.b) != modulus:
            return False
        a, b = a.a, b.a
    distance = static(analyzer.simplify(a - b))
    return distance is not None and (distance % modulus if modulus else distance) != 0
