"""What is read next, fetched into the cache while a tile is computed.

A tile reads a few rows of a factor, each too short for a processor to foresee how it goes on; or it
reads a part of a line in each step. Where a factor fits no cache near a core, waiting for each line
would take up to a third of the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import tirx
from tvm.tirx import ForKind

from ....ir.kernel_structure import substitute_values
from ....ir.loops import loops, variable
from ...kernels.contraction import Contraction
from .frame import Frame
from .plan import Loop, Plan

_L2_LOCALITY = 2
"""What LLVM's prefetch calls it: near enough, and it does not displace what the tile reads."""

_PREFETCH_DISTANCE_STEPS = 32
"""Steps of a sum in which a line comes from memory."""


def next_tile_loop(contraction: Contraction, plan: Plan, factor: int) -> Loop | None:
    """The loop that goes to the next tile whose rows of a factor are others.

    None if all tiles read the same.
    """
    across = [*plan.tasks, *plan.parts, *plan.blocks, *plan.tiles]
    return next(
        (
            one
            for one in reversed(across)
            if one.trips != 1 and contraction.depends(factor, one.axis)
        ),
        None,
    )


def prefetch_next_rows(contraction: Contraction, plan: Plan, frame: Frame) -> Any:
    """The statement that fetches a line of each row that the next tile reads of `plan.fetched`.

    Behind the end of an axis, where memory goes on with the next index of another, that is what
    the next tile reads most often. Behind the end of the tensor fetching does nothing.
    """
    assert plan.fetched is not None
    following = next_tile_loop(contraction, plan, plan.fetched)
    assert following is not None
    rows = [variable("row", frame.dtype) for _ in plan.rows]
    at = {axis.var: frame.line(axis) for axis in contraction.axes}
    for (axis, _), row in zip(plan.rows, rows, strict=True):
        at[axis.var] = at[axis.var] + row
    at[following.axis.var] = at[following.axis.var] + following.step
    fetch = _prefetch(contraction, plan.fetched, at)
    lengths = [length for _, length in plan.rows]
    return loops(zip(rows, lengths, strict=True), fetch, ForKind.UNROLLED)


def prefetch_later_terms(contraction: Contraction, plan: Plan, frame: Frame) -> list[Any]:
    """The statement that fetches, in one step of a sum, the lines that a later step reads.

    Neighbors along rows are in one line.
    """
    innermost = plan.terms[-1].axis
    found = []
    for factor in plan.streamed:
        at = {axis.var: frame.start(axis) for axis in contraction.axes}
        at[innermost.var] = at[innermost.var] + _PREFETCH_DISTANCE_STEPS
        around = []
        for axis, length in plan.rows:
            if contraction.step(factor, axis) not in (0, 1):
                around.append((variable("row", frame.dtype), length))
                at[axis.var] = at[axis.var] + around[-1][0]
        if contraction.step(factor, plan.vector):
            around.append((variable("vector", frame.dtype), plan.vectors))
            at[plan.vector.var] = frame.first_column() + around[-1][0] * plan.lanes
        found.append(loops(around, _prefetch(contraction, factor, at), ForKind.UNROLLED))
    return found


def _prefetch(contraction: Contraction, factor: int, at: Mapping[Any, Any]) -> Any:
    """The statement that fetches the line of what a factor reads at indices, given by variable."""
    address = tirx.address_of(substitute_values(contraction.loads[factor], at))
    read, data = tirx.const(0, "int32"), tirx.const(1, "int32")
    cache = tirx.const(_L2_LOCALITY, "int32")
    return tirx.Evaluate(tirx.call_intrin("void", "tirx.prefetch", address, read, cache, data))
