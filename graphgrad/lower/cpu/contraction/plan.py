"""The description of a contraction's loop nest, from the outermost loop to the registers.

`order` makes such a plan, and `emit` writes the nest that it describes.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....ir.kernel_structure import Axis


@dataclass(frozen=True)
class Loop:
    """One loop along an axis.

    An axis may have several loops. Its index is then the sum of variable · step over all of them.

    Attributes
    ----------
    axis : Axis
    step : int
        By how much the index of the axis grows in each trip.
    trips : int or None
        The number of trips. None means that the axis is symbolic and the loop covers all of it.
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
        The number of elements of a vector, and of vectors side by side in a tile.
    rows : tuple of (Axis, int)
        The other axes of a tile, and its length along each of them.
    tasks : tuple of Loop
        Loops along axes of the result that run in parallel.
    parts : tuple of Loop
        Loops along the reduction that run in parallel: each part adds up its own terms in memory of
        its own, and the sums of all parts are added up afterwards.
    blocks : tuple of Loop
        Loops along the reduction, inside a task. All tiles use the terms of one block, which stays
        in the cache, and add them to partial sums in memory.
    tiles : tuple of Loop
        Loops along axes of the result, inside a block.
    terms : tuple of Loop
        Loops along the reduction, inside a tile.
    unrolled : int
        How many of the innermost loops of `terms` are unrolled.
    fetched : int or None
        The factor whose rows each tile prefetches for the next tile, because the hardware
        prefetcher does not foresee them. In front of each innermost loop of `terms`, which goes
        along one cache line, the line is fetched that this loop reads in the next tile. None if
        there is no such factor.
    streamed : tuple of int
        The factors of which each step of the sum prefetches what a later step reads.
    prefetch_steps : int
        How many steps later that is.
    fetches_results : bool
        Whether the lines that a tile is stored to are prefetched before its terms are added.
    held : Axis or None
        As of a tile. The innermost loop of `terms` is then short, and unrolled. Vectors along it
        are loaded in front of it, vectors along a row in each of its trips.
    packed : tuple of (int, Axis)
        The factors that are first copied into panels, in the order in which tiles read them, each
        with the axis along which its elements come to lie side by side: one of the tile, or that of
        what is held.
    matrices : bool
        As of a tile. The innermost loop of `terms` is then one instruction (`matrices`).
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
    prefetch_steps: int = 0
    fetches_results: bool = False
    held: Axis | None = None
    matrices: bool = False

    @property
    def width(self) -> int:
        """The number of elements of a tile along the vector axis."""
        return self.lanes * self.vectors

    @property
    def accumulates(self) -> bool:
        """Whether results are added up in memory, part by part or block by block."""
        return bool(self.parts or self.blocks)

    def length(self, axis: Axis) -> int:
        """The elements of a tile along an axis; of what is held, those of a row of a register."""
        if axis is self.vector:
            return self.width
        if self.matrices and axis is self.held:
            return self.terms[-1].trips or 1
        return next((length for row_axis, length in self.rows if row_axis is axis), 1)

    def is_ragged(self, axis: Axis) -> bool:
        """Whether the last tile along an axis of the result may be incomplete."""
        # The extent of a symbolic axis is None; nothing proves that whole tiles cover it.
        return axis.extent is None or axis.extent % self.length(axis) != 0
