"""Rows of tensors with the same formula, on a processor: by a table of their addresses.

The tensors of one chain are a row of the table in `ops/tensor_table.py`.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from ....ir.loops import index, load, registers, store
from ....ops.tensor_table import Rows, loop_over_rows
from .chain import Formula
from .kernel import Row, RowsWriter

_LANES = 16
"""The number of elements that are computed at once: whole registers of 128, 256 and 512 bits. On
each, updates take the same time with half and with twice as many."""

_MAX_TENSORS = 64
"""The most tensors of a kernel. LLVM takes a millisecond to compile the access to each, and more if
there are many."""


def _statements(formula: Formula, scalars: list[Any], rows: list[Row]) -> list[Any]:
    """The statements that compute a formula for several rows."""
    first_statements, scalar_reads = formula.first([load(scalar, []) for scalar in scalars], _once)

    def element(buffers: list[Any], position: Any, lane: Any) -> Any:
        def keep(value: Any) -> tuple[list[Any], Any]:
            # The loops that use it are right behind: so it is a register in them, and no more.
            buffer = registers("value", [_LANES], str(value.ty))
            return [tirx.AllocBuffer(buffer), store(buffer, [lane], value)], buffer[lane]

        return formula.statement(
            scalar_reads,
            [load(buffer, [position]) for buffer in buffers[: formula.argument_count]],
            lambda cell, value: store(buffers[cell], [position], value),
            keep,
        )

    return [*first_statements, *loop_over_rows(Rows(rows), _LANES, element)]


def _once(value: Any) -> tuple[list[Any], Any]:
    """The statements that keep a value for all threads, and the read of it."""
    buffer, number = registers("value", [1], str(value.ty)), tirx.Var("number", str(value.ty.dtype))
    zero = [index(0)]
    statements = [tirx.AllocBuffer(buffer), store(buffer, zero, value)]
    return [*statements, tirx.Bind(number, load(buffer, zero))], number


TABLE_ROWS = RowsWriter(_statements, _MAX_TENSORS)
