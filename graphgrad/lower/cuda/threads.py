"""Statements on the threads of a GPU: one thread for each point of some loops, or one in all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ...ir.kernel_structure import static

THREADS = 256
"""Threads of a block: a multiple of the warp, and enough of them to hide the wait for memory."""


def one_thread_per_point(loops: Sequence[Any], body: Any) -> Any:
    """Return loops around a statement as a kernel in which each point has a thread of its own.

    Parameters
    ----------
    loops : sequence of For
        Nested, outermost first; empty for a kernel of one thread. Their points must be independent
        of each other, and their extents of each other's variables.
    body : Stmt
        What stands within the loops.
    """
    one = _index(1)
    points = one
    for loop in loops:
        points = points * _index(loop.extent)
    points = tvm.sym.Analyzer().simplify(points)
    count = static(points)
    threads = THREADS if count is None else max(1, min(THREADS, count))
    # A grid without blocks is an error of the driver; the condition below keeps its thread idle.
    blocks = tirx.max(tirx.floordiv(points + (threads - 1), _index(threads)), one)
    block, thread = tirx.Var("block", "int64"), tirx.Var("thread", "int64")
    point = block * threads + thread
    if not count or count % threads:
        body = tirx.IfThenElse(point < points, body, None)
    body = tvm_ffi.structural_map(body, (tvm.ir.Var, _substitution(loops, point)))
    inner = bound(thread, _index(threads), "threadIdx.x", body)
    return bound(block, tvm.sym.Analyzer().simplify(blocks), "blockIdx.x", inner)


def _substitution(loops: Sequence[Any], point: Any) -> Any:
    """Return the function that replaces loop variables by what they are at a point."""
    values: dict[Any, Any] = {}
    rest = point
    for position, loop in reversed(list(enumerate(loops))):
        extent = divisor(loop.extent)
        at = tirx.floormod(rest, extent) if position else rest
        rest = tirx.floordiv(rest, extent)
        values[loop.loop_var] = (at + _index(loop.min)).astype(str(loop.loop_var.ty.dtype))
    return lambda var: values.get(var, var)


def divisor(extent: Any) -> Any:
    """Return an extent to divide by: the idle thread of an empty kernel must not divide by zero."""
    return _index(extent) if static(extent) else tirx.max(_index(extent), _index(1))


def bound(var: Any, extent: Any, tag: str, body: Any) -> Any:
    """Return a loop from 0 over threads or blocks, such as those of ``"blockIdx.x"``."""
    axis = tirx.IterVar(None, var, tirx.IterVar.ThreadIndex, tag)
    return tirx.For(var, _index(0), extent, tirx.ForKind.THREAD_BINDING, body, axis)


def _index(value: Any) -> Any:
    return tirx.const(value, "int64") if isinstance(value, int) else value.astype("int64")
