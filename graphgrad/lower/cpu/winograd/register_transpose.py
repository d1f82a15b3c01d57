"""Matrices transposed in square blocks, in registers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

from ..register_transpose import transposed
from .code import Index, Statement, sequence, serial


def turned(
    rows: int,
    columns: int,
    lanes: int,
    source: Callable[[Index, Index], tuple[Any, list[Index]]],
    target: Callable[[Index, Index], tuple[Any, list[Index]]],
) -> Statement:
    """The statement that reads a matrix along its rows and stores it along its columns.

    Parameters
    ----------
    rows, columns : int
        Multiples of `lanes`.
    lanes : int
        A power of two.
    source, target : callable
        Given row and column, return the buffer and the indices there. Neighbors along a row of
        the source, and along a column of the target, are neighbors in the last index.
    """

    across = columns // lanes

    def block(trip: Index) -> Statement:
        row, column = tirx.floordiv(trip, across) * lanes, tirx.floormod(trip, across) * lanes
        loads = [_load(*source(row + i, column), lanes) for i in range(lanes)]
        statements, vectors = transposed(loads)
        stores = [_store(*target(row, column + j), v, lanes) for j, v in enumerate(vectors)]
        return sequence([*statements, *stores])

    # One loop: of two with few trips the code generator unrolls parts, at length.
    return serial(rows // lanes * across, block)


def _load(buffer: Any, indices: list[Index], lanes: int) -> Any:
    return tirx.BufferLoad(buffer, [*indices[:-1], _ramp(indices[-1], lanes)])


def _store(buffer: Any, indices: list[Index], value: Any, lanes: int) -> Statement:
    return tirx.BufferStore(buffer, value, [*indices[:-1], _ramp(indices[-1], lanes)])


def _ramp(first: Index, lanes: int) -> Any:
    return tirx.Ramp(first, tirx.const(1, "int64"), lanes)
