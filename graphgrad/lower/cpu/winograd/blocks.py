"""The memory between the stages of a kernel: factors and products, as matrices.

A transformed tile of n by n elements gives n² factors, one for each product. So there are n²
products of matrices, each with its own pair of matrices of factors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from ....ir.loops import Index, Statement, parallel, scratch, serial, store, vectorized
from .multiply import Panel


@dataclass(frozen=True)
class Rows:
    """A matrix for each product, with a row of channels for each tile.

    Attributes
    ----------
    buffer : Buffer
    stride : int
        The distance in elements from product to product. It is an odd number of vectors, so that
        the elements at one position of all products lie in different sets of a cache.
    channels : int
        The length of a row.
    """

    buffer: Any
    stride: int
    channels: int

    @staticmethod
    def of(name: str, products: int, tiles: int, channels: int, lanes: int) -> Rows:
        """Memory for `products` matrices."""
        # `| 1` makes the number of vectors odd.
        stride = (-(-tiles * channels // lanes) | 1) * lanes
        return Rows(scratch(name, (products * stride,)), stride, channels)

    def at(self, product: Index, tile: Index, channel: Index) -> list[Index]:
        """The indices of an element."""
        return [product * self.stride + tile * self.channels + channel]


@dataclass(frozen=True)
class Panels:
    """A matrix for each product, cut into panels of columns, each of which is contiguous.

    Attributes
    ----------
    buffer : Buffer
    stride : int
        The distance in elements from product to product, odd in vectors as in `Rows`.
    rows : int
        The number of rows of each matrix.
    panel : Panel
        The register tile, as wide as a panel.
    """

    buffer: Any
    stride: int
    rows: int
    panel: Panel

    @staticmethod
    def of(name: str, products: int, rows: int, panels: int, panel: Panel) -> Panels:
        """Memory for `products` matrices."""
        stride = (rows * panels * panel.vectors | 1) * panel.lanes
        return Panels(scratch(name, (products * stride,)), stride, rows, panel)

    def at(self, product: Index, panel: Index, row: Index, column: Index) -> list[Index]:
        """The indices of an element; `column` is counted within its panel."""
        return [product * self.stride + (panel * self.rows + row) * self.panel.width + column]


def blank(buffer: Any, lanes: int, parts: int = 1) -> Statement:
    """The statement that fills a one-dimensional buffer with zeros, in `parts` parallel parts.

    The buffer holds a whole number of vectors for each part.
    """
    vectors = int(buffer.shape[0]) // (parts * lanes)

    def zeros(first: Index) -> Statement:
        zero = tirx.const(0, "float32")
        return vectorized(lanes, lambda lane: store(buffer, [first + lane], zero))

    return parallel(
        parts,
        lambda part: serial(vectors, lambda vector: zeros((part * vectors + vector) * lanes)),
    )
