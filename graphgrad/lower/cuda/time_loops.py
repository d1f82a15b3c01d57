"""Loops over time: the host queues, for each time, launches that compute one step.

A step is scheduled as a kernel of its own, in which the rows of one time are tensors (see
`graphgrad.lower.cpu.time_loops`, whose parts these are). So its products are in tiles, or on tensor
cores, and its maps are joined, as anywhere; what does not depend on the state before is computed
for all times at once, in front of the loop. A step that is recorded as a graph is one launch for
the host all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from operator import mul
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import prim
from tvm.s_tir import SBlock, SBlockRealize

from ...ir.kernel_rewrite import replace_realized
from ...ir.kernel_structure import Load, substitute_values
from ...ir.loops import index, load, sequence, store, within
from ...ir.visits import nodes_in, replace_nodes
from ..cpu.buffer_views import BufferView, address
from ..cpu.lane_loops import names_of
from ..cpu.rows import Inseparable, separate_rows
from ..cpu.step_parts import Part, Run, TimeLoop, own_buffers, parts_of
from ..cpu.time_loops import schedule_rows
from ..kernels.local_values import bind_local_values
from .parallel import launch_points
from .stages import one_thread_per_element, tile_contractions


def launch_steps(
    func: tirx.PrimFunc, target: tvm.target.Target, tf32: bool = False
) -> tirx.PrimFunc | None:
    """The PrimFunc with launches for each time of its loops over time; None if it has none."""
    bound = func.with_body(replace_nodes(func.body, SBlock, _without_local_values))
    root = bound.body
    if not isinstance(root, SBlockRealize) or root.block.iter_vars:
        return None
    parts, buffers = parts_of(root.block, [])
    if not any(isinstance(part, TimeLoop) for part in parts):
        return None
    body = _launched(parts, buffers, [], partial(_launch_stages, target=target, tf32=tf32))
    return func.with_body(replace_realized(root, body=body, alloc_buffers=[]))


def _without_local_values(block: SBlock) -> SBlock:
    """A block that stores one expression, if it is one with values in local memory.

    What was kept is put in where it is read: CUDA source has no choices with bindings in them, and
    the compiler finds what is computed twice.
    """
    return replace_nodes(bind_local_values(block), prim.Let, _put_in)


def _put_in(let: Any) -> Any:
    return substitute_values(let.body, {let.var: let.value})


def _launched(
    parts: Sequence[Part], buffers: Sequence[Any], times: Sequence[Any], schedule: Any
) -> Any:
    """The launches of some parts, and what they hand to each other in memory of the device.

    Parameters
    ----------
    parts : sequence
    buffers : sequence of Buffer
        What the block around the parts allocates.
    times : sequence of Var
        The times of all loops around the parts.
    schedule : callable
        Schedules a kernel that is made of stages.
    """
    takes = [isinstance(part, Run) for part in parts]
    own, between = own_buffers(buffers, [names_of(part) for part in parts], takes)
    statements: list[Any] = []
    for part, internal in zip(parts, own, strict=True):
        if isinstance(part, Run):
            statement, outside = _launched_run(part, internal, times, schedule)
            between += outside
        elif isinstance(part, TimeLoop):
            inner_times = [*times, part.time]
            body = _launched(*parts_of(part.block, inner_times), inner_times, schedule)
            step = replace_realized(
                part.loop.body, reads=[], writes=[], body=body, alloc_buffers=[]
            )
            statement = within([part.loop], step)
        else:
            statement = launch_points(part.statement)
        statements.append(statement)
    # As statements: TVM moves the buffers of a block into a launch that alone uses them.
    used = {var for part in parts for var in names_of(part)}
    allocated = [tirx.AllocBuffer(buffer) for buffer in between if buffer in used]
    return sequence(*allocated, *statements)


def _launched_run(
    run: Run, internal: Sequence[Any], times: Sequence[Any], schedule: Any
) -> tuple[Any, Sequence[Any]]:
    """The launches of a run of stages, and those of its own buffers that lie outside of these."""
    try:
        rows = separate_rows(run.nests, internal, times)
    except Inseparable:
        return sequence(*map(launch_points, run.nests)), internal
    return schedule_rows(rows, times, partial(schedule, views=rows.views)), []


def _launch_stages(
    func: tirx.PrimFunc, *, target: tvm.target.Target, tf32: bool, views: Sequence[BufferView]
) -> tirx.PrimFunc:
    """A kernel that is made of stages, with each of them launched."""
    launched = tile_contractions(func, target, tf32) or one_thread_per_element(func, target)
    assert launched is not None
    return launched.with_body(_with_lines_of_bases(launched.body, views))


def _with_lines_of_bases(body: Any, views: Sequence[BufferView]) -> Any:
    """Launches that access rows by the numbers of their elements in the whole buffer.

    Launches that are joined access tensors by such numbers, in one-dimensional buffers with the
    tensors' addresses. A row has none: it stands for elements of a buffer.
    """
    rows = {view.buffer: view for view in views}
    lines: dict[Any, tuple[Any, Any]] = {}
    declared: dict[Any, Any] = {}
    for each in nodes_in(body, tirx.DeclBuffer):
        (owner,) = nodes_in(each.data, tvm.ir.Var)
        if owner in rows:
            base, shape = rows[owner].base, rows[owner].buffer.shape
            line = tirx.decl_buffer([reduce(mul, base.shape)], str(base.dtype), "flat")
            first = rows[owner].to_base([index(0)] * len(shape))
            lines[each.buffer] = line, address(base, first)
            declared[each.buffer] = tirx.DeclBuffer(line, data=base.data)

    def loaded(access: Any) -> Any:
        if access.source not in lines:
            return access
        line, start = lines[access.source]
        return load(line, [start + access.indices[0]])

    def stored(access: Any) -> Any:
        if access.buffer not in lines:
            return access
        line, start = lines[access.buffer]
        return store(line, [start + access.indices[0]], access.value)

    changes = [
        (Load, loaded),
        (tirx.BufferStore, stored),
        (tirx.DeclBuffer, lambda each: declared.get(each.buffer, each)),
    ]
    return tvm_ffi.structural_map(body, changes) if lines else body
