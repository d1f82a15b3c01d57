"""The kernel of a convolution, and of its data gradient, which is one with other weights."""

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
"""Rows and columns of a window."""


@dataclass(frozen=True)
class Convolution:
    """A convolution of images with 3 by 3 windows.

    Attributes
    ----------
    images : Images
    rows, columns, filters : int
        Of the result.
    turned : bool
        Whether the weights of neighboring channels lie side by side, not those of filters.
    weight : callable
        Given row and column of the window, channel and filter, returns the buffer and the indices
        of the weight.
    put : callable
        Given image, row, column, filter and value, returns what stores a result.
    """

    images: Images
    rows: int
    columns: int
    filters: int
    turned: bool
    weight: Callable[[Index, Index, Index, Index], tuple[Any, list[Index]]]
    put: Callable[[Index, Index, Index, Index, Any], Statement]


@dataclass(frozen=True)
class Part:
    """Some images, some rows of tiles of each, some panels of filters: the first, and how many."""

    image: Index
    images: int
    row: Index
    rows: int
    panel: Index
    panels: int


class ConvolutionKernel:
    """Puts the kernel together.

    Parameters
    ----------
    conv : Convolution
    filtering : Filtering
    panel : Panel
        Of filters; a whole number of them.
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
            A block: images, and rows of tiles of each. One of them is 1, or the rows are all.
        """
        channels = self.conv.images.channels
        taps = Panels.of("tap_factors", self.products, channels, self.panels, self.panel)
        blocks = self.down // rows

        def one_block(trip: Index) -> Statement:
            image, row = tirx.floordiv(trip, blocks) * images, tirx.floormod(trip, blocks) * rows
            part = Part(image, images, row, rows, 0, self.panels)
            tiles = self._tiles(part)
            factors = self._rows("factors", tiles, channels)
            made = self._rows("products", tiles, self.conv.filters)
            return block(
                "scratch",
                self._each_strip(part, lambda *at: self._strip(part, factors, *at)),
                self._multiply(part, factors, taps, made, 0, channels),
                self._finished(part, made),
                buffers=[factors.buffer, made.buffer],
            )

        def weights(panel: Index) -> Statement:
            return self._weights(taps, panel, panel, 0, channels)

        trips = parallel(self.conv.images.count // images * blocks, one_block)
        return block("scratch", parallel(self.panels, weights), trips, buffers=[taps.buffer])

    def by_filters(self, depth: int) -> Statement:
        """The kernel in which panels of filters run through all stages one after the other.

        The factors of all tiles are computed first.

        Parameters
        ----------
        depth : int
            Channels whose weights are transformed and multiplied at a time, a divisor of all.
        """
        channels, width = self.conv.images.channels, self.panel.width
        whole = Part(0, self.conv.images.count, 0, self.down, 0, self.panels)
        tiles = self._tiles(whole)
        factors = self._rows("factors", tiles, channels)

        def strip(trip: Index) -> Statement:
            image, row = tirx.floordiv(trip, self.down), tirx.floormod(trip, self.down)
            return self._strip(whole, factors, image, row)

        def one_block(panel: Index) -> Statement:
            part = Part(0, whole.images, 0, whole.rows, panel, 1)
            taps = Panels.of("tap_factors", self.products, depth, 1, self.panel)
            made = self._rows("products", tiles, width)

            def added(i: Index) -> Statement:
                return sequence(
                    self._weights(taps, 0, panel, i * depth, depth),
                    self._multiply(part, factors, taps, made, i * depth, depth),
                )

            steps = [serial(channels // depth, added), self._finished(part, made)]
            if depth < channels:
                steps.insert(0, blank(made.buffer, self.panel.lanes))
            return block("scratch", *steps, buffers=[taps.buffer, made.buffer])

        strips = parallel(whole.images * self.down, strip)
        return block("scratch", strips, parallel(self.panels, one_block), buffers=[factors.buffer])

    def _rows(self, name: str, tiles: int, channels: int) -> Rows:
        return Rows.of(name, self.products, tiles, channels, self.panel.lanes)

    def _tiles(self, part: Part) -> int:
        return part.images * part.rows * self.across

    def _weights(
        self, taps: Panels, panel: Index, source: Index, first: Index, depth: int
    ) -> Statement:
        """The statement that computes the factors of one panel of filters, of some channels.

        The weights are copied first, tap by tap: to read nine places of a large tensor at a time
        takes longer.
        """
        lanes, width = self.panel.lanes, self.panel.width
        copy = scratch("weights", (TAPS, TAPS, depth, width))

        def at(i: Index, j: Index, channel: Index, column: Index) -> tuple[Any, list[Index]]:
            return self.conv.weight(i, j, first + channel, source * width + column)

        def copied(i: Index, j: Index) -> Statement:
            if self.conv.turned:
                return transpose_matrix(
                    width,
                    depth,
                    lanes,
                    lambda column, channel: at(i, j, channel, column),
                    lambda column, channel: (copy, [i, j, channel, column]),
                )

            def one(*element: Index) -> Statement:
                return store(copy, [i, j, *element], load(*at(i, j, *element)))

            return serial(depth, lambda channel: self._row(lambda column: one(channel, column)))

        def transformed(channel: Index, v: Index) -> Statement:
            return tap_factors(
                self.filtering.taps,
                lanes,
                lambda i, j, lane: load(copy, [index(i), index(j), channel, v * lanes + lane]),
                lambda p, lane, value: store(
                    taps.buffer, taps.at(p, panel, channel, v * lanes + lane), value
                ),
            )

        copies = serial(TAPS, lambda i: serial(TAPS, lambda j: copied(i, j)))
        transforms = serial(
            depth,
            lambda channel: serial(self.panel.vectors, lambda v: transformed(channel, v)),
        )
        return block("scratch", copies, transforms, buffers=[copy])

    def _row(self, body: Callable[[Index], Statement]) -> Statement:
        """Loops over the columns of a panel, vector by vector."""
        lanes = self.panel.lanes
        return serial(
            self.panel.vectors, lambda v: vectorized(lanes, lambda lane: body(v * lanes + lane))
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
            lambda p, column, v, lane, value: store(
                factors.buffer,
                factors.at(p, self._tile(part, image, row, column), v * tiling.lanes + lane),
                value,
            ),
        )

    def _multiply(
        self,
        part: Part,
        factors: Rows,
        taps: Panels,
        made: Rows,
        first: Index,
        depth: int,
    ) -> Statement:
        """The statement that multiplies the factors of some channels, and adds up over these."""
        width = self.panel.width
        adds = depth < self.conv.images.channels

        def one(p: Index, panel: Index) -> Statement:
            return product(
                self.panel,
                self._tiles(part),
                depth,
                lambda tile, c: load(factors.buffer, factors.at(p, tile, first + c)),
                lambda c, column: load(taps.buffer, taps.at(p, panel, c, column)),
                lambda tile, column: (made.buffer, made.at(p, tile, panel * width + column)),
                adds,
            )

        return serial(self.products, lambda p: serial(part.panels, lambda panel: one(p, panel)))

    def _finished(self, part: Part, made: Rows) -> Statement:
        """The statement that computes and stores the results of a part."""
        lanes, step = self.panel.lanes, self.step

        def one(image: Index, row: Index, column: Index, v: Index) -> Statement:
            tile = self._tile(part, image, row, column)
            first = part.panel * self.panel.width + v * lanes
            return results(
                self.filtering.results,
                lanes,
                lambda p, lane: load(made.buffer, made.at(p, tile, v * lanes + lane)),
                lambda i, j, value: self._stored(
                    image, row * step + i, column * step + j, first, value
                ),
            )

        def strip(image: Index, row: Index) -> Statement:
            vectors = part.panels * self.panel.vectors
            return serial(self.across, lambda x: serial(vectors, lambda v: one(image, row, x, v)))

        return self._each_strip(part, strip)

    def _stored(
        self, image: Index, y: Index, x: Index, first: Index, value: Callable[[Index], Any]
    ) -> Statement:
        """The statement that stores a vector of results, if it is inside the image."""
        body = vectorized(
            self.panel.lanes, lambda lane: self.conv.put(image, y, x, first + lane, value(lane))
        )
        inside = []
        if self.down * self.step != self.conv.rows:
            inside.append(y < self.conv.rows)
        if self.across * self.step != self.conv.columns:
            inside.append(x < self.conv.columns)
        return tirx.IfThenElse(tirx.all(*inside), body, None) if inside else body

    def _each_strip(self, part: Part, body: Callable[[Index, Index], Statement]) -> Statement:
        return serial(
            part.images,
            lambda i: serial(part.rows, lambda row: body(part.image + i, part.row + row)),
        )

    def _tile(self, part: Part, image: Index, row: Index, column: Index) -> Index:
        """Which tile of a part it is."""
        return ((image - part.image) * part.rows + row - part.row) * self.across + column
