"""Schedules of maps, each element of which is computed on its own.

Maps are elementwise chains, broadcasts, padding and moves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tvm
from tvm.s_tir import Schedule

from ...ir.kernel_structure import Axis, Stage, buffer_of, is_conditional, static, stride, uses
from ...ir.visits import nodes_in
from .tuning import Processor

MIN_PARALLEL_TRIPS = 32
"""The number of trips that a parallel loop should have, so that cores share them about evenly."""

SMALL = 1 << 14
"""Points of a stage's loops below which handing work to other threads costs more than it saves."""

SMALL_STEP = 1 << 12
"""The same in a step of a loop over time: between two steps, other threads wait for work."""

_MIN_FUSED = 256
"""Elements of the innermost loops, where they are fused no further than need be."""


def is_step(small: int) -> bool:
    """Whether what is scheduled is a step of a loop over time, that threads share."""
    return small == SMALL_STEP


def schedule_map(sch: Schedule, stage: Stage, processor: Processor, small: int = SMALL) -> None:
    """Run the outer loops in parallel and vectorize the innermost one.

    With fewer points than `small` the stage stays on one thread. Unless it is repeated, in a step
    of a loop over time, it then stays as it is.
    """
    if stage.work < small and small == SMALL:
        return
    loops = list(sch.get_loops(sch.get_sblock(stage.name)))
    fused_count = _fused_count(stage, processor.lanes(stage.dtype))
    inner_loop = sch.fuse(*loops[-fused_count:]) if fused_count > 1 else loops[-1]
    outer_loops = loops[:-fused_count]
    length = extent_of(sch, inner_loop)
    lanes = processor.lanes(stage.dtype)
    # TVM forgets the lanes of a constant where it computes bfloat16 by integers.
    is_fill = stage.dtype == "bfloat16" and not stage.loads
    if length is not None and length % lanes == 0 and is_smooth(stage) and not is_fill:
        vectors, inner_loop = sch.split(inner_loop, [None, lanes])
        sch.vectorize(inner_loop)
        outer_loops.append(vectors)
    if stage.work >= small:
        parallel_leading(sch, outer_loops or [inner_loop])


def _fused_count(stage: Stage, lanes: int) -> int:
    """How many innermost axes to fuse: as few as make whole vectors, else all that walk as one.

    Of vectors that cross rows, TVM's simplification finds the address of two axes in one, but not
    that of more: a vector of a map over (4, 32, 28, 28) takes a dozen divisions then.
    """
    most = fusable_suffix(stage)
    extents = [axis.extent for axis in stage.axes]
    for count in range(1, most):
        length = math.prod(extent or 0 for extent in extents[-count:])
        if length >= _MIN_FUSED and length % lanes == 0:
            return count
    return most


def parallel_leading(sch: Schedule, loops: list[Any]) -> None:
    """Run in parallel just enough leading loops, as one, to have work for every core."""
    count = leading_count([extent_of(sch, loop) for loop in loops])
    sch.parallel(sch.fuse(*loops[:count]) if count > 1 else loops[0])


def leading_count(extents: Sequence[int | None]) -> int:
    """How many leading loops have work for every core; a symbolic extent is long enough."""
    trips, count = 1, 0
    while count < len(extents) and trips < MIN_PARALLEL_TRIPS:
        extent = extents[count]
        trips *= MIN_PARALLEL_TRIPS if extent is None else extent
        count += 1
    return count


def extent_of(sch: Schedule, loop: Any) -> int | None:
    """The number of trips of a loop, or None if it is symbolic."""
    return static(sch.get(loop).extent)


def fusable_suffix(stage: Stage) -> int:
    """The number of innermost axes through which all accesses walk as if they were one."""
    count = 1
    axes = stage.axes
    while count < len(axes) and _walk_as_one(stage, axes[-count - 1], axes[-count]):
        count += 1
    return count


def _walk_as_one(stage: Stage, outer: Axis, inner: Axis) -> bool:
    """Whether a stage computes the same with two neighboring axes fused."""
    accesses = [*stage.stores, *stage.loads]
    if inner.extent is None or any(_indexed(access, outer, inner) is False for access in accesses):
        return False
    uses_in_loads = sum(uses(access, axis.var) for access in stage.loads for axis in (outer, inner))
    uses_in_values = sum(uses(value, axis.var) for value in stage.values for axis in (outer, inner))
    # Elsewhere, as in a condition or a number made of an index, two axes cannot be one.
    return uses_in_loads == uses_in_values


def _indexed(access: Any, outer: Axis, inner: Axis) -> bool:
    """Whether an access ignores both axes, or has them as two neighboring indices.

    The inner one must go through its whole dimension.
    """
    indices = list(access.indices)
    dependent = [
        position
        for position, index in enumerate(indices)
        if uses(index, outer.var) or uses(index, inner.var)
    ]
    if not dependent:
        return True
    # Only neighboring dimensions, the second one complete, are one run of addresses.
    if len(dependent) != 2 or dependent[1] != dependent[0] + 1:
        return False
    first, second = dependent
    return bool(
        indices[first].same_as(outer.var)
        and indices[second].same_as(inner.var)
        and static(buffer_of(access).shape[second]) == inner.extent
    )


def is_smooth(stage: Stage) -> bool:
    """Whether every access moves by nothing or by one element along the last axis."""
    last = stage.axes[-1]
    return has_uniform_conditions(stage, last) and all(
        stride(access, last.var) in (0, 1) for access in [*stage.stores, *stage.loads]
    )


def has_uniform_conditions(stage: Stage, axis: Axis) -> bool:
    """Whether the conditions of loads do not depend on an axis.

    So it is with a border along another axis. A vector is then loaded as a whole or not at all.
    """
    return not any(uses(condition, axis.var) for condition in _conditions(stage))


def _conditions(stage: Stage) -> list[Any]:
    """The conditions under which a stage loads."""
    calls = nodes_in(stage.values, tvm.ir.Call)
    return [call.args[0] for call in calls if is_conditional(call)]
