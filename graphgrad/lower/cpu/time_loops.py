"""Schedules of loops over time: what one step computes is scheduled as a kernel of its own.

A loop over time (see `graphgrad.fallback.lowering.scans`) is a block for one time in a serial loop.
The stages in it, and those in front of and behind the loop, are no kernel that a schedule takes,
but each run of such stages is: its parameters are the tensors that others access too. What a step
accesses at one time, a row, is a buffer of its own meanwhile (see `rows.py`). Loops over time may
be inside each other. Where steps never read across lanes, such as the batch, the outermost loop may
be one over these (see `lanes.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeAlias

import tvm
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
    uses,
)
from ...ir.loops import block, sequence, within
from ...ir.visits import nodes_in, replace_nodes
from ..kernels.local_values import bind_local_values
from .buffer_views import joined
from .lanes import Split, has_lanes, split_lanes
from .loop_invariants import Hoisted, hoist_invariants
from .map import SMALL, SMALL_STEP
from .parallel_loops import parallelize_loops
from .rows import Inseparable, Rows, separate_rows
from .sink_maps import Sunk, sink_maps
from .tuning import Processor


class ScheduleKernel(Protocol):
    """Schedules a kernel that is made of stages.

    Those with fewer points than `small` are not worth other threads.
    """

    def __call__(self, kernel: tirx.PrimFunc, /, *, small: int) -> tirx.PrimFunc:
        """The kernel, scheduled."""


_LASTING = "graphgrad.lasting"
"""Attribute of the kernel of a run: the numbers of its parameters that no step changes."""

_OPAQUE = int(tirx.IterVar.Opaque)
"""The kind of a block's iterator that is a time."""


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


@dataclass(frozen=True)
class _LaneLoop:
    """A loop over time that each thread goes through for some lanes.

    Attributes
    ----------
    loop : For
    time : Var
    split : Split
    rows : Rows
        The stages of its step.
    """

    loop: Any
    time: Any
    split: Split
    rows: Rows


_Part: TypeAlias = _TimeLoop | _LaneLoop | _Run | _Other


def schedule_time_loops(
    func: tirx.PrimFunc, processor: Processor, schedule: ScheduleKernel, binds: bool
) -> tirx.PrimFunc | None:
    """A kernel in which runs of stages are scheduled, in loops over time and around them.

    What is no stage runs in parallel where it may. None if there are no blocks.

    Parameters
    ----------
    func : PrimFunc
    processor : Processor
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
        changed = parallelize_loops(root, processor, SMALL)
        return None if changed.same_as(root) else func.with_body(changed)
    parts, buffers = _parts(root.block, [])
    if not parts:
        return None
    statements, left = _scheduled(*_with_lanes(parts, buffers, processor), [], processor, schedule)
    return func.with_body(replace_statements(root, statements, left))


def _parts(outer: SBlock, times: Sequence[Any]) -> tuple[list[_Part], list[Any]]:
    """What a block is made of, and the buffers that it and blocks without loops in it allocate.

    Parameters
    ----------
    outer : SBlock
    times : sequence of Var
        The times of all loops around it.
    """
    parts: list[_Part] = []
    buffers = list(outer.alloc_buffers)
    for statement in statements_of(outer.body):
        inner_parts, inner_buffers = _parts_of_statement(statement, times)
        buffers += inner_buffers
        for part in inner_parts:
            if isinstance(part, _Run) and parts and isinstance(parts[-1], _Run):
                parts[-1].nests += part.nests
            else:
                parts.append(part)
    return parts, buffers


def _parts_of_statement(statement: Any, times: Sequence[Any]) -> tuple[list[_Part], list[Any]]:
    """What a statement is made of, and the buffers that blocks without loops in it allocate."""
    nest = loop_nest(statement)
    if nest is None:
        return [_Other(statement)], []
    loops, realize = nest
    if _is_sequence(loops, realize.block):
        return _parts(realize.block, times)
    if _is_time_loop(loops, realize):
        return [_TimeLoop(loops[0], realize.block.iter_vars[0].var, realize.block)], []
    return [_Run([statement]) if _is_stage(statement, times) else _Other(statement)], []


def _is_stage(nest: Any, times: Sequence[Any]) -> bool:
    """Whether a nest is a stage, if need be between rows of one buffer."""
    if stage_of(nest):
        return True
    found = loop_nest(nest)
    if found is None or not isinstance(found[1].block.body, tirx.BufferStore):
        return False
    try:
        (separate,) = separate_rows([nest], [], times).nests
    except Inseparable:
        return False
    return stage_of(separate) is not None


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


def _with_lanes(
    parts: Sequence[_Part], buffers: Sequence[Any], processor: Processor
) -> tuple[list[_Part], list[Any]]:
    """Parts in which loops over time whose lanes are independent are over these, if that pays.

    Behind them what is still allocated of some buffers: maps in front of such a loop are computed
    in its steps.
    """
    result, left = list(parts), list(buffers)
    for number, part in enumerate(result):
        if not isinstance(part, _TimeLoop):
            continue
        front = result[number - 1] if number else None
        nests = front.nests if isinstance(front, _Run) else []
        others = [p for p in result if p is not part and p is not front]
        used_elsewhere = {var for other in others for var in _names(other)}
        movable = [buffer for buffer in left if buffer not in used_elsewhere]
        found = _in_lanes(part, nests, movable, processor)
        if found is None:
            continue
        result[number], sunk = found
        if isinstance(front, _Run):
            front.nests = sunk.left
        left = [buffer for buffer in left if not is_among(buffer, sunk.unused)]
    return [p for p in result if not isinstance(p, _Run) or p.nests], left


def _in_lanes(
    part: _TimeLoop, front: Sequence[Any], movable: Sequence[Any], processor: Processor
) -> tuple[_LaneLoop, Sunk] | None:
    """A loop over time that is over lanes, and what became of the stages in front of it."""
    parts, buffers = _parts(part.block, [part.time])
    if len(parts) != 1 or not isinstance(parts[0], _Run):
        return None
    if not has_lanes(parts[0].nests, [part.time], processor):
        return None
    sunk = sink_maps(front, parts[0].nests, part.time, movable)
    split = split_lanes(sunk.step, [part.time], processor)
    if split is None:
        return None
    try:
        rows = separate_rows(split.nests, [*buffers, *sunk.rows], [part.time], split.tiles)
    except Inseparable:
        return None
    return _LaneLoop(part.loop, part.time, split, rows), sunk


def _scheduled(
    parts: Sequence[_Part],
    buffers: Sequence[Any],
    times: Sequence[Any],
    processor: Processor,
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
    processor : Processor
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
            statement, hoisted = _scheduled_loop(part, times, processor, schedule)
            left += hoisted.buffers
            statements += hoisted.statements
        elif isinstance(part, _LaneLoop):
            statement = _scheduled_lanes(part, schedule)
        else:
            small = SMALL_STEP if times else SMALL
            statement = parallelize_loops(part.statement, processor, small)
        statements.append(statement)
    return statements, left


def _names(part: _Part) -> dict[Any, None]:
    """The variables that a part mentions, buffers among them."""
    if isinstance(part, _Run):
        nests = part.nests
    elif isinstance(part, _LaneLoop):
        nests = [*part.rows.nests, *(view.base for view in part.rows.views)]
    else:
        nests = [part.block.body if isinstance(part, _TimeLoop) else part.statement]
    return dict.fromkeys(var for nest in nests for var in nodes_in(nest, tvm.ir.Var))


def _scheduled_loop(
    part: _TimeLoop, times: Sequence[Any], processor: Processor, schedule: ScheduleKernel
) -> tuple[Any, Hoisted]:
    """A loop over time whose step is scheduled, and what is to be computed in front of it."""
    inner_times = [*times, part.time]
    parts, buffers = _parts(part.block, inner_times)
    statements, left = _scheduled(parts, buffers, inner_times, processor, schedule)
    statements, hoisted = hoist_invariants(statements, part.time)
    step = replace_realized(
        part.loop.body, reads=[], writes=[], body=sequence(*statements), alloc_buffers=left
    )
    return within([part.loop], step), hoisted


def _scheduled_lanes(part: _LaneLoop, schedule: ScheduleKernel) -> Any:
    """A loop over lanes, and in it the one over time, whose step is scheduled for one thread."""
    starts = [tile.start for tile in part.split.tiles]
    step = _scheduled_rows(part.rows, [part.time, *starts], partial(schedule, small=0))
    statements, hoisted = hoist_invariants([step], part.time)
    step = replace_realized(
        part.loop.body, reads=[], writes=[], body=sequence(*statements), alloc_buffers=[]
    )
    body = sequence(*hoisted.statements, within([part.loop], step))
    return part.split.around(body, hoisted.buffers)


def _scheduled_run(
    run: _Run, internal: Sequence[Any], times: Sequence[Any], schedule: ScheduleKernel
) -> tuple[Any, Sequence[Any]]:
    """The statement of stages that are scheduled as a kernel of their own.

    Where that cannot be, they stay as they are, and the second result are their own buffers.
    """
    try:
        rows = separate_rows(run.nests, internal, times)
    except Inseparable:
        return block("stages", *run.nests), internal
    small = SMALL_STEP if times else SMALL
    return _scheduled_rows(rows, times, partial(schedule, small=small)), []


def _scheduled_rows(
    rows: Rows, variables: Sequence[Any], schedule: Callable[[tirx.PrimFunc], tirx.PrimFunc]
) -> Any:
    """The statement of stages that are scheduled as a kernel of their own.

    Parameters
    ----------
    rows : Rows
    variables : sequence of Var
        Those that are given from outside, if they are mentioned.
    schedule : callable
    """
    accesses = [n for nest in rows.nests for n in nodes_in(nest, (Load, tirx.BufferStore))]
    accessed = dict.fromkeys(buffer_of(access) for access in accesses)
    parameters = [buffer for buffer in accessed if not is_among(buffer, rows.internal)]
    mentioned = [var for var in variables if any(uses(nest, var) for nest in rows.nests)]
    root = block("root", *_with_own_names(rows.nests), buffers=rows.internal)
    kernel = tirx.PrimFunc([*parameters, *mentioned], root).with_attr("tirx.noalias", True)
    if variables:
        changing = [view.buffer for view in rows.views]
        changing += [store.buffer for store in nodes_in(rows.nests, tirx.BufferStore)]
        lasting = [n for n, buffer in enumerate(parameters) if not is_among(buffer, changing)]
        kernel = kernel.with_attr(_LASTING, lasting)
    root = joined(schedule(kernel).body, rows.views).block
    return block("stages", *statements_of(root.body), buffers=root.alloc_buffers)


def lasting_parameters(kernel: tirx.PrimFunc) -> list[Any]:
    """The parameters of a kernel that are the same in each step of a loop over time around it."""
    numbers = kernel.attrs[_LASTING] if kernel.attrs and _LASTING in kernel.attrs else []
    return [kernel.params[int(number)] for number in numbers]


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
        renamed.append(within(loops, replace_realized(realize, name_hint=name)))
    return renamed
