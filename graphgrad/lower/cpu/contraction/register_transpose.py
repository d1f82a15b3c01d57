"""Squares of elements that change rows for columns on their way from memory to memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.tirx import ForKind

from ..register_transpose import transposed
from .nest import block, loop, together, variable

SIDES = (4, 16)
"""Elements along a side of a square, at least and at most."""


def turned(
    dtype: str,
    index_dtype: str,
    side: int,
    read: Callable[[Any, Any], Any],
    store: Callable[[int, Any], Any],
) -> Any:
    """The statement that transposes one square, in registers: each line of memory is touched once.

    Parameters
    ----------
    dtype, index_dtype : str
    side : int
        A power of two.
    read : callable
        Given row and place in the row, returns the element; neighbors in a row are neighbors in
        memory.
    store : callable
        Given the number of a column, and its values as a vector, returns what stores them.
    """
    rows = tirx.decl_buffer([side, side], dtype, "rows", scope="local")
    row, lane = variable("row", index_dtype), variable("lane", index_dtype)
    element = tirx.BufferStore(rows, read(row, lane), [row, lane])
    reads = loop(row, side, loop(lane, side, element, ForKind.VECTORIZED), ForKind.UNROLLED)
    zero, one = tirx.const(0, index_dtype), tirx.const(1, index_dtype)
    whole = tirx.Ramp(zero, one, side)
    vectors = [tirx.BufferLoad(rows, [tirx.const(n, index_dtype), whole]) for n in range(side)]
    statements, columns = transposed(vectors)
    stores = [store(number, values) for number, values in enumerate(columns)]
    return block("square", together(reads, *statements, *stores), [rows])
