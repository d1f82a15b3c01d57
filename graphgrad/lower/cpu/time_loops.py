"""Schedules of loops over time: what one step computes is scheduled as a kernel of its own.

Of each run of stages (see `step_parts.py`) the parameters are the tensors that others access too.
What a step accesses at one time, a row, is a buffer of its own meanwhile (see `rows.py`). Loops
over time may be inside each other, and the outermost inside loops over lanes (see `lane_loops.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, Protocol

from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize

from ...ir.kernel_rewrite import replace_block, replace_realized, replace_statements
from ...ir.kernel_structure import (
    Load,
    Stage,
    buffer_of,
    is_among,
    loop_nest,
    statements_of,
    uses,
    volume,
)
from ...ir.loops import block, sequence, within
from ...ir.visits import nodes_in, replace_nodes
from ..kernels.local_values import bind_local_values
from .buffer_views import joined
from .lane_loops import Lanes, all_in_lanes, names_of, with_lanes
from .loop_invariants import Hoisted, hoist_invariants
from .map import SMALL, SMALL_STEP
from .parallel_loops import parallelize_loops
from .plain_indices import simplify_indices
from .rows import Inseparable, Rows, separate_rows
from .rowwise import MIN_STEP_ROWS
from .sink_maps import sink_maps
from .step_parts import Part, Run, TimeLoop, own_buffers, parts_of
from .tuning import Processor


class ScheduleKernel(Protocol):
    """Schedules a kernel that is made of stages.

    Those with fewer points than `small` are not worth other threads.
    """

    def __call__(self, kernel: tirx.PrimFunc, /, *, small: int) -> tirx.PrimFunc:
        """The kernel, scheduled."""


_LASTING = "graphgrad.lasting"
"""Attribute of the kernel of a run: the numbers of its parameters that no step changes."""


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
    root = simplify_indices(func).body
    parts, buffers = parts_of(root.block, [])
    if not parts:
        return None
    whole = all_in_lanes(parts, buffers, processor)
    in_lanes, left = ([whole], []) if whole else with_lanes(parts, buffers, processor)
    sunk, left = _with_sunk_maps(in_lanes, left)
    statements, left = _scheduled(sunk, left, [], processor, schedule)
    return func.with_body(replace_statements(root, statements, left))


def _with_sunk_maps(
    parts: Sequence[Part | Lanes], buffers: Sequence[Any]
) -> tuple[list[Part | Lanes], list[Any]]:
    """Parts of a kernel in which loops over time compute the large maps in front of them.

    Behind them what is still allocated of some buffers. A step computes them in its chains of rows
    (see `rowwise`), where they need no barrier; for all times they would take room, and time to be
    written and read. Loops of anything but one run of stages stay as they are.

    Parameters
    ----------
    parts : sequence of Part or Lanes
    buffers : sequence of Buffer
        What the block around the parts allocates.
    """
    result, left = list(parts), list(buffers)
    for number, (front, loop) in enumerate(pairwise(parts), 1):
        if not isinstance(front, Run) or not isinstance(loop, TimeLoop):
            continue
        others = [part for part in parts if part is not front and part is not loop]
        used_elsewhere = {var for other in others for var in names_of(other)}
        movable = [buffer for buffer in left if buffer not in used_elsewhere]
        inner, own = parts_of(loop.block, [loop.time])
        if len(inner) != 1 or not isinstance(inner[0], Run):
            continue
        sunk = sink_maps(front.nests, inner[0].nests, loop.time, movable, _is_large)
        front.nests = sunk.left
        step = replace_block(
            loop.block, body=sequence(*sunk.step), alloc_buffers=[*own, *sunk.rows]
        )
        result[number] = replace(loop, block=step)
        left = [buffer for buffer in left if not is_among(buffer, sunk.unused)]
    return [part for part in result if not isinstance(part, Run) or part.nests], left


def _is_large(stage: Stage) -> bool:
    """Whether a map has rows, in each step, that threads share."""
    _, *axes = stage.axes
    return volume(axes) >= SMALL_STEP and volume(axes[:-1]) >= MIN_STEP_ROWS


def _scheduled(
    parts: Sequence[Part | Lanes],
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
    takes = [isinstance(part, Run) for part in parts]
    own, left = own_buffers(buffers, [names_of(part) for part in parts], takes)
    statements = []
    for part, internal in zip(parts, own, strict=True):
        if isinstance(part, Run):
            statement, outside = _scheduled_run(part, internal, times, schedule)
            left += outside
        elif isinstance(part, TimeLoop):
            statement, hoisted = _scheduled_loop(part, times, processor, schedule)
            left += hoisted.buffers
            statements += hoisted.statements
        elif isinstance(part, Lanes):
            statement = _scheduled_lanes(part, schedule)
        else:
            small = SMALL_STEP if times else SMALL
            statement = parallelize_loops(part.statement, processor, small)
        statements.append(statement)
    return statements, left


def _scheduled_loop(
    part: TimeLoop, times: Sequence[Any], processor: Processor, schedule: ScheduleKernel
) -> tuple[Any, Hoisted]:
    """A loop over time whose step is scheduled, and what is to be computed in front of it."""
    inner_times = [*times, part.time]
    parts, buffers = parts_of(part.block, inner_times)
    statements, left = _scheduled(parts, buffers, inner_times, processor, schedule)
    statements, hoisted = hoist_invariants(statements, part.time)
    step = replace_realized(
        part.loop.body, reads=[], writes=[], body=sequence(*statements), alloc_buffers=left
    )
    return within([part.loop], step), hoisted


def _scheduled_lanes(lanes: Lanes, schedule: ScheduleKernel) -> Any:
    """A loop over lanes, and in it those over time, whose steps are scheduled for one thread."""
    starts = [tile.start for tile in lanes.split.tiles]
    statements, buffers = [], list(lanes.buffers)
    for part in lanes.parts:
        times = [part.loop.time] if part.loop else []
        stages = schedule_rows(part.rows, [*times, *starts], partial(schedule, small=0))
        if part.loop is None:
            statements.append(stages)
            continue
        steps, hoisted = hoist_invariants([stages], part.loop.time)
        step = replace_realized(
            part.loop.loop.body, reads=[], writes=[], body=sequence(*steps), alloc_buffers=[]
        )
        statements += [*hoisted.statements, within([part.loop.loop], step)]
        buffers += hoisted.buffers
    return lanes.split.around(joined(sequence(*statements), lanes.views), buffers)


def _scheduled_run(
    run: Run, internal: Sequence[Any], times: Sequence[Any], schedule: ScheduleKernel
) -> tuple[Any, Sequence[Any]]:
    """The statement of stages that are scheduled as a kernel of their own.

    Where that cannot be, they stay as they are, and the second result are their own buffers.
    """
    try:
        rows = separate_rows(run.nests, internal, times)
    except Inseparable:
        return block("stages", *run.nests), internal
    small = SMALL_STEP if times else SMALL
    return schedule_rows(rows, times, partial(schedule, small=small)), []


def schedule_rows(
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
    root = block("root", *_with_ownnames_of(rows.nests), buffers=rows.internal)
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


def _with_ownnames_of(nests: Sequence[Any]) -> list[Any]:
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
