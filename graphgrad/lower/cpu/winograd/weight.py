"""The kernel of a convolution's weight gradient, by minimal filtering.

It is a correlation too: of the data with the cotangent of the result. Each pair of tiles gives 3 by
3 results, which are summed over all tiles. So the factors of both are multiplied as matrices, with
the tiles as the terms of the sums.
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
"""The most products that are added up one after the other. With more of them, rounding errors would
show in the weights."""


@dataclass(frozen=True)
class WeightGradient:
    """A weight gradient of 3 by 3 windows.

    Attributes
    ----------
    data, cotangent : Images
        The cotangent has no border.
    data_in_rows : bool
        Whether the data's channels come before the cotangent's in the order of the weights' axes,
        or the other way round.
    put : callable
        Given row and column of the window, both channels in the order of the weights, and value,
        returns the statement that stores a weight.
    """

    data: Images
    cotangent: Images
    data_in_rows: bool
    put: Callable[[Index, Index, Index, Index, Any], Statement]


class WeightGradientKernel:
    """The kernel of one weight gradient, with one choice of transforms and register tile.

    Parameters
    ----------
    gradient : WeightGradient
    filtering : Filtering
    panel : Panel
        Its columns are the channels of the weights' last axis, which make up a whole number of
        panels.
    """

    def __init__(self, gradient: WeightGradient, filtering: Filtering, panel: Panel):
        self.gradient, self.filtering, self.panel = gradient, filtering, panel
        self.step = len(filtering.taps[0])
        cotangent = gradient.cotangent
        self.down, self.across = -(-cotangent.rows // self.step), -(-cotangent.columns // self.step)
        self.products = filtering.products**2
        # Products are matrices as the weights are: the left factor has their rows, the right one
        # their columns.
        data, ct = (gradient.data, filtering.data), (cotangent, filtering.taps)
        self.left, self.right = (data, ct) if gradient.data_in_rows else (ct, data)
        self.rows, self.columns = self.left[0].channels, self.right[0].channels
        self.panels = self.columns // panel.width

    def by_channels(self, height: int) -> Statement:
        """The kernel that computes the factors of all tiles before it multiplies.

        Parameters
        ----------
        height : int
            The rows of weights that are computed at a time, with one panel of columns. It divides
            their number.
        """
        images = self.gradient.data.count
        tiles = images * self.down * self.across
        left, right = self._factors(tiles)
        blocks = self.rows // height

        def compute_block(trip: Index) -> Statement:
            first_row, panel = tirx.floordiv(trip, self.panels) * height, trip % self.panels
            tile_products = Rows.of(
                "products", self.products, height, self.panel.width, self.panel.lanes
            )

            def multiply(product_index: Index) -> Statement:
                return product(
                    self.panel,
                    height,
                    tiles,
                    lambda row, tile: load(
                        left.buffer, left.at(product_index, tile, first_row + row)
                    ),
                    lambda tile, column: load(
                        right.buffer, right.at(product_index, panel, tile, column)
                    ),
                    lambda row, column: (
                        tile_products.buffer,
                        tile_products.at(product_index, row, column),
                    ),
                    at_a_time=MAX_RUN_PRODUCTS,
                )

            def transform(row: Index, vector: Index) -> Statement:
                return self._results(
                    lambda product_index, column: load(
                        tile_products.buffer, tile_products.at(product_index, row, column)
                    ),
                    first_row + row,
                    panel,
                    vector,
                )

            return block(
                "scratch",
                serial(self.products, multiply),
                serial(
                    height,
                    lambda row: serial(self.panel.vectors, lambda vector: transform(row, vector)),
                ),
                buffers=[tile_products.buffer],
            )

        strips = self._strips(left, right, 0, images, 0, self.down)
        return block(
            "scratch",
            strips,
            parallel(blocks * self.panels, compute_block),
            buffers=[left.buffer, right.buffer],
        )

    def by_images(self, images: int, rows: int) -> Statement:
        """The kernel that adds up products block by block of tiles.

        Parameters
        ----------
        images, rows : int
            The images of a block, and the rows of tiles of each. One of the two is 1, or a block
            has all rows of its images.
        """
        tiles = images * rows * self.across
        left, right = self._factors(tiles)
        tile_products = Panels.of("products", self.products, self.rows, self.panels, self.panel)
        blocks = self.down // rows

        def multiply(trip: Index) -> Statement:
            product_index, panel = (
                tirx.floordiv(trip, self.panels),
                tirx.floormod(trip, self.panels),
            )
            return product(
                self.panel,
                self.rows,
                tiles,
                lambda row, tile: load(left.buffer, left.at(product_index, tile, row)),
                lambda tile, column: load(
                    right.buffer, right.at(product_index, panel, tile, column)
                ),
                lambda row, column: (
                    tile_products.buffer,
                    tile_products.at(product_index, panel, row, column),
                ),
                adds=True,
                at_a_time=MAX_RUN_PRODUCTS,
            )

        def add_block(trip: Index) -> Statement:
            image, row = tirx.floordiv(trip, blocks) * images, tirx.floormod(trip, blocks) * rows
            return sequence(
                self._strips(left, right, image, images, row, rows),
                # Each trip has its own sums to add to, so no two threads add to the same ones.
                parallel(self.products * self.panels, multiply),
            )

        def transform(trip: Index) -> Statement:
            row, panel = tirx.floordiv(trip, self.panels), tirx.floormod(trip, self.panels)
            return serial(
                self.panel.vectors,
                lambda vector: self._results(
                    lambda product_index, column: load(
                        tile_products.buffer, tile_products.at(product_index, panel, row, column)
                    ),
                    row,
                    panel,
                    vector,
                ),
            )

        return block(
            "scratch",
            blank(tile_products.buffer, self.panel.lanes, self.products),
            serial(self.gradient.data.count // images * blocks, add_block),
            parallel(self.rows * self.panels, transform),
            buffers=[left.buffer, right.buffer, tile_products.buffer],
        )

    def _factors(self, tiles: int) -> tuple[Rows, Panels]:
        """New memory for the factors of so many tiles, of the left and of the right factor."""
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

            def put_left(
                product_index: Index, column: Index, vector: Index, lane: Index, value: Any
            ) -> Statement:
                return store(
                    left.buffer, left.at(product_index, tile(column), vector * lanes + lane), value
                )

            def put_right(
                product_index: Index, column: Index, vector: Index, lane: Index, value: Any
            ) -> Statement:
                panel, vector_in_panel = (
                    tirx.floordiv(vector, vectors),
                    tirx.floormod(vector, vectors),
                )
                indices = right.at(
                    product_index, panel, tile(column), vector_in_panel * lanes + lane
                )
                return store(right.buffer, indices, value)

            image_and_row = image + tirx.floordiv(trip, rows), row + tirx.floormod(trip, rows)
            return sequence(
                self._strip(*self.left, *image_and_row, put_left),
                self._strip(*self.right, *image_and_row, put_right),
            )

        return parallel(images * rows, strip)

    def _strip(
        self, images: Images, matrix: Matrix, image: Index, row: Index, put: Any
    ) -> Statement:
        """The statement that computes the factors of one row of tiles of one image."""
        tiling = Tiling(self.step, self.down, self.across, self.panel.lanes)
        return strip_factors(images, tiling, matrix, image, row, put)

    def _results(
        self, read: Callable[[Index, Index], Any], row: Index, panel: Index, vector: Index
    ) -> Statement:
        """The statement that computes and stores a vector of weights, at all taps."""
        lanes = self.panel.lanes
        first_column = panel * self.panel.width + vector * lanes

        def put(row_tap: Index, column_tap: Index, value: Callable[[Index], Any]) -> Statement:
            return vectorized(
                lanes,
                lambda lane: self.gradient.put(
                    row_tap, column_tap, row, first_column + lane, value(lane)
                ),
            )

        return results(
            self.filtering.results,
            lanes,
            lambda product_index, lane: read(product_index, vector * lanes + lane),
            put,
        )
