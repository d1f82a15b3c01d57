"""Squares of numbers transposed in registers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx


def transposed(rows: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Return the columns of a square of numbers, whose rows are given, as vectors.

    Parameters
    ----------
    rows : sequence of TensorLoad
        As many as they have lanes: a power of two.

    Returns
    -------
    statements : list of Stmt
        They load the rows and compute what the columns are made of, and come before any use of
        these.
    columns : list of Expr
        Each is meant for one use.
    """
    statements: list[Any] = []
    vectors = [_bound(row, statements) for row in rows]
    dtype = str(rows[0].source.dtype)
    exchanges = 0
    while 1 << exchanges < len(rows):
        # TVM puts what is computed from variables in the place of the variable it is bound to. An
        # exchange uses each vector twice, so after all of them expressions would have as many
        # parts as there are elements. What has been stored is loaded and no more.
        if exchanges and exchanges % 2 == 0:
            vectors = [_stored(vector, dtype, len(rows), statements) for vector in vectors]
        vectors = _exchange_lanes(vectors, 1 << exchanges)
        exchanges += 1
    return statements, vectors


def _bound(vector: Any, statements: list[Any]) -> Any:
    """Return a variable for a vector that is loaded; add what binds it."""
    variable = tirx.Var("lanes", vector.ty)
    statements.append(tirx.Bind(variable, vector))
    return variable


def _stored(vector: Any, dtype: str, lanes: int, statements: list[Any]) -> Any:
    """Return a load of a vector that has been stored; add what stores it.

    A buffer as small as a vector is on the stack, and LLVM makes a register of it.
    """
    buffer = tirx.decl_buffer([tirx.const(lanes, "int64")], dtype, "exchanged")
    whole = [tirx.Ramp(tirx.const(0, "int64"), tirx.const(1, "int64"), lanes)]
    statements += [tirx.AllocBuffer(buffer), tirx.BufferStore(buffer, vector, whole)]
    return tirx.BufferLoad(buffer, whole)


def _exchange_lanes(vectors: list[Any], distance: int) -> list[Any]:
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
        result[i] = _shuffle(pair, low)
        result[i + distance] = _shuffle(pair, high)
    return result


def _shuffle(vectors: list[Any], lanes: list[int]) -> Any:
    return tirx.Shuffle(vectors, [tirx.const(lane, "int32") for lane in lanes])
