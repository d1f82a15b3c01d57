"""How a contraction is computed: the loops of its nest, from the outermost to the registers."""

from __future__ import annotations

from dataclasses import dataclass

from ....ir.kernel_structure import Axis


@dataclass(frozen=True)
class Loop:
    """One loop along an axis. The index of an axis is the sum over its loops of variable · step.

    Attributes
    ----------
    axis : Axis
    step : int
        By how much the index of the axis grows.
    trips : int or None
        None: as many as a symbolic axis has.
    """

    axis: Axis
    step: int
    trips: int | None


@dataclass(frozen=True)
class Plan:
    """The loops of a contraction, in order, around a tile of results held in registers.

    Attributes
    ----------
    vector : Axis
        The axis along which vectors lie.
    lanes, vectors : int
        Elements of a vector, vectors side by side in a tile.
    rows : tuple of (Axis, int)
        The other axes of a tile, and its length along them.
    tasks : tuple of Loop
        Along axes of the result, to be run in parallel.
    parts : tuple of Loop
        Along the reduction, to be run in parallel: each adds up its own terms in memory of its own.
    blocks : tuple of Loop
        Along the reduction, in a task: the terms of a block are used again and again from the
        cache, and added to what the results are so far.
    tiles : tuple of Loop
        Along axes of the result, in a block.
    terms : tuple of Loop
        Along the reduction, in a tile.
    unrolled : int
        How many of these, the innermost ones, are unrolled.
    fetched : int or None
        A factor of which each tile fetches into the cache what the next one reads, because
        processors do not foresee it: before each innermost loop of terms, what that one is for in
        the next tile. This loop goes along a line of the cache.
    streamed : tuple of int
        Factors of which each step fetches what a later step reads.
    packed : tuple of (int, Axis)
        The factors that are copied first, in the order in which tiles read them, each with the axis
        of the tile along which its elements come to lie side by side.
    parallel : bool
        Whether parts and tasks, and the copies, run in parallel. If not, the nest may stand inside
        a parallel loop.
    """

    vector: Axis
    lanes: int
    vectors: int
    rows: tuple[tuple[Axis, int], ...]
    tasks: tuple[Loop, ...]
    parts: tuple[Loop, ...]
    blocks: tuple[Loop, ...]
    tiles: tuple[Loop, ...]
    terms: tuple[Loop, ...]
    packed: tuple[tuple[int, Axis], ...] = ()
    parallel: bool = True
    unrolled: int = 0
    fetched: int | None = None
    streamed: tuple[int, ...] = ()

    @property
    def width(self) -> int:
        """Elements of a tile along the vector axis."""
        return self.lanes * self.vectors

    @property
    def accumulates(self) -> bool:
        """Whether results are added up in memory, part by part or block by block."""
        return bool(self.parts or self.blocks)

    def length(self, axis: Axis) -> int:
        """How many elements a tile has along an axis."""
        if axis is self.vector:
            return self.width
        return next((length for row, length in self.rows if row is axis), 1)

    def is_ragged(self, axis: Axis) -> bool:
        """Whether the last tile along an axis of the result is not a whole one."""
        return axis.extent is None or axis.extent % self.length(axis) != 0
