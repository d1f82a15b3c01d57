"""Rows of tensors with the same formula, on a GPU: a launch whose blocks belong to one row each."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from tvm import tirx

from ...ir.kernel_rewrite import with_body
from ...ir.loops import ceil_div, index, load, registers, sequence, store, variable
from ..fusion.horizontal.chain import Formula
from ..fusion.horizontal.flat import DTYPES
from ..fusion.horizontal.kernel import Row, RowsWriter
from .lanes import over_lanes, wide_lanes
from .threads import THREADS, one_launch

_MAX_TENSORS = 480
"""The most tensors of a kernel: their addresses must fit into the 4 KiB of its parameters."""


def _statements(formula: Formula, scalars: list[Any], rows: list[Row]) -> list[Any]:
    """The statements that compute a formula for several rows."""
    return [_Launch(formula, scalars, rows).statement()]


class _Launch:
    """Writes the launch; all rows have their registers in common."""

    def __init__(self, formula: Formula, scalars: list[Any], rows: list[Row]):
        self._formula, self._scalars, self._rows = formula, scalars, rows
        self._lanes = wide_lanes(load(cell, [index(0)] * len(cell.shape)) for cell in rows[0])
        self._kept: list[Any] = []

    def statement(self) -> Any:
        """The launch of all rows."""
        values = [load(scalar, []) for scalar in self._scalars]
        first, self._reads = self._formula.first(values, self._keep)
        blocks = [ceil_div(_elements(row), THREADS * self._lanes) for row in self._rows]
        parts = [
            (count, partial(self._row, row, count))
            for row, count in zip(self._rows, blocks, strict=True)
        ]
        launch = one_launch(parts, THREADS)
        allocated = [tirx.AllocBuffer(buffer) for buffer in self._kept]
        body = sequence(*allocated, *first, launch.body.body)
        return with_body(launch, with_body(launch.body, body))

    def _row(self, row: Row, blocks: int, block: Any, thread: Any) -> Any:
        """The statement that computes the elements of a row that a thread has."""
        count, lanes = _elements(row), self._lanes
        # TVM does not see that an element's number, made indices, is made the same number again.
        flat = [tirx.decl_buffer([index(count)], str(cell.dtype), "flat") for cell in row]
        declared = [
            tirx.DeclBuffer(line, data=cell.data) for line, cell in zip(flat, row, strict=True)
        ]
        if count % lanes:
            # Neighbors that are not a whole vector: a thread takes every so many elements.
            each = [(block * lanes + lane) * THREADS + thread for lane in range(lanes)]
            elements = [tirx.IfThenElse(at < count, self._element(flat, at), None) for at in each]
            return sequence(*declared, *elements)
        lane = variable("lane")
        first = (block * THREADS + thread) * lanes
        body = over_lanes(lane, lanes, self._element(flat, first + lane))
        if count < blocks * THREADS * lanes:
            body = tirx.IfThenElse(first < count, body, None)
        return sequence(*declared, body)

    def _element(self, row: Row, position: Any) -> Any:
        """The statement that computes the formula for one element of a row."""
        return self._formula.statement(
            self._reads,
            [load(cell, [position]) for cell in row[: self._formula.argument_count]],
            lambda cell, value: store(row[cell], [position], value),
            self._keep,
        )

    def _keep(self, value: Any) -> tuple[list[Any], Any]:
        """The statements that keep a value in a register, and the read of it."""
        buffer = registers("value", [1], str(value.ty.dtype))
        self._kept.append(buffer)
        return [store(buffer, [index(0)], value)], load(buffer, [index(0)])


def _elements(row: Row) -> int:
    return math.prod(int(extent) for extent in row[0].shape)


BLOCK_ROWS = RowsWriter(_statements, _MAX_TENSORS, (*DTYPES, "float16", "bfloat16"))
