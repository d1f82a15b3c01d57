"""Rows of tensors with the same formula, on a GPU: one launch, whose blocks belong to one row each.

A block finds its row by its number, in a tree of comparisons that is the same for all its threads.
"""

from __future__ import annotations

import math
from itertools import accumulate, pairwise
from typing import Any

from tvm import tirx

from ...ir.loops import bound, ceil_div, index, load, registers, sequence, store, unravel, variable
from ..fusion.horizontal.chain import Formula
from ..fusion.horizontal.kernel import Row, RowsWriter
from .lanes import over_lanes, wide_lanes
from .threads import THREADS

_MAX_TENSORS = 480
"""The most tensors of a kernel: their addresses must fit into the 4 KiB of its parameters."""


def _statements(formula: Formula, scalars: list[Any], rows: list[Row]) -> list[Any]:
    """The statements that compute a formula for several rows."""
    return [_Launch(formula, scalars, rows).statement()]


class _Launch:
    """Writes the launch.

    Attributes
    ----------
    allocated : list of Stmt
        The allocations of registers, which all rows have in common.
    """

    def __init__(self, formula: Formula, scalars: list[Any], rows: list[Row]):
        self._formula, self._scalars, self._rows = formula, scalars, rows
        self._lanes = wide_lanes(load(cell, [index(0)] * len(cell.shape)) for cell in rows[0])
        self._block, self._thread = variable("block"), variable("thread")
        self._kept: list[Any] = []
        blocks = [ceil_div(_elements(row), THREADS * self._lanes) for row in rows]
        self._starts = [0, *accumulate(blocks)]

    def statement(self) -> Any:
        """The launch of all rows."""
        values = [load(scalar, []) for scalar in self._scalars]
        first, self._reads = self._formula.first(values, self._keep)
        leaves = [
            (start, self._row(row, start, stop))
            for row, (start, stop) in zip(self._rows, pairwise(self._starts), strict=True)
        ]
        allocated = [tirx.AllocBuffer(buffer) for buffer in self._kept]
        body = sequence(*allocated, *first, self._chosen(leaves))
        threads = bound(self._thread, index(THREADS), "threadIdx.x", body)
        return bound(self._block, index(self._starts[-1]), "blockIdx.x", threads)

    def _chosen(self, leaves: list[tuple[int, Any]]) -> Any:
        """The statement that runs the one of some rows to which a block belongs."""
        if len(leaves) == 1:
            return leaves[0][1]
        middle = len(leaves) // 2
        low, high = self._chosen(leaves[:middle]), self._chosen(leaves[middle:])
        return tirx.IfThenElse(self._block < leaves[middle][0], low, high)

    def _row(self, row: Row, start: int, stop: int) -> Any:
        """The statement that computes the elements of a row that a thread has."""
        count, lanes = _elements(row), self._lanes
        block = self._block - start
        if count % lanes:
            # Neighbors that are not a whole vector: a thread takes every so many elements.
            each = [(block * lanes + lane) * THREADS + self._thread for lane in range(lanes)]
            return sequence(
                *(tirx.IfThenElse(at < count, self._element(row, at), None) for at in each)
            )
        lane = variable("lane")
        first = (block * THREADS + self._thread) * lanes
        body = over_lanes(lane, lanes, self._element(row, first + lane))
        is_whole = count == (stop - start) * THREADS * lanes
        return body if is_whole else tirx.IfThenElse(first < count, body, None)

    def _element(self, row: Row, position: Any) -> Any:
        """The statement that computes the formula for one element of a row."""
        indices = [unravel(position, [int(extent) for extent in cell.shape]) for cell in row]
        count = self._formula.argument_count
        return self._formula.statement(
            self._reads,
            [load(cell, at) for cell, at in zip(row[:count], indices, strict=False)],
            lambda cell, value: store(row[cell], indices[cell], value),
            self._keep,
        )

    def _keep(self, value: Any) -> tuple[list[Any], Any]:
        """The statements that keep a value in a register, and the read of it."""
        buffer = registers("value", [1], str(value.ty.dtype))
        self._kept.append(buffer)
        return [store(buffer, [index(0)], value)], load(buffer, [index(0)])


def _elements(row: Row) -> int:
    return math.prod(int(extent) for extent in row[0].shape)


BLOCK_ROWS = RowsWriter(_statements, _MAX_TENSORS)
