"""The transforms before the products and after them, as loops over tiles and vectors.

A transform applies one matrix along both axes of a tile. In a strip, a row of tiles that overlap,
the vertical pass combines the rows of all columns first, which neighboring tiles share. The
horizontal pass then combines columns, tile by tile.
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
    sequence,
    serial,
    store,
    unrolled,
    vectorized,
)
from .cook_toom import Matrix


@dataclass(frozen=True)
class Images:
    """Images (N, H, W, C) inside a border of zeros that is as wide as reads need it to be.

    Attributes
    ----------
    buffer : Buffer
        Of float32 or bfloat16.
    top, left : int
        The rows and columns of the border before the first ones of the image. They are negative if
        reading begins so far inside the image.
    count, rows, columns, channels : int
        The size of the images, without the border.
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
    """The tiles of an image.

    Attributes
    ----------
    step : int
        The distance from tile to tile, in rows and in columns.
    down, across : int
        The number of tiles of an image, from top to bottom and from left to right.
    lanes : int
        The number of elements of a vector.
    """

    step: int
    down: int
    across: int
    lanes: int


Put = Callable[[Index, Index, Index, Index, Any], Statement]
"""``put(product, tile across, vector of channels, lane, value)`` returns what stores a factor."""


def strip_factors(
    images: Images, tiling: Tiling, matrix: Matrix, image: Index, down: Index, put: Put
) -> Statement:
    """The statement that computes the factors of one row of tiles: ``matrix · tile · matrixᵀ``.

    Parameters
    ----------
    images : Images
    tiling : Tiling
    matrix : Matrix
    image, down : Expr
        The image, and the row of tiles in it.
    put : Put
    """
    products, taps, lanes = len(matrix), len(matrix[0]), tiling.lanes
    width = (tiling.across - 1) * tiling.step + taps
    strip = scratch("strip", (products, width, images.channels))
    vectors = images.channels // lanes
    top = down * tiling.step - images.top
    # Columns of the strip from the first one inside of the image to the end of those inside.
    first_inside, end_inside = (
        max(min(column, width), 0) for column in (images.left, images.left + images.columns)
    )

    lowest_row, highest_row = -images.top, (tiling.down - 1) * tiling.step + taps - 1 - images.top
    may_be_outside = lowest_row < 0 or highest_row >= images.rows

    def read(column: Index, tap: int, channel: Index, guarded: bool) -> Any:
        row = top + tap
        at = [image, row, column - images.left, channel]
        value = load(images.buffer, at).astype("float32")
        # Not a `Select` over a clamped row, which reads either way: TVM would drop the clamping
        # where the condition implies it, and read outside of the tensor.
        inside = tirx.all(row >= 0, row < images.rows)
        return tirx.if_then_else(inside, value, tirx.const(0, "float32")) if guarded else value

    # Most strips lie inside of the image from top to bottom; one condition finds out, so that only
    # the others have a guard at each read.
    def load_column(loads: Callable[..., Statement]) -> Statement:
        if not may_be_outside:
            return loads(guarded=False)
        inside = tirx.all(top >= 0, top + (taps - 1) < images.rows)
        return tirx.IfThenElse(inside, loads(guarded=False), loads(guarded=True))

    def transform_column(column: Index, vector: Index) -> Statement:
        return _applied(
            matrix,
            lanes,
            lambda tap, lane, guarded=False: read(
                column + first_inside, tap, vector * lanes + lane, guarded
            ),
            lambda i, lane, value: store(
                strip, [index(i), column + first_inside, vector * lanes + lane], value
            ),
            load_column,
        )

    vertical_pass = serial(
        end_inside - first_inside,
        lambda column: serial(vectors, lambda vector: transform_column(column, vector)),
    )

    # Columns in the border are zero whatever their rows are: sums of zeros.
    def blank_columns(start: int, end: int) -> list[Statement]:
        if end == start:
            return []

        def clear_vector(i: Index, column: Index, vector: Index) -> Statement:
            return vectorized(
                lanes,
                lambda lane: store(
                    strip, [i, column + start, vector * lanes + lane], tirx.const(0, "float32")
                ),
            )

        return [
            serial(
                products,
                lambda i: serial(
                    end - start,
                    lambda column: serial(vectors, lambda vector: clear_vector(i, column, vector)),
                ),
            )
        ]

    def transform_tile(across: Index, i: Index, vector: Index) -> Statement:
        return _applied(
            matrix,
            lanes,
            lambda tap, lane: load(strip, [i, across * tiling.step + tap, vector * lanes + lane]),
            lambda j, lane, value: put(i * products + j, across, vector, lane, value),
        )

    horizontal_pass = serial(
        tiling.across,
        lambda across: serial(
            products, lambda i: serial(vectors, lambda vector: transform_tile(across, i, vector))
        ),
    )
    return block(
        "scratch",
        vertical_pass,
        *blank_columns(0, first_inside),
        *blank_columns(end_inside, width),
        horizontal_pass,
        buffers=[strip],
    )


def tap_factors(
    matrix: Matrix,
    lanes: int,
    read: Callable[[int, int, Index], Any],
    put: Callable[[Index, Index, Any], Statement],
) -> Statement:
    """The statement that computes the factors of a vector of windows: ``matrix · taps · matrixᵀ``.

    Parameters
    ----------
    matrix : Matrix
    lanes : int
    read : callable
        Given a row and a column of the window, and the lane, returns the weight.
    put : callable
        Given the product, the lane, and the value, returns the statement that stores the factor.
    """
    products, taps = len(matrix), len(matrix[0])
    half = registers("half", (products, taps, lanes))

    def transform_column(j: int) -> Statement:
        return _applied(
            matrix,
            lanes,
            lambda i, lane: read(i, j, lane),
            lambda i, lane, value: store(half, [index(i), index(j), lane], value),
        )

    horizontal_pass = unrolled(
        products,
        lambda i: _applied(
            matrix,
            lanes,
            lambda j, lane: load(half, [i, index(j), lane]),
            lambda j, lane, value: put(i * products + j, lane, value),
        ),
    )
    return block("scratch", *map(transform_column, range(taps)), horizontal_pass, buffers=[half])


def results(
    matrix: Matrix,
    lanes: int,
    read: Callable[[Index, Index], Any],
    put: Callable[[Index, Index, Callable[[Index], Any]], Statement],
) -> Statement:
    """The statement that computes a tile of results, in vectors: ``matrix · products · matrixᵀ``.

    Parameters
    ----------
    matrix : Matrix
    lanes : int
    read : callable
        Given the product and the lane, returns its value.
    put : callable
        Given the row and column in the tile, and a function from lane to value, returns the
        statement that stores a result. It is called once, inside loops over rows and columns.
    """
    outputs, products = len(matrix), len(matrix[0])
    half = registers("half", (outputs, products, lanes))
    row = registers("row", (outputs, lanes))
    vertical_pass = serial(
        products,
        lambda j: _applied(
            matrix,
            lanes,
            lambda i, lane: read(i * products + j, lane),
            lambda i, lane, value: store(half, [index(i), j, lane], value),
        ),
    )

    def finish_row(i: Index) -> Statement:
        horizontal_pass = _applied(
            matrix,
            lanes,
            lambda j, lane: load(half, [i, index(j), lane]),
            lambda j, lane, value: store(row, [index(j), lane], value),
        )
        store_row = unrolled(outputs, lambda j: put(i, j, lambda lane: load(row, [j, lane])))
        return block("scratch", horizontal_pass, store_row, buffers=[row])

    return block("scratch", vertical_pass, serial(outputs, finish_row), buffers=[half])


def _applied(
    matrix: Matrix,
    lanes: int,
    read: Callable[..., Any],
    put: Callable[[int, Index, Any], Statement],
    load_inputs: Callable[[Callable[..., Statement]], Statement] = lambda loads: loads(),
) -> Statement:
    """The statement that applies a matrix to vectors.

    Parameters
    ----------
    matrix : Matrix
    lanes : int
    read : callable
        Given the number of an input (a column of the matrix) and the lane, returns its value.
    put : callable
        Given the number of an output (a row of the matrix), the lane, and the value, returns the
        statement that stores it.
    load_inputs : callable
        Given a function that returns the statement that loads all inputs, returns what does so by
        it; the function hands its arguments on to `read`.
    """
    # Each input is loaded once, and serves all outputs.
    inputs = len(matrix[0])
    loaded = registers("taken", (inputs, lanes))

    def load_input(j: int, **options: Any) -> Statement:
        return vectorized(
            lanes, lambda lane: store(loaded, [index(j), lane], read(j, lane, **options))
        )

    def loads(**options: Any) -> Statement:
        return sequence(*(load_input(j, **options) for j in range(inputs)))

    def value(i: int, lane: Index) -> Any:
        return _combined(matrix[i], [load(loaded, [index(j), lane]) for j in range(inputs)])

    def store_output(i: int) -> Statement:
        return vectorized(lanes, lambda lane: put(i, lane, value(i, lane)))

    outputs = map(store_output, range(len(matrix)))
    return block("scratch", load_inputs(loads), *outputs, buffers=[loaded])


def _combined(coefficients: Sequence[Any], terms: Sequence[Any]) -> Any:
    """The sum of terms with coefficients, without multiplications by 0 and ±1 where possible.

    None if all coefficients are zero.
    """
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
    """A number as a float32 constant."""
    return tirx.const(float(value), "float32")
