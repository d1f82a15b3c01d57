"""Maps: every element of the output on its own. Elementwise chains, broadcasts, padding, moves."""

from __future__ import annotations

from typing import Any

import tvm
from tvm.s_tir import Schedule

from ...ir.kernel_structure import Axis, Stage, buffer_of, is_conditional, static, stride, uses
from ...ir.visits import visit_nodes
from .vector_unit import VectorUnit

MIN_PARALLEL_TRIPS = 32
"""Trips that a parallel loop should have, so that any number of cores shares them evenly."""

SMALL = 1 << 14
"""Element operations below which handing work to other threads costs more than it saves."""


def schedule_map(sch: Schedule, stage: Stage, unit: VectorUnit) -> None:
    """Run the outer loops in parallel and vectorize the innermost one."""
    if stage.work < SMALL:
        return
    loops = list(sch.get_loops(sch.get_sblock(stage.name)))
    together = fusable_suffix(stage)
    inner = sch.fuse(*loops[-together:]) if together > 1 else loops[-1]
    outer = loops[:-together]
    length = extent_of(sch, inner)
    lanes = unit.lanes(stage.dtype)
    # TVM forgets the lanes of a constant where it computes bfloat16 by integers.
    is_fill = stage.dtype == "bfloat16" and not stage.loads
    if length is not None and length % lanes == 0 and _is_smooth(stage) and not is_fill:
        head, inner = sch.split(inner, [None, lanes])
        sch.vectorize(inner)
        outer.append(head)
    parallel_leading(sch, outer or [inner])


def parallel_leading(sch: Schedule, loops: list[Any]) -> None:
    """Run in parallel just enough leading loops, as one, to have work for every core."""
    trips, count = 1, 0
    while count < len(loops) and trips < MIN_PARALLEL_TRIPS:
        extent = extent_of(sch, loops[count])
        trips *= MIN_PARALLEL_TRIPS if extent is None else extent
        count += 1
    sch.parallel(sch.fuse(*loops[:count]) if count > 1 else loops[0])


def extent_of(sch: Schedule, loop: Any) -> int | None:
    """The number of trips of a loop, or None if it is symbolic."""
    return static(sch.get(loop).extent)


def fusable_suffix(stage: Stage) -> int:
    """How many innermost axes all accesses walk through as if they were one."""
    count = 1
    axes = stage.axes
    while count < len(axes) and _walk_as_one(stage, axes[-count - 1], axes[-count]):
        count += 1
    return count


def _walk_as_one(stage: Stage, outer: Axis, inner: Axis) -> bool:
    accesses = [*stage.stores, *stage.loads]
    if inner.extent is None or any(_indexed(access, outer, inner) is False for access in accesses):
        return False
    counted = sum(uses(access, axis.var) for access in stage.loads for axis in (outer, inner))
    total = sum(uses(value, axis.var) for value in stage.values for axis in (outer, inner))
    return counted == total  # nothing but the loads depends on where we are


def _indexed(access: Any, outer: Axis, inner: Axis) -> bool:
    """Whether an access ignores both axes, or has them as two neighboring full indices."""
    indices = list(access.indices)
    touched = [i for i, e in enumerate(indices) if uses(e, outer.var) or uses(e, inner.var)]
    if not touched:
        return True
    if len(touched) != 2 or touched[1] != touched[0] + 1:
        return False
    first, second = touched
    return bool(
        indices[first].same_as(outer.var)
        and indices[second].same_as(inner.var)
        and static(buffer_of(access).shape[second]) == inner.extent
    )


def _is_smooth(stage: Stage) -> bool:
    """Whether every access moves by nothing or by one element along the last axis."""
    last = stage.axes[-1]
    return has_uniform_conditions(stage, last) and all(
        stride(access, last.var) in (0, 1) for access in [*stage.stores, *stage.loads]
    )


def has_uniform_conditions(stage: Stage, axis: Axis) -> bool:
    """Whether a condition is the same all along an axis, as that of a border is.

    A vector of elements is then loaded or it is not.
    """
    return not any(uses(condition, axis.var) for condition in _conditions(stage))


def _conditions(stage: Stage) -> list[Any]:
    """The conditions under which a stage loads."""
    found: list[Any] = []

    def visit(node: Any) -> None:
        if is_conditional(node):
            found.append(node.args[0])

    for value in stage.values:
        visit_nodes(value, tvm.ir.Call, visit)
    return found
