"""The elements of one tile: loops over them, and the registers in which they are added up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm.tirx import ForKind

from ....ir.loops import ceil_div, loop, loops, sequence, variable
from .plan import Plan

_MIN_HEAP_BYTES = 1024
"""Bytes from which TVM allocates a buffer of its own kind on the heap."""


@dataclass(frozen=True)
class Place:
    """An element of a tile.

    Attributes
    ----------
    rows : sequence of Expr
        Where it is along the rows of the tile.
    column : Expr
        Where it is along the vector axis.
    register : BufferLoad or None
        What has been added up there, if loops go over registers.
    """

    rows: Sequence[Any]
    column: Any
    register: Any = None

    def keep(self, value: Any) -> Any:
        """The store of a value in the register."""
        return tirx.BufferStore(self.register.source, value, self.register.indices)


@dataclass(frozen=True)
class Registers:
    """The results of a tile while they are added up.

    LLVM makes registers of small buffers on the stack, whatever else a loop does. From the heap,
    where TVM puts larger ones, elements get into registers for the length of an innermost loop at
    best, and only if that neither branches nor fetches ahead. So the rows are divided among
    buffers.

    Attributes
    ----------
    buffers : tuple of Buffer
    length : int
        Rows along the first axis in each but the last.
    """

    buffers: tuple[Any, ...]
    length: int


def registers_of(plan: Plan, dtype: str) -> Registers:
    """Registers for a tile of values of `dtype`."""
    lengths = [length for _, length in plan.rows] or [1]
    first, inner = lengths[0], [*lengths[1:], plan.width]
    slice_bytes = tvm.DataType(dtype).itemsize
    for extent in inner:
        slice_bytes *= extent
    count = ceil_div(first, max((_MIN_HEAP_BYTES - 1) // slice_bytes, 1))
    length = ceil_div(first, count)
    sizes = [min(length, first - start) for start in range(0, first, length)]
    buffers = [tirx.decl_buffer([size, *inner], dtype, "registers") for size in sizes]
    return Registers(tuple(buffers), length)


def each_element(
    plan: Plan,
    element: Callable[[Place], Any],
    kind: ForKind = ForKind.UNROLLED,
    guard: Callable[[Sequence[Any]], Any] | None = None,
    registers: Registers | None = None,
) -> Any:
    """The statements for each element of a tile, vector by vector.

    Parameters
    ----------
    plan : Plan
    element : callable
        From a place to the statement.
    kind : ForKind
        Of the loops over rows.
    guard : callable, optional
        From the position along the rows to whether anything is done there.
    registers : Registers, optional
        Places are then given with theirs.
    """
    parts = []
    for start, lengths, buffer in _parts(plan, registers):
        rows = [variable("row", _index_dtype(plan)) for _ in lengths]
        number, lane = (variable(name, _index_dtype(plan)) for name in ("vector", "lane"))
        column = lane if plan.vectors == 1 else number * plan.lanes + lane
        register = None
        if buffer is not None:
            held = rows or [tirx.const(0, _index_dtype(plan))]
            register = tirx.BufferLoad(buffer, [*held, column])
        places = [rows[0] + start, *rows[1:]] if start else rows
        body = element(Place(places, column, register))
        body = loop(lane, plan.lanes, body, ForKind.VECTORIZED)
        if plan.vectors > 1:
            body = loop(number, plan.vectors, body, ForKind.UNROLLED)
        if guard is not None:
            body = tirx.IfThenElse(guard(places), body, None)
        parts.append(loops(zip(rows, lengths, strict=True), body, kind))
    return sequence(*parts)


def _parts(plan: Plan, registers: Registers | None) -> Iterator[tuple[int, list[int], Any]]:
    """Yield the first row, the lengths along the rows, and the buffer of each part of a tile."""
    lengths = [length for _, length in plan.rows]
    if registers is None:
        yield 0, lengths, None
        return
    for number, buffer in enumerate(registers.buffers):
        start = number * registers.length
        own = [min(registers.length, lengths[0] - start), *lengths[1:]] if lengths else []
        yield start, own, buffer


def _index_dtype(plan: Plan) -> str:
    return str(plan.vector.var.ty.dtype)
