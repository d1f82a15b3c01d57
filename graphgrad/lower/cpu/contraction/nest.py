"""Small pieces of loop nests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize
from tvm.tirx import ForKind

from ....ir.kernel_structure import substitute_values


def variable(name: str, dtype: str) -> Any:
    """Return a new variable of a loop."""
    return tvm.ir.Var(name, dtype)


def loop(var: Any, trips: Any, body: Any, kind: ForKind = ForKind.SERIAL) -> Any:
    """Return a loop from 0."""
    zero = tirx.const(0, str(var.ty.dtype))
    extent = tirx.const(trips, str(var.ty.dtype)) if isinstance(trips, int) else trips
    return tirx.For(var, zero, extent, kind, body)


def loops(around: Iterable[tuple[Any, Any]], body: Any, kind: ForKind = ForKind.SERIAL) -> Any:
    """Return loops, given as (variable, trips) from the outermost, around a statement."""
    for var, trips in reversed(list(around)):
        body = loop(var, trips, body, kind)
    return body


def fused(around: Sequence[tuple[Any, Any]], body: Any, kind: ForKind) -> Any:
    """Return one loop over all points of several, given as (variable, trips), around a statement.

    Where a number of trips is symbolic, only the first loop is of the kind given.
    """
    if not around:
        return body
    if len(around) == 1 or not all(isinstance(trips, int) for _, trips in around):
        (var, trips), *rest = around
        return loop(var, trips, loops(rest, body), kind)
    dtype = str(around[0][0].ty.dtype)
    point = variable("point", dtype)
    values, inner = {}, 1
    for var, trips in reversed(around):
        values[var] = tirx.floordiv(point, inner) if inner > 1 else point
        inner *= trips
        if var is not around[0][0]:
            values[var] = tirx.floormod(values[var], tirx.const(trips, dtype))
    return loop(point, inner, substitute_values(body, values), kind)


def block(name: str, body: Any, buffers: Sequence[Any] = ()) -> Any:
    """Return a block in which buffers live."""
    inside = SBlock([], [], [], name, body, alloc_buffers=list(buffers))
    return SBlockRealize([], tirx.const(True, "bool"), inside)


def together(*statements: Any) -> Any:
    """Return statements as one."""
    present = [statement for statement in statements if statement is not None]
    return present[0] if len(present) == 1 else tirx.SeqStmt(present)


def ceiling(extent: Any, step: int) -> Any:
    """Return how many steps cover an extent."""
    if isinstance(extent, int):
        return -(-extent // step)
    return extent if step == 1 else tirx.floordiv(extent + (step - 1), step)
