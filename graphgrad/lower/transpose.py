"""Squares of numbers transposed in registers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx


def transposed(vectors: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Return the columns of a square of numbers, whose rows are given, as vectors.

    Parameters
    ----------
    vectors : sequence of Expr
        As many as they have lanes: a power of two.

    Returns
    -------
    statements : list of Stmt
        They bind what the columns are made of, and come before any use of these.
    columns : list of Expr
        Variables.
    """
    statements: list[Any] = []

    def named(value: Any) -> Any:
        variable = tirx.Var("lanes", value.ty)
        statements.append(tirx.Bind(variable, value))
        return variable

    columns = [named(vector) for vector in vectors]
    distance = 1
    while distance < len(columns):
        columns = _exchanged(columns, distance, named)
        distance *= 2
    return statements, columns


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
