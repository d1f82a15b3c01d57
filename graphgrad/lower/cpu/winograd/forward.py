"""The kernel of a convolution by minimal filtering.

It serves data gradients as well: they are convolutions with rearranged weights.
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
    index,
    load,
    parallel,
    scratch,
    sequence,
    serial,
    store,
    vectorized,
)
from ..register_transpose import transpose_matrix
from .blocks import Panels, Rows, blank
from .cook_toom import Filtering
from .multiply import Panel, product
from .transforms import Images, Tiling, results, strip_factors, tap_factors

TAPS = 3
"""The number of rows, and of columns, of a window."""


@dataclass(frozen=True)
class Convolution:
    """A convolution of images with 3 by 3 windows.

    Attributes
    ----------
    images : Images
    rows, columns, filters : int
        The size of the result.
    turned : bool
        Whether the weights of neighboring channels lie side by side in memory, and not those of
        neighboring filters.
    weight : callable
        Given row and column of the window, channel and filter, returns the buffer and the indices
        of the weight, in a buffer of float32 or bfloat16.
    put : callable
        Given image, row, column, filter and value, returns the statement that stores a result.
    """

    images: Images
    rows: int
    columns: int
    filters: int
    turned: bool
    weight: Callable[[Index, Index, Index, Index], tuple[Any, list[Index]]]
    put: Callable[[Index, Index, Index, Index, Any], Statement]

    @property
    def has_narrow_weights(self) -> bool:
        """Whether weights are of bfloat16."""
        buffer, _ = self.weight(*[index(0)] * 4)
        return str(buffer.dtype) != "float32"


@dataclass(frozen=True)
class Part:
    """A part of the result: some images, some rows of tiles of each, some panels of filters.

    Attributes
    ----------
    image, row, panel : Expr or int
        The first of each.
    images, rows, panels : int
        The number of each.
    """

    image: Index
    images: int
    row: Index
    rows: int
    panel: Index
    panels: int


class ConvolutionKernel:
    """The kernel of one convolution, with one choice of transforms and register tile.

    Parameters
    ----------
    conv : Convolution
    filtering : Filtering
    panel : Panel
        Its columns are filters, of which there is a whole number of panels.
    """

    def __init__(self, conv: Convolution, filtering: Filtering, panel: Panel):
        self.conv, self.filtering, self.panel = conv, filtering, panel
        self.step = len(filtering.results)
        self.down, self.across = -(-conv.rows // self.step), -(-conv.columns // self.step)
        self.panels = conv.filters // panel.width
        self.products = filtering.products**2

    def by_images(self, images: int, rows: int) -> Statement:
        """The kernel in which blocks of tiles run through all stages one after the other.

        The factors of the weights are computed first.

        Parameters
        ----------
        images, rows : int
            The images of a block, and the rows of tiles of each. One of the two is 1, or a block
            has all rows of its images.
        """
        channels = self.conv.images.channels
        window_factors = Panels.of("tap_factors", self.products, channels, self.panels, self.panel)
        blocks = self.down // rows

        def compute_block(trip: Index) -> Statement:
            image, row = tirx.floordiv(trip, blocks) * images, tirx.floormod(trip, blocks) * rows
            part = Part(image, images, row, rows, 0, self.panels)
            tiles = self._tiles(part)
            factors = self._rows("factors", tiles, channels)
            tile_products = self._rows("products", tiles, self.conv.filters)
            return block(
                "scratch",
                self._each_strip(part, lambda *strip: self._strip(part, factors, *strip)),
                self._multiply(part, factors, window_factors, tile_products, 0, channels),
                self._finished(part, tile_products),
                buffers=[factors.buffer, tile_products.buffer],
            )

        def transform_weights(panel: Index) -> Statement:
            return self._weights(window_factors, panel, panel, 0, channels)

        trips = parallel(self.conv.images.count // images * blocks, compute_block)
        return block(
            "scratch",
            parallel(self.panels, transform_weights),
            trips,
            buffers=[window_factors.buffer],
        )

    def by_channels(self, depth: int) -> Statement:
        """The kernel in which panels of filters run through all stages one after the other.

        The factors of all tiles are computed first.

        Parameters
        ----------
        depth : int
            The channels whose weights are transformed and multiplied at a time. It divides their
            number.
        """
        channels, width = self.conv.images.channels, self.panel.width
        whole_part = Part(0, self.conv.images.count, 0, self.down, 0, self.panels)
        tiles = self._tiles(whole_part)
        factors = self._rows("factors", tiles, channels)

        def strip(trip: Index) -> Statement:
            image, row = tirx.floordiv(trip, self.down), tirx.floormod(trip, self.down)
            return self._strip(whole_part, factors, image, row)

        def compute_panel(panel: Index) -> Statement:
            part = Part(0, whole_part.images, 0, whole_part.rows, panel, 1)
            window_factors = Panels.of("tap_factors", self.products, depth, 1, self.panel)
            tile_products = self._rows("products", tiles, width)

            def add_channels(channel_block: Index) -> Statement:
                return sequence(
                    self._weights(window_factors, 0, panel, channel_block * depth, depth),
                    self._multiply(
                        part, factors, window_factors, tile_products, channel_block * depth, depth
                    ),
                )

            steps = [serial(channels // depth, add_channels), self._finished(part, tile_products)]
            # With several blocks of channels, each adds to the products, which must begin at zero.
            if depth < channels:
                steps.insert(0, blank(tile_products.buffer, self.panel.lanes))
            return block("scratch", *steps, buffers=[window_factors.buffer, tile_products.buffer])

        strips = parallel(whole_part.images * self.down, strip)
        return block(
            "scratch", strips, parallel(self.panels, compute_panel), buffers=[factors.buffer]
        )

    def _rows(self, name: str, tiles: int, channels: int) -> Rows:
        """New memory for factors or products of tiles."""
        return Rows.of(name, self.products, tiles, channels, self.panel.lanes)

    def _tiles(self, part: Part) -> int:
        """The number of tiles of a part; its panels of filters do not count."""
        return part.images * part.rows * self.across

    def _weights(
        self,
        window_factors: Panels,
        panel: Index,
        source_panel: Index,
        first_channel: Index,
        depth: int,
    ) -> Statement:
        """The statement that computes the factors of the weights of one panel, for some channels.

        `source_panel` is the panel's number among all filters, and `panel` its number in
        `window_factors`. The weights are copied first, tap by tap: to read from nine places of a
        large tensor at a time takes longer.
        """
        lanes, width = self.panel.lanes, self.panel.width
        copy = scratch("weights", (TAPS, TAPS, depth, width))
        # No vectors of bfloat16 are transposed in registers.
        wide = scratch("wide", (width, depth))
        widens = self.conv.turned and self.conv.has_narrow_weights

        def weight_at(
            row_tap: Index, column_tap: Index, channel: Index, column: Index
        ) -> tuple[Any, list[Index]]:
            return self.conv.weight(
                row_tap, column_tap, first_channel + channel, source_panel * width + column
            )

        def copy_tap(row_tap: Index, column_tap: Index) -> Statement:
            def turned_at(column: Index, channel: Index) -> tuple[Any, list[Index]]:
                return weight_at(row_tap, column_tap, channel, column)

            def copied_at(column: Index, channel: Index) -> tuple[Any, list[Index]]:
                return copy, [row_tap, column_tap, channel, column]

            def wide_at(column: Index, channel: Index) -> tuple[Any, list[Index]]:
                return wide, [column, channel]

            if widens:
                return sequence(
                    self._widened(width, depth, turned_at, wide_at),
                    transpose_matrix(width, depth, lanes, wide_at, copied_at),
                )
            if self.conv.turned:
                return transpose_matrix(width, depth, lanes, turned_at, copied_at)

            def copy_element(*element: Index) -> Statement:
                return store(
                    copy,
                    [row_tap, column_tap, *element],
                    load(*weight_at(row_tap, column_tap, *element)).astype("float32"),
                )

            return serial(
                depth, lambda channel: self._row(lambda column: copy_element(channel, column))
            )

        def transform(channel: Index, vector: Index) -> Statement:
            return tap_factors(
                self.filtering.taps,
                lanes,
                lambda row_tap, column_tap, lane: load(
                    copy, [index(row_tap), index(column_tap), channel, vector * lanes + lane]
                ),
                lambda product_index, lane, value: store(
                    window_factors.buffer,
                    window_factors.at(product_index, panel, channel, vector * lanes + lane),
                    value,
                ),
            )

        copies = serial(
            TAPS, lambda row_tap: serial(TAPS, lambda column_tap: copy_tap(row_tap, column_tap))
        )
        transforms = serial(
            depth,
            lambda channel: serial(self.panel.vectors, lambda vector: transform(channel, vector)),
        )
        buffers = [copy, wide] if widens else [copy]
        return block("scratch", copies, transforms, buffers=buffers)

    def _widened(
        self,
        rows: int,
        columns: int,
        source: Callable[[Index, Index], tuple[Any, list[Index]]],
        target: Callable[[Index, Index], tuple[Any, list[Index]]],
    ) -> Statement:
        """The statement that copies a matrix, whose rows are whole vectors, to float32."""
        lanes = self.panel.lanes

        def copy(row: Index, column: Index) -> Statement:
            return store(*target(row, column), load(*source(row, column)).astype("float32"))

        return serial(
            rows,
            lambda row: serial(
                columns // lanes,
                lambda vector: vectorized(lanes, lambda lane: copy(row, vector * lanes + lane)),
            ),
        )

    def _row(self, body: Callable[[Index], Statement]) -> Statement:
        """The loops over the columns of a panel, vector by vector, around a statement."""
        lanes = self.panel.lanes
        return serial(
            self.panel.vectors,
            lambda vector: vectorized(lanes, lambda lane: body(vector * lanes + lane)),
        )

    def _strip(self, part: Part, factors: Rows, image: Index, row: Index) -> Statement:
        """The statement that computes the factors of one row of tiles."""
        tiling = Tiling(self.step, self.down, self.across, self.panel.lanes)
        return strip_factors(
            self.conv.images,
            tiling,
            self.filtering.data,
            image,
            row,
            lambda product_index, column, vector, lane, value: store(
                factors.buffer,
                factors.at(
                    product_index,
                    self._tile(part, image, row, column),
                    vector * tiling.lanes + lane,
                ),
                value,
            ),
        )

    def _multiply(
        self,
        part: Part,
        factors: Rows,
        window_factors: Panels,
        tile_products: Rows,
        first_channel: Index,
        depth: int,
    ) -> Statement:
        """The statement that computes the products of tiles and windows, summed over some channels.

        The channels are `depth` ones from `first_channel` on.
        """
        width = self.panel.width
        # If these are not all channels, the sums so far are in `tile_products` already.
        adds = depth < self.conv.images.channels

        def multiply_panel(product_index: Index, panel: Index) -> Statement:
            return product(
                self.panel,
                self._tiles(part),
                depth,
                lambda tile, channel: load(
                    factors.buffer, factors.at(product_index, tile, first_channel + channel)
                ),
                lambda channel, column: load(
                    window_factors.buffer, window_factors.at(product_index, panel, channel, column)
                ),
                lambda tile, column: (
                    tile_products.buffer,
                    tile_products.at(product_index, tile, panel * width + column),
                ),
                adds,
            )

        return serial(
            self.products,
            lambda product_index: serial(
                part.panels, lambda panel: multiply_panel(product_index, panel)
            ),
        )

    def _finished(self, part: Part, tile_products: Rows) -> Statement:
        """The statement that computes and stores the results of a part."""
        lanes, step = self.panel.lanes, self.step

        def transform_tile(image: Index, row: Index, column: Index, vector: Index) -> Statement:
            tile = self._tile(part, image, row, column)
            first_filter = part.panel * self.panel.width + vector * lanes
            return results(
                self.filtering.results,
                lanes,
                lambda product_index, lane: load(
                    tile_products.buffer,
                    tile_products.at(product_index, tile, vector * lanes + lane),
                ),
                lambda row_in_tile, column_in_tile, value: self._stored(
                    image,
                    row * step + row_in_tile,
                    column * step + column_in_tile,
                    first_filter,
                    value,
                ),
            )

        def strip(image: Index, row: Index) -> Statement:
            vectors = part.panels * self.panel.vectors
            return serial(
                self.across,
                lambda column: serial(
                    vectors, lambda vector: transform_tile(image, row, column, vector)
                ),
            )

        return self._each_strip(part, strip)

    def _stored(
        self,
        image: Index,
        row: Index,
        column: Index,
        first_filter: Index,
        value: Callable[[Index], Any],
    ) -> Statement:
        """The statement that stores a vector of results, if it is inside the image."""
        body = vectorized(
            self.panel.lanes,
            lambda lane: self.conv.put(image, row, column, first_filter + lane, value(lane)),
        )
        # Tiles at the lower and right ends may reach beyond the result.
        inside = []
        if self.down * self.step != self.conv.rows:
            inside.append(row < self.conv.rows)
        if self.across * self.step != self.conv.columns:
            inside.append(column < self.conv.columns)
        return tirx.IfThenElse(tirx.all(*inside), body, None) if inside else body

    def _each_strip(self, part: Part, body: Callable[[Index, Index], Statement]) -> Statement:
        """The loops over the rows of tiles of a part; `body` is given image and row."""
        return serial(
            part.images,
            lambda image_offset: serial(
                part.rows, lambda row_offset: body(part.image + image_offset, part.row + row_offset)
            ),
        )

    def _tile(self, part: Part, image: Index, row: Index, column: Index) -> Index:
        """The number of a tile within its part."""
        return ((image - part.image) * part.rows + row - part.row) * self.across + column
