"""Kernels over the rows of a table of tensors: one loop in parallel over equal parts of them all.

A loop in parallel for each tensor would wake the threads once for each, leave most of them idle
where it is small, and be compiled once for each. Here the addresses of the tensors go into a table;
the elements of all rows are numbered from the first row to the last, and are cut into parts of
equal length; for each part a loop over the rows finds those that have elements of it. So the loops
are compiled once, for as many tensors as there may be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import PointerType, PrimType

from ..ir.kernel_structure import statements_of, substitute_values
from ..ir.loops import Statement, block, index, loop, sequence, variable
from ..memory.addresses import StackValues

PART = 1 << 14
"""Elements of a part: what is read and written of it stays in a core's cache."""

Body = Callable[[list[Any], Any, Any], Statement]
"""A function from the buffers of a row, an index in them and a lane to the statement for the
elements there. If that is a sequence, each of its statements is executed in all lanes before the
next one; a buffer that it allocates is common to all lanes."""


@dataclass(frozen=True)
class Rows:
    """Tensors that a kernel treats alike, row by row.

    Attributes
    ----------
    buffers : list of list of Buffer
        For each row its tensors, column by column. Each column has a dtype, each row a number of
        elements, at least one.
    """

    buffers: list[list[Any]]

    def __post_init__(self) -> None:
        # Asserted here, because nothing checks indices when the kernel runs.
        for row, length in zip(self.buffers, self.lengths, strict=True):
            assert all(_elements_of(buffer) == length for buffer in row)

    @cached_property
    def dtypes(self) -> list[str]:
        """The dtypes of the columns."""
        return [str(buffer.dtype) for buffer in self.buffers[0]]

    @cached_property
    def lengths(self) -> list[int]:
        """The number of elements of each row's tensors."""
        return [_elements_of(row[0]) for row in self.buffers]

    @property
    def parts(self) -> int:
        """The number of parts that the elements of all rows are cut into."""
        return -(-sum(self.lengths) // PART)


def kernel(
    params: Sequence[Any], statements: Sequence[Statement], attributes: Mapping[str, Any]
) -> tirx.PrimFunc:
    """A kernel of statements, which no schedule is to touch."""
    # TVM looks for a block in all that Relax calls.
    body = block("root", *statements)
    common = {"tirx.is_scheduled": True, "tirx.noalias": True}
    all_attributes = tvm.ir.make_node("ir.DictAttrs", **common, **attributes)
    return tirx.PrimFunc(list(params), body, attrs=all_attributes)


def loop_over_rows(
    rows: Rows,
    lanes: int,
    element: Body,
    around: Callable[[Any, Statement], Statement] = lambda part, inside: inside,
) -> list[Statement]:
    """The statements that go over all elements of all rows, each once.

    Parts run in parallel if there are several. Which elements make a part depends on the lengths
    alone.

    Parameters
    ----------
    rows : Rows
    lanes : int
        How many neighboring elements are done at once. The last ones of a row in a part that are
        fewer are done one by one, all in lane 0.
    element : callable
        Given a row's buffers, which are flat, an index in them and the number of the lane; returns
        what is done there.
    around : callable
        Given the number of a part, and the statement that goes over its elements; returns what is
        done for the part.
    """
    table = _AddressTable(rows)
    part, start, stop = variable("part"), variable("start"), variable("stop")
    inside = table.between(start, stop, lanes, element)
    body = sequence(
        tirx.Bind(start, part * PART),
        tirx.Bind(stop, tirx.min(start + PART, index(sum(rows.lengths)))),
        around(part, inside),
    )
    kind = tirx.ForKind.PARALLEL if rows.parts > 1 else tirx.ForKind.SERIAL
    return [*table.prologue(), loop(part, rows.parts, body, kind)]


class _AddressTable:
    """The table of the addresses of all tensors, and of the first element of each row.

    It has an address for each tensor, row by row, then the number that each row's first element has
    among those of all rows, and last the number of all elements. It is an array of TVM's arguments
    on the stack, where code generation puts nothing else of changing length.
    """

    def __init__(self, rows: Rows):
        self._rows = rows
        self._columns = len(rows.dtypes)
        self._tensors = [tensor for row in rows.buffers for tensor in row]
        size = len(self._tensors) + len(rows.lengths) + 1
        self._table = StackValues(size, "table")

    def prologue(self) -> list[Statement]:
        """The statements that fill the table."""
        starts = [0, *accumulate(self._rows.lengths)]
        entries = [*(tensor.data for tensor in self._tensors), *map(index, starts)]
        return [
            self._table.begin,
            *(self._table.store(number, entry) for number, entry in enumerate(entries)),
        ]

    def between(self, start: Any, stop: Any, lanes: int, element: Body) -> Statement:
        """The loop over the rows, and over those elements of each that `start` ≤ number < `stop`.

        Most rows have none there. The loop sees that at once; a search for the others would take
        longer.
        """
        row, begin, count = variable("row"), variable("begin"), variable("count")
        row_start, next_row_start = self._start(row), self._start(row + 1)
        declared, buffers = self._buffers(row)
        body = sequence(
            # The first index in the row and the number of elements, which is 0 for other rows.
            tirx.Bind(begin, tirx.max(start - row_start, index(0))),
            tirx.Bind(
                count, tirx.max(tirx.min(stop, next_row_start) - row_start - begin, index(0))
            ),
            *declared,
            _elements(buffers, begin, count, lanes, element),
        )
        return loop(row, len(self._rows.lengths), body)

    def _start(self, row: Any) -> Any:
        """The number of a row's first element among those of all rows."""
        return self._table.load((row + len(self._tensors)).astype("int32"))

    def _buffers(self, row: Any) -> tuple[list[Statement], list[Any]]:
        """The statements that declare the buffers of a row, and these buffers."""
        statements: list[Statement] = []
        buffers = []
        for column, dtype in enumerate(self._rows.dtypes):
            # The row is a variable: the buffer is as long as the longest, and `count` bounds it.
            buffer = tirx.decl_buffer((max(self._rows.lengths),), dtype, f"column{column}")
            pointer = PointerType(PrimType(dtype), "global")
            entry = (row * self._columns + column).astype("int32")
            address = tirx.call_intrin(
                pointer, "tirx.reinterpret", self._table.load(entry, "handle")
            )
            statements.append(tirx.DeclBuffer(buffer, data=address))
            buffers.append(buffer)
        return statements, buffers


def _elements(buffers: list[Any], begin: Any, count: Any, lanes: int, element: Body) -> Statement:
    """The loops over `count` elements of a row from `begin`: in vectors, then one by one."""
    vector, lane, single = variable("vector"), variable("lane"), variable("single")
    vectors = tirx.floordiv(count, index(lanes))
    statements = statements_of(element(buffers, begin + vector * lanes + lane, lane))
    # TVM would get a buffer wrong that nothing but one vectorized loop accesses.
    at_once = sequence(*(_in_lanes(statement, lane, lanes) for statement in statements))
    one_by_one = element(buffers, begin + vectors * lanes + single, index(0))
    return sequence(
        loop(vector, vectors, at_once), loop(single, count - vectors * lanes, one_by_one)
    )


def _in_lanes(statement: Statement, lane: Any, lanes: int) -> Statement:
    """The loop of one statement over all lanes; an allocation, common to them, as it is."""
    if isinstance(statement, tirx.AllocBuffer):
        return statement
    own_lane = variable(lane.name)
    return loop(
        own_lane, lanes, substitute_values(statement, {lane: own_lane}), tirx.ForKind.VECTORIZED
    )


def _elements_of(buffer: Any) -> int:
    return math.prod(int(extent) for extent in buffer.shape)
