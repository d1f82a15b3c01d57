"""Matrices transposed in square blocks, in registers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

from .code import Index, Statement, sequence, serial


def turned(
    rows: int,
    columns: int,
    lanes: int,
    source: Callable[[Index, Index], tuple[Any, list[Index]]],
    target: Callable[[Index, Index], tuple[Any, list[Index]]],
) -> Statement:
    """Return what reads a matrix along its rows and stores it along its columns.

    Parameters
    ----------
    rows, columns : int
        Multiples of `lanes`.
    lanes : int
        A power of two.
    source, target : callable
        Given row and column, return the buffer and the indices there. Neighbours along a row of
        the source, and along a column of the target, are neighbours in the last index.
    """

    def block(row: Index, column: Index) -> Statement:
        statements: list[Statement] = []

        def named(value: Any) -> Any:
            variable = tirx.Var("lanes", value.ty)
            statements.append(tirx.Bind(variable, value))
            return variable

        vectors = [named(_load(*source(row + i, column), lanes)) for i in range(lanes)]
        distance = 1
        while distance < lanes:
            vectors = _exchanged(vectors, distance, named)
            distance *= 2
        for j, value in enumerate(vectors):
            statements.append(_store(*target(row, column + j), value, lanes))
        return sequence(statements)

    return serial(
        rows // lanes,
        lambda row: serial(columns // lanes, lambda column: block(row * lanes, column * lanes)),
    )


def _exchanged(vectors: list[Any], distance: int, named: Callable[[Any], Any]) -> list[Any]:
    """Return vectors in which one bit of their number and of the lanes' have changed places.

    After this has been done for all bits, the elements of a vector have become those of a lane.
    """
    lanes = len(vectors)
    result = list(vectors)
    for i in range(lanes):
        if i & distance:
            continue
        pair = [vectors[i], vectors[i + distance]]
        low = [n if not n & distance else lanes + n - distance for n in range(lanes)]
        high = [n + distance if not n & distance else lanes + n for n in range(lanes)]
        result[i] = named(_shuffle(pair, low))
        result[i + distance] = named(_shuffle(pair, high))
    return result


def _shuffle(vectors: list[Any], lanes: list[int]) -> Any:
    return tirx.Shuffle(vectors, [tirx.const(lane, "int32") for lane in lanes])


def _load(buffer: Any, indices: list[Index], lanes: int) -> Any:
    return tirx.BufferLoad(buffer, [*indices[:-1], _ramp(indices[-1], lanes)])


def _store(buffer: Any, indices: list[Index], value: Any, lanes: int) -> Statement:
    return tirx.BufferStore(buffer, value, [*indices[:-1], _ramp(indices[-1], lanes)])


def _ramp(first: Index, lanes: int) -> Any:
    return tirx.Ramp(first, tirx.const(1, "int64"), lanes)
