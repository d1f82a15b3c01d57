"""How results of a contraction on tensor cores are shared by blocks of threads, and their time."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ....ir.loops import ceil_div
from ....ir.warps import WARP
from .device import STAGE_CHUNKS, chunk_elements

MIN_EXTENT = 8
"""Rows, columns and terms from which on most of a tile is not padding."""

_MAX_TERMS = 8192
"""Terms of one sum. Tensor cores add up 8 or 16 terms at a time, and may cut off, not round."""

_MIN_TERMS_PER_PART = 512
"""Terms that a part must have for cutting a sum to be worth a launch."""

_MIN_BUSY_BLOCKS = 128
"""Blocks of threads that keep a large GPU busy: one for each of its processors."""

_STAGE_SECONDS = 0.7e-6
"""The least time of a stage: its loads wait for memory once, and no further ones are under way."""

_SHARE = 0.4
"""The share of the rate of `mma.sync` that the largest tile reaches: an assumption, not measured.
Two stages take turns by way of registers, and all warps wait for each other in each."""


@dataclass(frozen=True)
class Tile:
    """What a block of threads computes.

    Attributes
    ----------
    rows, columns : int
    warps : (int, int)
        Along rows and along columns.
    share : float
        Of the rate of tensor cores, relative to the largest tile: an assumption. Small tiles read
        more of shared memory, and of global memory, for each product.
    """

    rows: int
    columns: int
    warps: tuple[int, int]
    share: float

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return math.prod(self.warps) * WARP


_TILES = (
    Tile(128, 128, (2, 4), 1.0),
    Tile(128, 64, (2, 2), 0.85),
    Tile(64, 128, (1, 4), 0.85),
    Tile(64, 64, (2, 2), 0.7),
    Tile(128, 32, (4, 1), 0.55),
    Tile(32, 128, (1, 4), 0.55),
    Tile(32, 32, (2, 2), 0.3),
)


@dataclass(frozen=True)
class Extents:
    """The extents of a contraction.

    Attributes
    ----------
    batch, rows, columns, terms : int
    """

    batch: int
    rows: int
    columns: int
    terms: int

    @property
    def fits(self) -> bool:
        """Whether tensor cores are to compute it."""
        return min(self.rows, self.columns, self.terms) >= MIN_EXTENT

    @property
    def tile(self) -> Tile:
        """The tile that takes the least time, as far as is known."""
        return min(_TILES, key=self._cost)

    def blocks(self, tile: Tile) -> int:
        """Blocks of threads."""
        return self.batch * ceil_div(self.rows, tile.rows) * ceil_div(self.columns, tile.columns)

    @property
    def parts(self) -> int:
        """Into how many parts to cut each sum, at least."""
        wished = math.ceil(_MIN_BUSY_BLOCKS / self.blocks(self.tile))
        return max(
            min(wished, self.terms // _MIN_TERMS_PER_PART), math.ceil(self.terms / _MAX_TERMS)
        )

    def seconds(self, number: str, rate: float) -> float:
        """The time that blocks take at least, given operations in a second by `mma.sync`."""
        tile, parts = self.tile, self.parts
        stages = ceil_div(self.terms, parts * STAGE_CHUNKS * chunk_elements(number))
        operations = 2 * self.blocks(tile) * tile.rows * tile.columns * self.terms
        return max(stages * _STAGE_SECONDS, operations / (rate * _SHARE * tile.share))

    def _cost(self, tile: Tile) -> float:
        blocks = self.blocks(tile)
        busy = blocks * max(1, self.terms // _MIN_TERMS_PER_PART)
        idle = max(1.0, _MIN_BUSY_BLOCKS / busy)
        return blocks * tile.rows * tile.columns / tile.share * idle
