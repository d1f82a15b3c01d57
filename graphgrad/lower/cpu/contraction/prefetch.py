"""Prefetching: what is read next is fetched into the cache while a tile is computed.

A tile reads a few rows of a factor, each too short for the hardware prefetcher to foresee how it
goes on; or it reads a part of a cache line in each step. Where a factor fits no cache near a core,
waiting for each line would take up to a third of the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import tirx
from tvm.tirx import ForKind

from ....ir.kernel_structure import substitute_values
from ....ir.loops import loops, sequence, variable
from ...kernels.contraction import Contraction
from .frame import Frame
from .plan import Loop, Plan
from .store import ResultStore

_L2_LOCALITY = 2
"""The locality that LLVM's prefetch is given, from 0 to 3: near enough, and it does not displace
what the tile reads from the first-level cache."""


def next_tile_loop(contraction: Contraction, plan: Plan, factor: int) -> Loop | None:
    """The innermost loop around tiles in which a factor's rows change from trip to trip.

    None if all tiles read the same rows.
    """
    outer_loops = [*plan.tasks, *plan.parts, *plan.blocks, *plan.tiles]
    return next(
        (
            loop
            for loop in reversed(outer_loops)
            if loop.trips != 1 and contraction.depends(factor, loop.axis)
        ),
        None,
    )


def prefetch_next_rows(contraction: Contraction, plan: Plan, frame: Frame) -> Any:
    """The statement that fetches a line of each row that the next tile reads of `plan.fetched`.

    No index is clamped. Beyond the end of an axis, memory goes on with the next index of another
    axis, which is most often what the next tile reads. Beyond the end of the tensor, a prefetch
    does no harm.
    """
    assert plan.fetched is not None
    next_loop = next_tile_loop(contraction, plan, plan.fetched)
    assert next_loop is not None
    rows = [variable("row", frame.dtype) for _ in plan.rows]
    indices = {axis.var: frame.line(axis) for axis in contraction.axes}
    for (axis, _), row in zip(plan.rows, rows, strict=True):
        indices[axis.var] = indices[axis.var] + row
    indices[next_loop.axis.var] = indices[next_loop.axis.var] + next_loop.step
    fetch = _prefetch(contraction, plan.fetched, indices)
    lengths = [length for _, length in plan.rows]
    return loops(zip(rows, lengths, strict=True), fetch, ForKind.UNROLLED)


def prefetch_later_terms(contraction: Contraction, plan: Plan, frame: Frame) -> list[Any]:
    """The statements that fetch, in one step of a sum, the lines that a later step reads.

    There is one for each factor in `plan.streamed`.
    """
    innermost = plan.terms[-1].axis
    statements = []
    for factor in plan.streamed:
        indices = {axis.var: frame.start(axis) for axis in contraction.axes}
        indices[innermost.var] = indices[innermost.var] + plan.prefetch_steps
        loops_around = []
        for axis, length in plan.rows:
            # Neighbors in memory share a line: one fetch serves all of them.
            if contraction.step(factor, axis) not in (0, 1):
                loops_around.append((variable("row", frame.dtype), length))
                indices[axis.var] = indices[axis.var] + loops_around[-1][0]
        if contraction.step(factor, plan.vector):
            loops_around.append((variable("vector", frame.dtype), plan.vectors))
            indices[plan.vector.var] = frame.first(plan.vector) + loops_around[-1][0] * plan.lanes
        statements.append(
            loops(loops_around, _prefetch(contraction, factor, indices), ForKind.UNROLLED)
        )
    return statements


def prefetch_results(plan: Plan, frame: Frame, result_store: ResultStore) -> Any:
    """The statement that fetches the lines in which the tile's elements will be stored.

    And those that an epilogue reads at the same places. Without it each store waits for its line.
    """
    rows = [variable("row", frame.dtype) for _ in plan.rows]
    vector = variable("vector", frame.dtype)
    at = {axis.var: frame.start(axis) for axis in frame.contraction.spatial}
    for (axis, _), row in zip(plan.rows, rows, strict=True):
        at[axis.var] = at[axis.var] + row
    at[plan.vector.var] = frame.first(plan.vector) + vector * plan.lanes
    fetches = [_prefetch_line(load) for load in result_store.lines(at)]
    lengths = [length for _, length in plan.rows]
    around = [*zip(rows, lengths, strict=True), (vector, plan.vectors)]
    return loops(around, sequence(*fetches), ForKind.UNROLLED)


def _prefetch(contraction: Contraction, factor: int, indices: Mapping[Any, Any]) -> Any:
    """The statement that fetches the cache line of what a factor reads.

    `indices` has the index along each axis, by variable.
    """
    return _prefetch_line(substitute_values(contraction.loads[factor], indices))


def _prefetch_line(load: Any) -> Any:
    """The statement that fetches the cache line of an element."""
    address = tirx.address_of(load)
    read_access, data_cache = tirx.const(0, "int32"), tirx.const(1, "int32")
    locality = tirx.const(_L2_LOCALITY, "int32")
    return tirx.Evaluate(
        tirx.call_intrin("void", "tirx.prefetch", address, read_access, locality, data_cache)
    )
