"""The transforms in front of the products and behind them, as loops over tiles and vectors.

A matrix is applied along the rows of a strip first, which neighboring tiles share, and then along
its columns, tile by tile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from ....ir.loops import (
    Index,
    Statement,
    block,
    index,
    load,
    registers,
    scratch,
    serial,
    store,
    unrolled,
    vectorized,
)
from .cook_toom import Matrix


@dataclass(frozen=True)
class Images:
    """Images (N, H, W, C) with a border of zeros as wide as anybody reads.

    Attributes
    ----------
    buffer : Buffer
    top, left : int
        The border before the first row and column; negative where these are not read.
    count, rows, columns, channels : int
        Without the border.
    """

    buffer: Any
    top: int
    left: int
    count: int
    rows: int
    columns: int
    channels: int


@dataclass(frozen=True)
class Tiling:
    """Tiles over images.

    Attributes
    ----------
    step : int
        From tile to tile, in rows and columns.
    down, across : int
        Tiles of an image.
    lanes : int
        Elements of a vector.
    """

    step: int
    down: int
    across: int
    lanes: int


Put = Callable[[Index, Index, Index, Index, Any], Statement]
"""``f(product, tile across, vector of channels, lane, value)`` stores a factor."""


def strip_factors(
    images: Images, tiling: Tiling, matrix: Matrix, image: Index, down: Index, put: Put
) -> Statement:
    """The statement that computes the factors of one row of tiles: ``matrix · tile · matrixᵀ``."""
    products, taps, lanes = len(matrix), len(matrix[0]), tiling.lanes
    width = (tiling.across - 1) * tiling.step + taps
    strip = scratch("strip", (products, width, images.channels))
    vectors = images.channels // lanes
    top = down * tiling.step - images.top
    first, last = (
        max(min(column, width), 0) for column in (images.left, images.left + images.columns)
    )

    def rows(guarded: bool) -> Statement:
        def read(column: Index, tap: int, channel: Index) -> Any:
            row = top + tap
            value = load(images.buffer, [image, row, column - images.left, channel])
            # A choice, not a selection from what is read: TVM would undo any clamping of the row
            # that follows from the condition.
            inside = tirx.all(row >= 0, row < images.rows)
            return tirx.if_then_else(inside, value, tirx.const(0, "float32")) if guarded else value

        def one(column: Index, v: Index) -> Statement:
            return _applied(
                matrix,
                lanes,
                lambda tap, lane: read(column + first, tap, v * lanes + lane),
                lambda i, lane, value: store(
                    strip, [index(i), column + first, v * lanes + lane], value
                ),
            )

        return serial(last - first, lambda column: serial(vectors, lambda v: one(column, v)))

    def blank(start: int, end: int) -> list[Statement]:
        if end == start:
            return []

        def one(i: Index, column: Index, v: Index) -> Statement:
            return vectorized(
                lanes,
                lambda lane: store(
                    strip, [i, column + start, v * lanes + lane], tirx.const(0, "float32")
                ),
            )

        return [
            serial(
                products,
                lambda i: serial(
                    end - start, lambda column: serial(vectors, lambda v: one(i, column, v))
                ),
            )
        ]

    lowest, highest = -images.top, (tiling.down - 1) * tiling.step + taps - 1 - images.top
    if lowest < 0 or highest >= images.rows:
        inside = tirx.all(top >= 0, top + (taps - 1) < images.rows)
        vertical = tirx.IfThenElse(inside, rows(False), rows(True))
    else:
        vertical = rows(False)

    def columns(across: Index, i: Index, v: Index) -> Statement:
        return _applied(
            matrix,
            lanes,
            lambda tap, lane: load(strip, [i, across * tiling.step + tap, v * lanes + lane]),
            lambda j, lane, value: put(i * products + j, across, v, lane, value),
        )

    horizontal = serial(
        tiling.across,
        lambda across: serial(products, lambda i: serial(vectors, lambda v: columns(across, i, v))),
    )
    return block(
        "scratch", vertical, *blank(0, first), *blank(last, width), horizontal, buffers=[strip]
    )


def tap_factors(
    matrix: Matrix,
    lanes: int,
    read: Callable[[int, int, Index], Any],
    put: Callable[[Index, Index, Any], Statement],
) -> Statement:
    """The statement of the factors of one vector of windows: ``matrix · window · matrixᵀ``.

    Parameters
    ----------
    matrix : Matrix
    lanes : int
    read : callable
        Given a row and a column of the window, and the lane.
    put : callable
        Given the product, the lane, and the value to be stored.
    """
    products, taps = len(matrix), len(matrix[0])
    half = registers("half", (products, taps, lanes))

    def column(j: int) -> Statement:
        return _applied(
            matrix,
            lanes,
            lambda i, lane: read(i, j, lane),
            lambda i, lane, value: store(half, [index(i), index(j), lane], value),
        )

    horizontal = unrolled(
        products,
        lambda i: _applied(
            matrix,
            lanes,
            lambda j, lane: load(half, [i, index(j), lane]),
            lambda j, lane, value: put(i * products + j, lane, value),
        ),
    )
    return block("scratch", *map(column, range(taps)), horizontal, buffers=[half])


def results(
    matrix: Matrix,
    lanes: int,
    read: Callable[[Index, Index], Any],
    put: Callable[[Index, Index, Callable[[Index], Any]], Statement],
) -> Statement:
    """The statement of the results of a tile, a vector each: ``matrix · products · matrixᵀ``.

    Parameters
    ----------
    matrix : Matrix
    lanes : int
    read : callable
        Given the product and the lane.
    put : callable
        Given the row and column in the tile, and the value by lane, returns what stores it. It is
        one statement, in loops over rows and columns.
    """
    outputs, products = len(matrix), len(matrix[0])
    half = registers("half", (outputs, products, lanes))
    whole = registers("whole", (outputs, outputs, lanes))
    vertical = unrolled(
        products,
        lambda j: _applied(
            matrix,
            lanes,
            lambda i, lane: read(i * products + j, lane),
            lambda i, lane, value: store(half, [index(i), j, lane], value),
        ),
    )
    horizontal = unrolled(
        outputs,
        lambda i: _applied(
            matrix,
            lanes,
            lambda j, lane: load(half, [i, index(j), lane]),
            lambda j, lane, value: store(whole, [i, index(j), lane], value),
        ),
    )
    stored = unrolled(
        outputs,
        lambda i: unrolled(outputs, lambda j: put(i, j, lambda lane: load(whole, [i, j, lane]))),
    )
    return block("scratch", vertical, horizontal, stored, buffers=[half, whole])


def _applied(
    matrix: Matrix,
    lanes: int,
    read: Callable[[int, Index], Any],
    put: Callable[[int, Index, Any], Statement],
) -> Statement:
    """The statement that applies a matrix to vectors."""
    inputs = len(matrix[0])
    taken = registers("taken", (inputs, lanes))

    def reading(j: int) -> Statement:
        return vectorized(lanes, lambda lane: store(taken, [index(j), lane], read(j, lane)))

    def value(i: int, lane: Index) -> Any:
        return _combined(matrix[i], [load(taken, [index(j), lane]) for j in range(inputs)])

    def putting(i: int) -> Statement:
        return vectorized(lanes, lambda lane: put(i, lane, value(i, lane)))

    statements = [reading(j) for j in range(inputs)]
    return block("scratch", *statements, *(putting(i) for i in range(len(matrix))), buffers=[taken])


def _combined(coefficients: Sequence[Any], terms: Sequence[Any]) -> Any:
    """The sum of terms with coefficients, without products by 0 and 1."""
    total = None
    for coefficient, term in zip(coefficients, terms, strict=True):
        if coefficient == 0:
            continue
        if total is None:
            total = term if coefficient == 1 else term * _float(coefficient)
        elif abs(coefficient) == 1:
            total = total + term if coefficient == 1 else total - term
        else:
            total = total + term * _float(coefficient)
    return total


def _float(value: Any) -> Any:
    return tirx.const(float(value), "float32")
