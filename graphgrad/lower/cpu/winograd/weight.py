"""The kernel of a convolution's weight gradient.

It is a correlation too: of the data with the cotangent of the result, whose 3 by 3 results are
summed over all tiles. The factors of both are multiplied, with the tiles as the terms of the sums.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from ....ir.loops import (
    Index,
    Statement,
    block,
    load,
    parallel,
    sequence,
    serial,
    store,
    vectorized,
)
from .blocks import Panels, Rows, blank
from .cook_toom import Filtering, Matrix
from .multiply import Panel, product
from .transforms import Images, Tiling, results, strip_factors

MAX_RUN_PRODUCTS = 16
"""Products added up one after the other: with more, rounding would show in the weights."""


@dataclass(frozen=True)
class WeightGradient:
    """A weight gradient of 3 by 3 windows.

    Attributes
    ----------
    data, cotangent : Images
        The cotangent has no border.
    data_in_rows : bool
        Whether the weights are stored by the data's channels and then the cotangent's, or the other
        way round.
    put : callable
        Given row and column of the window, both channels in the order of the weights, and value,
        returns what stores a weight.
    """

    data: Images
    cotangent: Images
    data_in_rows: bool
    put: Callable[[Index, Index, Index, Index, Any], Statement]


class WeightGradientKernel:
    """Puts the kernel together.

    Parameters
    ----------
    gradient : WeightGradient
    filtering : Filtering
    panel : Panel
        Of the channels that the weights are stored by last; a whole number of them.
    """

    def __init__(self, gradient: WeightGradient, filtering: Filtering, panel: Panel):
        self.gradient, self.filtering, self.panel = gradient, filtering, panel
        self.step = len(filtering.taps[0])
        cotangent = gradient.cotangent
        self.down, self.across = -(-cotangent.rows // self.step), -(-cotangent.columns // self.step)
        self.products = filtering.products**2
        data, ct = (gradient.data, filtering.data), (cotangent, filtering.taps)
        self.left, self.right = (data, ct) if gradient.data_in_rows else (ct, data)
        self.rows, self.columns = self.left[0].channels, self.right[0].channels
        self.panels = self.columns // panel.width

    def at_once(self, height: int) -> Statement:
        """The kernel that has the factors of all tiles before it multiplies.

        Parameters
        ----------
        height : int
            Rows of weights that are computed at a time, with one panel of columns.
        """
        images = self.gradient.data.count
        tiles = images * self.down * self.across
        left, right = self._factors(tiles)
        blocks = self.rows // height

        def one_block(trip: Index) -> Statement:
            first, panel = tirx.floordiv(trip, self.panels) * height, trip % self.panels
            made = Rows.of("products", self.products, height, self.panel.width, self.panel.lanes)

            def multiplied(p: Index) -> Statement:
                return product(
                    self.panel,
                    height,
                    tiles,
                    lambda row, tile: load(left.buffer, left.at(p, tile, first + row)),
                    lambda tile, column: load(right.buffer, right.at(p, panel, tile, column)),
                    lambda row, column: (made.buffer, made.at(p, row, column)),
                    at_a_time=MAX_RUN_PRODUCTS,
                )

            def finished(row: Index, v: Index) -> Statement:
                return self._results(
                    lambda p, column: load(made.buffer, made.at(p, row, column)),
                    first + row,
                    panel,
                    v,
                )

            return block(
                "scratch",
                serial(self.products, multiplied),
                serial(height, lambda r: serial(self.panel.vectors, lambda v: finished(r, v))),
                buffers=[made.buffer],
            )

        strips = self._strips(left, right, 0, images, 0, self.down)
        return block(
            "scratch",
            strips,
            parallel(blocks * self.panels, one_block),
            buffers=[left.buffer, right.buffer],
        )

    def by_images(self, images: int, rows: int) -> Statement:
        """The kernel that adds up products block by block of tiles.

        Parameters
        ----------
        images, rows : int
            A block: images, and rows of tiles of each. One of them is 1, or the rows are all.
        """
        tiles = images * rows * self.across
        left, right = self._factors(tiles)
        made = Panels.of("products", self.products, self.rows, self.panels, self.panel)
        blocks = self.down // rows

        def multiplied(trip: Index) -> Statement:
            p, panel = tirx.floordiv(trip, self.panels), tirx.floormod(trip, self.panels)
            return product(
                self.panel,
                self.rows,
                tiles,
                lambda row, tile: load(left.buffer, left.at(p, tile, row)),
                lambda tile, column: load(right.buffer, right.at(p, panel, tile, column)),
                lambda row, column: (made.buffer, made.at(p, panel, row, column)),
                adds=True,
                at_a_time=MAX_RUN_PRODUCTS,
            )

        def one_block(trip: Index) -> Statement:
            image, row = tirx.floordiv(trip, blocks) * images, tirx.floormod(trip, blocks) * rows
            return sequence(
                self._strips(left, right, image, images, row, rows),
                parallel(self.products * self.panels, multiplied),
            )

        def finished(trip: Index) -> Statement:
            row, panel = tirx.floordiv(trip, self.panels), tirx.floormod(trip, self.panels)
            return serial(
                self.panel.vectors,
                lambda v: self._results(
                    lambda p, column: load(made.buffer, made.at(p, panel, row, column)),
                    row,
                    panel,
                    v,
                ),
            )

        return block(
            "scratch",
            blank(made.buffer, self.panel.lanes, self.products),
            serial(self.gradient.data.count // images * blocks, one_block),
            parallel(self.rows * self.panels, finished),
            buffers=[left.buffer, right.buffer, made.buffer],
        )

    def _factors(self, tiles: int) -> tuple[Rows, Panels]:
        left = Rows.of("left_factors", self.products, tiles, self.rows, self.panel.lanes)
        right = Panels.of("right_factors", self.products, tiles, self.panels, self.panel)
        return left, right

    def _strips(
        self, left: Rows, right: Panels, image: Index, images: int, row: Index, rows: int
    ) -> Statement:
        """The statement that computes the factors of some rows of tiles of some images."""
        lanes, vectors = self.panel.lanes, self.panel.vectors

        def strip(trip: Index) -> Statement:
            def tile(column: Index) -> Index:
                return trip * self.across + column

            def put_left(p: Index, column: Index, v: Index, lane: Index, value: Any) -> Statement:
                return store(left.buffer, left.at(p, tile(column), v * lanes + lane), value)

            def put_right(p: Index, column: Index, v: Index, lane: Index, value: Any) -> Statement:
                panel, inside = tirx.floordiv(v, vectors), tirx.floormod(v, vectors)
                at = right.at(p, panel, tile(column), inside * lanes + lane)
                return store(right.buffer, at, value)

            at = image + tirx.floordiv(trip, rows), row + tirx.floormod(trip, rows)
            return sequence(
                self._strip(*self.left, *at, put_left), self._strip(*self.right, *at, put_right)
            )

        return parallel(images * rows, strip)

    def _strip(
        self, images: Images, matrix: Matrix, image: Index, row: Index, put: Any
    ) -> Statement:
        tiling = Tiling(self.step, self.down, self.across, self.panel.lanes)
        return strip_factors(images, tiling, matrix, image, row, put)

    def _results(
        self, read: Callable[[Index, Index], Any], row: Index, panel: Index, v: Index
    ) -> Statement:
        """The statement that computes and stores a vector of weights, at all taps."""
        lanes = self.panel.lanes
        first = panel * self.panel.width + v * lanes

        def put(i: Index, j: Index, value: Callable[[Index], Any]) -> Statement:
            return vectorized(
                lanes, lambda lane: self.gradient.put(i, j, row, first + lane, value(lane))
            )

        return results(
            self.filtering.results, lanes, lambda p, lane: read(p, v * lanes + lane), put
        )
