"""Schedules of loops over time: what one step computes is scheduled as a kernel of its own.

A loop over time (see `graphgrad.fallback.lowering.scans`) is a block for one time in a serial loop.
The stages in it, and those in front of and behind the loop, are no kernel that a schedule takes,
but each run of such stages is: its parameters are the tensors that others access too. What a step
accesses at one time, a row, is a buffer of its own meanwhile, so that rows that were written before
and the row that is written now are different tensors. Loops over time may be inside each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize

from ...ir.kernel_rewrite import replace_realized, replace_statements
from ...ir.kernel_structure import (
    Load,
    buffer_of,
    is_among,
    loop_nest,
    stage_of,
    statements_of,
    static,
    uses,
)
from ...ir.loops import block, loop, sequence
from ...ir.visits import nodes_in, replace_nodes
from ..kernels.local_values import bind_local_values, restate_regions
from .buffer_views import BufferView, joined
from .loop_invariants import Hoisted, hoist_invariants
from .map import SMALL, SMALL_STEP
from .parallel_loops import parallelize_loops

ScheduleKernel = Callable[[tirx.PrimFunc, bool], tirx.PrimFunc]
"""Schedules a kernel that is made of stages; the second argument says whether a loop repeats it."""

_OPAQUE = int(tirx.IterVar.Opaque)
"""The kind of a block's iterator that is a time."""


class _Refused(Exception):
    """Stages between which rows cannot be told apart."""


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
class _Other:
    """A statement that stays as it is."""

    statement: Any


_Part: TypeAlias = _TimeLoop | _Run | _Other


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


def schedule_time_loops(
    func: tirx.PrimFunc, schedule: ScheduleKernel, binds: bool
) -> tirx.PrimFunc | None:
    """A kernel in which runs of stages are scheduled, in loops over time and around them.

    What is no stage runs in parallel where it may. None if there are no blocks.

    Parameters
    ----------
    func : PrimFunc
    schedule : callable
    binds : bool
        As in `schedule_loops`.
    """
    if binds:
        body = replace_nodes(func.body, SBlock, bind_local_values)
        func = func if body.same_as(func.body) else func.with_body(body)
    root = func.body
    if not isinstance(root, SBlockRealize) or root.block.iter_vars:
        return None
    if not nodes_in(root.block.body, SBlock):  # the only block of a kernel is its root
        changed = parallelize_loops(root, SMALL)
        return None if changed.same_as(root) else func.with_body(changed)
    parts, buffers = _parts(root.block)
    if not parts:
        return None
    statements, left = _scheduled(parts, buffers, [], schedule)
    return func.with_body(replace_statements(root, statements, left))


def _parts(outer: SBlock) -> tuple[list[_Part], list[Any]]:
    """What a block is made of, and the buffers that it and blocks without loops in it allocate."""
    parts: list[_Part] = []
    buffers = list(outer.alloc_buffers)
    for statement in statements_of(outer.body):
        inner_parts, inner_buffers = _parts_of_statement(statement)
        buffers += inner_buffers
        for part in inner_parts:
            if isinstance(part, _Run) and parts and isinstance(parts[-1], _Run):
                parts[-1].nests += part.nests
            else:
                parts.append(part)
    return parts, buffers


def _parts_of_statement(statement: Any) -> tuple[list[_Part], list[Any]]:
    """What a statement is made of, and the buffers that blocks without loops in it allocate."""
    nest = loop_nest(statement)
    if nest is None:
        return [_Other(statement)], []
    loops, realize = nest
    if _is_sequence(loops, realize.block):
        return _parts(realize.block)
    if _is_time_loop(loops, realize):
        return [_TimeLoop(loops[0], realize.block.iter_vars[0].var, realize.block)], []
    return [_Run([statement]) if stage_of(statement) else _Other(statement)], []


def _is_sequence(loops: Sequence[Any], outer: SBlock) -> bool:
    """Whether a block does nothing but to hold others."""
    return (
        not loops
        and not outer.iter_vars
        and not outer.match_buffers
        and outer.init is None
        and bool(nodes_in(outer.body, SBlock))
    )


def _is_time_loop(loops: Sequence[Any], realize: Any) -> bool:
    """Whether a nest is one serial loop around a block of one time."""
    outer = realize.block
    return (
        len(loops) == len(outer.iter_vars) == 1
        and loops[0].kind == tirx.ForKind.SERIAL
        and int(outer.iter_vars[0].iter_type) == _OPAQUE
        and realize.iter_values[0].same_as(loops[0].loop_var)
        and not outer.match_buffers
        and outer.init is None
        and bool(nodes_in(outer.body, SBlock))
    )


def _around(loops: Sequence[Any], body: Any) -> Any:
    """The same loops around another statement."""
    for outer in reversed(loops):
        body = loop(outer.loop_var, outer.extent, body, outer.kind, outer.min)
    return body


def _scheduled(
    parts: Sequence[_Part],
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
    named = [_names(part) for part in parts]
    left: list[Any] = []
    own: list[list[Any]] = [[] for _ in parts]
    for buffer in buffers:
        users = [number for number, names in enumerate(named) if buffer in names]
        if len(users) == 1 and isinstance(parts[users[0]], _Run):
            own[users[0]].append(buffer)
        else:
            left.append(buffer)
    statements = []
    for part, internal in zip(parts, own, strict=True):
        if isinstance(part, _Run):
            statement, outside = _scheduled_run(part, internal, times, schedule)
            left += outside
        elif isinstance(part, _TimeLoop):
            statement, hoisted = _scheduled_loop(part, times, schedule)
            left += hoisted.buffers
            statements += hoisted.statements
        else:
            statement = parallelize_loops(part.statement, SMALL_STEP if times else SMALL)
        statements.append(statement)
    return statements, left


def _names(part: _Part) -> dict[Any, None]:
    """The variables that a part mentions, buffers among them."""
    if isinstance(part, _Run):
        nests = part.nests
    else:
        nests = [part.block.body if isinstance(part, _TimeLoop) else part.statement]
    return dict.fromkeys(var for nest in nests for var in nodes_in(nest, tvm.ir.Var))


def _scheduled_loop(
    part: _TimeLoop, times: Sequence[Any], schedule: ScheduleKernel
) -> tuple[Any, Hoisted]:
    """A loop over time whose step is scheduled, and what is to be computed in front of it."""
    parts, buffers = _parts(part.block)
    statements, left = _scheduled(parts, buffers, [*times, part.time], schedule)
    statements, hoisted = hoist_invariants(statements, part.time)
    step = replace_realized(
        part.loop.body, reads=[], writes=[], body=sequence(*statements), alloc_buffers=left
    )
    return _around([part.loop], step), hoisted


def _scheduled_run(
    run: _Run, internal: Sequence[Any], times: Sequence[Any], schedule: ScheduleKernel
) -> tuple[Any, Sequence[Any]]:
    """The statement of stages that are scheduled as a kernel of their own.

    Where that cannot be, they stay as they are, and the second result are their own buffers.
    """
    try:
        nests, rows = _with_rows(run.nests, internal, times)
    except _Refused:
        return block("stages", *run.nests), internal
    accesses = [n for nest in nests for n in nodes_in(nest, (Load, tirx.BufferStore))]
    accessed = dict.fromkeys(buffer_of(access) for access in accesses)
    parameters = [buffer for buffer in accessed if not is_among(buffer, internal)]
    variables = [time for time in times if any(uses(nest, time) for nest in nests)]
    root = block("root", *_with_own_names(nests), buffers=internal)
    kernel = tirx.PrimFunc([*parameters, *variables], root)
    body = schedule(kernel.with_attr("tirx.noalias", True), bool(times)).body
    views = [BufferView(row.buffer, row.base, _in_base(row.index)) for row in rows]
    root = joined(body, views).block
    return block("stages", *statements_of(root.body), buffers=root.alloc_buffers), []


def _with_own_names(nests: Sequence[Any]) -> list[Any]:
    """Stages by whose names a schedule can find them: each has one of its own."""
    taken: set[str] = set()
    renamed = []
    for nest in nests:
        loops, realize = loop_nest(nest) or ([], None)
        assert realize is not None
        name = str(realize.block.name_hint)
        while name in taken:
            name += "_"
        taken.add(name)
        renamed.append(_around(loops, replace_realized(realize, name_hint=name)))
    return renamed


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
        if len(indices) < 2 or is_among(buffer, internal) or not _is_row(indices, times):
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

    changes = [((Load, tirx.BufferStore), change), (SBlock, restate_regions)]
    changed = [tvm_ffi.structural_map(nest, changes) for nest in nests]
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
            is_other = row is not target and row.base.same_as(target.base)
            if is_other and not _differ(row.index, target.index):
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
