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

PART = 1 << 14
"""Elements of a part: what is read and written of it stays in a core's cache."""

_FFI_ANY_UNION_FIELD = 15
"""The field of an argument on TVM's stack that holds its bits (``kTVMFFIAnyUnionValue``)."""

Body = Callable[[list[Any], Any, Any], Statement]
"""Given the buffers of a row, an index in them and a lane, what is done to the elements there. Of a
sequence, each statement is done in all lanes before the next one; a buffer that it allocates is for
all lanes."""


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
        # Nothing checks indices where the kernel runs.
        for row, length in zip(self.buffers, self.lengths, strict=True):
            assert all(_elements_of(buffer) == length for buffer in row)

    @cached_property
    def dtypes(self) -> list[str]:
        """Of the columns."""
        return [str(buffer.dtype) for buffer in self.buffers[0]]

    @cached_property
    def lengths(self) -> list[int]:
        """Elements of each tensor of the rows."""
        return [_elements_of(row[0]) for row in self.buffers]

    @property
    def parts(self) -> int:
        """How many parts the elements of all rows are cut into."""
        return -(-sum(self.lengths) // PART)


def kernel(
    params: Sequence[Any], statements: Sequence[Statement], attributes: Mapping[str, Any]
) -> tirx.PrimFunc:
    """A kernel of statements, which no schedule is to touch."""
    # TVM looks for a block in all that Relax calls.
    body = block("root", *statements)
    own = {"tirx.is_scheduled": True, "tirx.noalias": True}
    every = tvm.ir.make_node("ir.DictAttrs", **own, **attributes)
    return tirx.PrimFunc(list(params), body, attrs=every)


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
    """The addresses of all tensors, and where among all elements the rows start.

    Both are on the stack, where code generation puts nothing else of changing length.
    """

    def __init__(self, rows: Rows):
        self._rows = rows
        self._columns = len(rows.dtypes)
        self._tensors = [tensor for row in rows.buffers for tensor in row]
        places = len(self._tensors) + len(rows.lengths) + 1
        self._memory = tirx.tvm_stack_alloca("tvm_ffi_any", places)
        self._stack = tvm.ir.Var("table", self._memory.ty)

    def prologue(self) -> list[Statement]:
        """The statements that fill the table."""
        starts = [0, *accumulate(self._rows.lengths)]
        places = [*(tensor.data for tensor in self._tensors), *map(index, starts)]
        return [
            tirx.Bind(self._stack, self._memory),
            *(self._put(place, value) for place, value in enumerate(places)),
        ]

    def between(self, start: Any, stop: Any, lanes: int, element: Body) -> Statement:
        """The loop over the rows, of each over its elements from `start` to before `stop`.

        Most have none there. That is seen at once; to look for the others would take longer.
        """
        row, begin, count = variable("row"), variable("begin"), variable("count")
        here, following = self._start(row), self._start(row + 1)
        declared, buffers = self._buffers(row)
        body = sequence(
            tirx.Bind(begin, tirx.max(start - here, index(0))),
            tirx.Bind(count, tirx.max(tirx.min(stop, following) - here - begin, index(0))),
            *declared,
            _elements(buffers, begin, count, lanes, element),
        )
        return loop(row, len(self._rows.lengths), body)

    def _put(self, place: Any, value: Any) -> Statement:
        return tirx.Evaluate(tirx.tvm_struct_set(self._stack, place, _FFI_ANY_UNION_FIELD, value))

    def _get(self, place: Any, dtype: str = "handle") -> Any:
        return tirx.tvm_struct_get(self._stack, place, _FFI_ANY_UNION_FIELD, dtype)

    def _start(self, row: Any) -> Any:
        """The number of a row's first element among those of all rows."""
        return self._get((row + len(self._tensors)).astype("int32"), "int64")

    def _buffers(self, row: Any) -> tuple[list[Statement], list[Any]]:
        """The buffers of a row, and what declares them."""
        statements: list[Statement] = []
        buffers = []
        for column, dtype in enumerate(self._rows.dtypes):
            buffer = tirx.decl_buffer((max(self._rows.lengths),), dtype, f"column{column}")
            pointer = PointerType(PrimType(dtype), "global")
            place = (row * self._columns + column).astype("int32")
            address = tirx.call_intrin(pointer, "tirx.reinterpret", self._get(place))
            statements.append(tirx.DeclBuffer(buffer, data=address))
            buffers.append(buffer)
        return statements, buffers


def _elements(buffers: list[Any], begin: Any, count: Any, lanes: int, element: Body) -> Statement:
    """The loops over `count` elements of a row from `begin`, as many at once as asked."""
    vector, lane, single = variable("vector"), variable("lane"), variable("single")
    whole = tirx.floordiv(count, index(lanes))
    done = statements_of(element(buffers, begin + vector * lanes + lane, lane))
    # TVM would get a buffer wrong that nothing but one vectorized loop accesses.
    at_once = sequence(*(_in_lanes(statement, lane, lanes) for statement in done))
    one_by_one = element(buffers, begin + whole * lanes + single, index(0))
    return sequence(loop(vector, whole, at_once), loop(single, count - whole * lanes, one_by_one))


def _in_lanes(statement: Statement, lane: Any, lanes: int) -> Statement:
    """One statement in all lanes."""
    if isinstance(statement, tirx.AllocBuffer):
        return statement
    own = variable(lane.name)
    return loop(own, lanes, substitute_values(statement, {lane: own}), tirx.ForKind.VECTORIZED)


def _elements_of(buffer: Any) -> int:
    return math.prod(int(extent) for extent in buffer.shape)
