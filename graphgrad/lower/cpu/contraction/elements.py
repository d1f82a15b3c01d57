"""The elements of one tile: the loops over them, and the registers in which they are added up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm.tirx import ForKind

from ....ir.loops import MIN_HEAP_BYTES, ceil_div, loop, loops, sequence, variable
from .plan import Plan


@dataclass(frozen=True)
class Element:
    """An element of a tile, by its position.

    Attributes
    ----------
    rows : sequence of Expr
        The position along each row axis of the tile.
    column : Expr
        The position along the vector axis.
    register : BufferLoad or None
        The sum so far of this element; None where the loops do not go over registers.
    """

    rows: Sequence[Any]
    column: Any
    register: Any = None

    def keep(self, value: Any) -> Any:
        """The statement that stores a value in the element's register."""
        return tirx.BufferStore(self.register.source, value, self.register.indices)


@dataclass(frozen=True)
class Registers:
    """The buffers in which the results of a tile are added up.

    LLVM makes registers of small buffers on the stack, whatever else a loop does. Elements of a
    buffer on the heap, where TVM puts larger ones, are in registers during an innermost loop at
    best, and only if that loop neither branches nor prefetches. So the rows of a tile are divided
    among several small buffers.

    Attributes
    ----------
    buffers : tuple of Buffer
    length : int
        The number of rows along the first row axis in each buffer; the last one may have fewer.
    """

    buffers: tuple[Any, ...]
    length: int


def registers_of(plan: Plan, dtype: str) -> Registers:
    """Registers for a tile of values of `dtype`."""
    lengths = [length for _, length in plan.rows] or [1]
    # Buffers are divided along the first row axis alone; each has at least one row of it.
    first, inner = lengths[0], [*lengths[1:], plan.width]
    row_bytes = tvm.DataType(dtype).itemsize
    for extent in inner:
        row_bytes *= extent
    buffer_count = ceil_div(first, max((MIN_HEAP_BYTES - 1) // row_bytes, 1))
    length = ceil_div(first, buffer_count)
    sizes = [min(length, first - start) for start in range(0, first, length)]
    buffers = [tirx.decl_buffer([size, *inner], dtype, "registers") for size in sizes]
    return Registers(tuple(buffers), length)


def each_element(
    plan: Plan,
    statement_of: Callable[[Element], Any],
    kind: ForKind = ForKind.UNROLLED,
    guard: Callable[[Sequence[Any]], Any] | None = None,
    registers: Registers | None = None,
) -> Any:
    """The loops that run a statement for each element of a tile, vector by vector.

    Parameters
    ----------
    plan : Plan
    statement_of : callable
        From an element, a `Element`, to its statement.
    kind : ForKind
        The kind of the loops over rows.
    guard : callable, optional
        From the position along the rows to the condition on which anything is done there.
    registers : Registers, optional
        The registers of the tile. If they are given, each `Element` carries its own.
    """
    statements = []
    for start, lengths, buffer in _parts(plan, registers):
        rows = [variable("row", _index_dtype(plan)) for _ in lengths]
        vector_number, lane = (variable(name, _index_dtype(plan)) for name in ("vector", "lane"))
        column = lane if plan.vectors == 1 else vector_number * plan.lanes + lane
        register = None
        if buffer is not None:
            # Where a tile has no row axis, its registers still have one, of a single row.
            register_rows = rows or [tirx.const(0, _index_dtype(plan))]
            register = tirx.BufferLoad(buffer, [*register_rows, column])
        # The loops count within one buffer; positions in the tile begin at that buffer's rows.
        tile_rows = [rows[0] + start, *rows[1:]] if start else rows
        body = statement_of(Element(tile_rows, column, register))
        body = loop(lane, plan.lanes, body, ForKind.VECTORIZED)
        if plan.vectors > 1:
            body = loop(vector_number, plan.vectors, body, ForKind.UNROLLED)
        if guard is not None:
            body = tirx.IfThenElse(guard(tile_rows), body, None)
        statements.append(loops(zip(rows, lengths, strict=True), body, kind))
    return sequence(*statements)


def _parts(plan: Plan, registers: Registers | None) -> Iterator[tuple[int, list[int], Any]]:
    """Yield the first row, the lengths along the rows, and the buffer of each part of a tile."""
    lengths = [length for _, length in plan.rows]
    if registers is None:
        yield 0, lengths, None
        return
    for part_number, buffer in enumerate(registers.buffers):
        start = part_number * registers.length
        part_lengths = [min(registers.length, lengths[0] - start), *lengths[1:]] if lengths else []
        yield start, part_lengths, buffer


def _index_dtype(plan: Plan) -> str:
    return str(plan.vector.var.ty.dtype)
