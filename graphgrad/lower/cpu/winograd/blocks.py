"""What kernels keep between their parts: factors of tiles, factors of panels, and products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from ....ir.loops import Index, Statement, parallel, scratch, serial, store, vectorized
from .multiply import Panel


@dataclass(frozen=True)
class Rows:
    """For each product a matrix: a row of channels for each tile.

    Attributes
    ----------
    buffer : Buffer
    stride : int
        From product to product: an odd number of vectors, so that the products of one element start
        in different sets of a cache.
    channels : int
    """

    buffer: Any
    stride: int
    channels: int

    @staticmethod
    def of(name: str, products: int, tiles: int, channels: int, lanes: int) -> Rows:
        """Memory for that many matrices."""
        stride = (-(-tiles * channels // lanes) | 1) * lanes
        return Rows(scratch(name, (products * stride,)), stride, channels)

    def at(self, product: Index, tile: Index, channel: Index) -> list[Index]:
        """The indices of an element."""
        return [product * self.stride + tile * self.channels + channel]


@dataclass(frozen=True)
class Panels:
    """For each product a matrix, cut into panels of columns that lie in memory one by one.

    Attributes
    ----------
    buffer : Buffer
    stride : int
        From product to product, as of `Rows`.
    rows : int
    panel : Panel
    """

    buffer: Any
    stride: int
    rows: int
    panel: Panel

    @staticmethod
    def of(name: str, products: int, rows: int, panels: int, panel: Panel) -> Panels:
        """Memory for that many matrices."""
        stride = (rows * panels * panel.vectors | 1) * panel.lanes
        return Panels(scratch(name, (products * stride,)), stride, rows, panel)

    def at(self, product: Index, panel: Index, row: Index, column: Index) -> list[Index]:
        """The indices of an element, of a column in a panel."""
        return [product * self.stride + (panel * self.rows + row) * self.panel.width + column]


def blank(buffer: Any, lanes: int, parts: int = 1) -> Statement:
    """What fills scratch memory of one axis with zeros, in parts that threads share."""
    vectors = int(buffer.shape[0]) // (parts * lanes)

    def zeros(first: Index) -> Statement:
        zero = tirx.const(0, "float32")
        return vectorized(lanes, lambda lane: store(buffer, [first + lane], zero))

    return parallel(
        parts,
        lambda part: serial(vectors, lambda v: zeros((part * vectors + v) * lanes)),
    )
