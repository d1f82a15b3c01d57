"""Launches: statements on the threads of a GPU, one thread for each point of some loops.

A statement without such loops runs in one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import tvm
from tvm import tirx

from ...ir.kernel_structure import static, substitute_values
from ...ir.loops import bound, ceil_div, index, loop, unravel, variable

THREADS = 256
"""Threads of a block: a multiple of a warp's 32, and enough to hide the latency of memory."""


def one_thread_per_point(loops: Sequence[Any], body: Any) -> Any:
    """A device kernel in which each point of some loops around a statement has its own thread.

    Parameters
    ----------
    loops : sequence of For
        Nested, outermost first; empty for a kernel of one thread. Their points must be independent
        of each other, and their extents of each other's variables.
    body : Stmt
        What stands within the loops.
    """
    one = index(1)
    points = one
    for each in loops:
        points = points * index(each.extent)
    points = tvm.sym.Analyzer().simplify(points)
    count = static(points)
    threads = THREADS if count is None else max(1, min(THREADS, count))
    # A grid without blocks, for loops without points, is an error of the driver. So it has one,
    # whose threads the condition below keeps idle.
    blocks = tirx.max(ceil_div(points, threads), one)
    block, thread = variable("block"), variable("thread")
    point = block * threads + thread
    # The last block may have more threads than there are points left.
    if not count or count % threads:
        body = tirx.IfThenElse(point < points, body, None)
    body = substitute_values(body, at_point(loops, point))
    inner = bound(thread, index(threads), "threadIdx.x", body)
    return bound(block, tvm.sym.Analyzer().simplify(blocks), "blockIdx.x", inner)


def one_launch(parts: Sequence[tuple[int, Callable[[Any, Any], Any]]], threads: int) -> Any:
    """A device kernel whose blocks belong to one of some parts each.

    A block finds its part by its number, in a tree of comparisons, which is the same for all its
    threads.

    Parameters
    ----------
    parts : sequence
        Of each, how many blocks it has, and what they do: given the number of the block in the part
        and that of the thread, returns the statement.
    threads : int
        Threads of a block.
    """
    block, thread = variable("block"), variable("thread")
    starts = [0, *accumulate(blocks for blocks, _ in parts)]

    def chosen(low: int, high: int) -> Any:
        """The statement of the one of the parts from `low` to before `high` that has the block."""
        if high - low == 1:
            return parts[low][1](block - starts[low], thread)
        middle = (low + high) // 2
        return tirx.IfThenElse(block < starts[middle], chosen(low, middle), chosen(middle, high))

    inner = bound(thread, index(threads), "threadIdx.x", chosen(0, len(parts)))
    return bound(block, index(starts[-1]), "blockIdx.x", inner)


def barrier() -> Any:
    """The statement at which the threads of a block wait for each other."""
    return tirx.Evaluate(tirx.call_intrin("int32", "tirx.tvm_storage_sync", "shared"))


def at_point(loops: Sequence[Any], number: Any) -> dict[Any, Any]:
    """The values of nested loops' variables at a point, numbered in the order of the loops."""
    indices = unravel(number, [divisor(each.extent) for each in loops])
    return {
        each.loop_var: (at + index(each.min)).astype(str(each.loop_var.ty.dtype))
        for each, at in zip(loops, indices, strict=True)
    }


def at_lane(loops: Sequence[Any], vector: Any, lane: Any, lanes: int) -> dict[Any, Any]:
    """The values of nested loops' variables at one of some neighboring points, as `at_point`.

    The lane is in no quotient where vectors divide the innermost loop, so that TVM sees neighbors.
    """
    *outer, last = loops
    count = static(last.extent)
    if count is None or count % lanes or static(last.min) != 0:
        return at_point(loops, vector * lanes + lane)
    part = loop(last.loop_var, count // lanes, tirx.Evaluate(0))
    values = at_point([*outer, part], vector)
    return values | {last.loop_var: values[last.loop_var] * lanes + lane}


def divisor(extent: Any) -> Any:
    """An extent to divide by, at least 1: idle threads of an empty kernel divide by it too."""
    return index(extent) if static(extent) else tirx.max(index(extent), index(1))
