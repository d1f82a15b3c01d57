"""Matrices transposed in registers, square by square: each line of memory is touched once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx
from tvm.tirx import ForKind

from ...ir.loops import Index, Statement, block, index, loop, scratch, sequence, serial, variable

SIDES = (4, 16)
"""The least and the greatest number of elements along a side of a square."""


def transpose_matrix(
    rows: int,
    columns: int,
    lanes: int,
    source: Callable[[Index, Index], tuple[Any, list[Index]]],
    target: Callable[[Index, Index], tuple[Any, list[Index]]],
) -> Statement:
    """A statement that reads a matrix along its rows and stores it along its columns.

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
    squares_across = columns // lanes  # squares side by side along a row

    def square(trip: Index) -> Statement:
        row, column = (
            tirx.floordiv(trip, squares_across) * lanes,
            tirx.floormod(trip, squares_across) * lanes,
        )
        loads = [_loaded(*source(row + i, column), lanes) for i in range(lanes)]
        statements, vectors = transposed(loads)
        stores = [
            _stored(*target(row, column + j), column_values, lanes)
            for j, column_values in enumerate(vectors)
        ]
        return sequence(*statements, *stores)

    # One loop: of two with few trips the code generator unrolls parts, at length.
    return serial(rows // lanes * squares_across, square)


def transpose_square(
    dtype: str,
    index_dtype: str,
    side: int,
    read: Callable[[Any, Any], Any],
    store: Callable[[int, Any], Any],
) -> Statement:
    """A statement that transposes one square of elements, which may be computed, not only read.

    Parameters
    ----------
    dtype, index_dtype : str
    side : int
        A power of two.
    read : callable
        Given the row and the position in it, returns the element; neighbors in a row are neighbors
        in memory.
    store : callable
        Given the number of a column, and its values as a vector, returns the statement that stores
        them.
    """
    rows = tirx.decl_buffer([side, side], dtype, "rows", scope="local")
    row, lane = variable("row", index_dtype), variable("lane", index_dtype)
    element = tirx.BufferStore(rows, read(row, lane), [row, lane])
    reads = loop(row, side, loop(lane, side, element, ForKind.VECTORIZED), ForKind.UNROLLED)
    zero = index(0, index_dtype)
    vectors = [_loaded(rows, [index(n, index_dtype), zero], side) for n in range(side)]
    statements, columns = transposed(vectors)
    stores = [store(number, values) for number, values in enumerate(columns)]
    return block("square", reads, *statements, *stores, buffers=[rows])


def transposed(rows: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The columns of a square of numbers, whose rows are given, as vectors.

    Parameters
    ----------
    rows : sequence of TensorLoad
        Loads of vectors, as many as each has lanes: a power of two.

    Returns
    -------
    statements : list of Stmt
        They load the rows and compute what the columns are made of. They come before any use of
        the columns.
    columns : list of Expr
        Each is to be used once: it is an expression, computed again at each use.
    """
    statements: list[Any] = []
    vectors = [_bound(row, statements) for row in rows]
    dtype = str(rows[0].source.dtype)
    bit = 0
    while 1 << bit < len(rows):
        # TVM substitutes what is computed from variables for the variable it is bound to. An
        # exchange uses each vector twice, so after all of them expressions would have as many
        # parts as there are elements. So after every two exchanges the vectors are stored
        # and loaded again.
        if bit and bit % 2 == 0:
            vectors = [_kept(vector, dtype, len(rows), statements) for vector in vectors]
        vectors = _exchange_lanes(vectors, 1 << bit)
        bit += 1
    return statements, vectors


def _bound(vector: Any, statements: list[Any]) -> Any:
    """A variable for a vector that is loaded; its binding is added to the statements."""
    variable = tirx.Var("lanes", vector.ty)
    statements.append(tirx.Bind(variable, vector))
    return variable


def _kept(vector: Any, dtype: str, lanes: int, statements: list[Any]) -> Any:
    """A load of a vector from a buffer; what stores it there is added to the statements.

    A buffer as small as a vector is on the stack, and LLVM makes a register of it.
    """
    buffer = scratch("exchanged", [lanes], dtype)
    statements += [tirx.AllocBuffer(buffer), _stored(buffer, [index(0)], vector, lanes)]
    return _loaded(buffer, [index(0)], lanes)


def _exchange_lanes(vectors: list[Any], distance: int) -> list[Any]:
    """Vectors in which one bit of the vector's number and of the lane's have been exchanged.

    `distance` is that bit's value. After this has been done for all bits, element j of vector i is
    what was element i of vector j.
    """
    lanes = len(vectors)
    result = list(vectors)
    for i in range(lanes):
        if i & distance:
            continue
        # A shuffle counts the lanes of both vectors in a row: those of the second from `lanes` on.
        pair = [vectors[i], vectors[i + distance]]
        low = [lane if not lane & distance else lanes + lane - distance for lane in range(lanes)]
        high = [lane + distance if not lane & distance else lanes + lane for lane in range(lanes)]
        result[i] = _shuffle(pair, low)
        result[i + distance] = _shuffle(pair, high)
    return result


def _shuffle(vectors: list[Any], lanes: list[int]) -> Any:
    return tirx.Shuffle(vectors, [tirx.const(lane, "int32") for lane in lanes])


def _loaded(buffer: Any, indices: list[Index], lanes: int) -> Any:
    return tirx.BufferLoad(buffer, [*indices[:-1], _ramp(indices[-1], lanes)])


def _stored(buffer: Any, indices: list[Index], value: Any, lanes: int) -> Statement:
    return tirx.BufferStore(buffer, value, [*indices[:-1], _ramp(indices[-1], lanes)])


def _ramp(first: Index, lanes: int) -> Any:
    return tirx.Ramp(first, index(1, str(first.ty.dtype)), lanes)
