"""The choice of a register tile, by an estimate of the cycles that a contraction takes with it.

The costs, those of `tuning` and the constants below, which are shares of the time and sizes
that do on every processor, serve to rank tiles, not to predict seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import tvm

from ....ir.kernel_structure import Axis, linear_coefficient, volume
from ....ir.loops import ceil_div
from ...kernels.contraction import Contraction
from ..tuning import ContractionCosts, Processor
from .store import ResultStore

_SPREAD_ROWS_COST = 1e-6
"""Share of the time per doubling of the distance that a tile's rows span in memory. It is so small
that it only decides between tiles that are otherwise equal."""

_BLOCKED_SUM_OVERHEAD = 0.05
"""Share of the time that it costs to go through a sum in blocks, where a panel
exceeds the near cache."""

_MAX_GUARDED_TILE_BYTES = 1024
"""Tiles whose terms may lie outside a factor stay below this many bytes of results. Larger tiles
take between 0.75 and 1.15 of the time, depending on the depthwise weight gradient."""

_MAX_SHORT_SUM_TERMS = 64
"""A sum of at most so many terms is short. If both factors of it are read in vectors, waiting for
these loads is what takes time."""

_MAX_SHORT_SUM_VECTORS = 4
"""Vectors of a tile of short sums at most: so few let a core begin the next tile meanwhile."""

_MAX_COPY_SHARE = 0.5
"""Share of the time of the multiply-adds that copying may take at most."""


@dataclass(frozen=True)
class Tile:
    """A tile of results that is held in registers.

    Attributes
    ----------
    vector : Axis
        The axis along which vectors lie.
    panel : int
        The number of the factor that is read in vectors. The other factor may be read so, too.
    copied : bool
        Whether this factor must be copied first, because its vectors are not contiguous in memory.
    lanes, vectors : int
        The number of elements of a vector, and of vectors side by side.
    rows : tuple of (Axis, int)
        The other axes of the tile, and the number of elements along each.
    held : Axis or None
        An axis of the sum, or of the rows, along which the other factor is loaded in vectors, to
        multiply by their lanes; None if it is loaded element by element.
    held_lanes : int
        The number of elements of such a vector; 1 if there are none.
    matrices : bool
        Whether the results are in registers for matrices, rows of which are such vectors.
    """

    vector: Axis
    panel: int
    copied: bool
    lanes: int
    vectors: int
    rows: tuple[tuple[Axis, int], ...]
    held: Axis | None = None
    held_lanes: int = 1
    matrices: bool = False

    @property
    def width(self) -> int:
        """The number of elements along the vector axis."""
        return self.lanes * self.vectors

    @property
    def registers(self) -> int:
        """The number of vectors that hold the results of the tile."""
        return self.vectors * math.prod(length for _, length in self.rows)


def best_tile(
    contraction: Contraction, processor: Processor, result_store: ResultStore
) -> Tile | None:
    """The tile with which a contraction takes the least time; None if none pays."""
    best_tile_so_far, least_cycles = None, math.inf
    for vector_axis in contraction.spatial:
        store_step = result_store.step(vector_axis)
        for tile in _tiles_along(contraction, vector_axis, processor, result_store.interleaved):
            # Vectors at a ragged end overlap those before, which would store an element twice.
            in_vectors = store_step == 1 and not (
                result_store.once and volume([vector_axis]) % tile.width
            )
            is_narrow = tile.lanes < processor.lanes(contraction.dtype)
            cycles = _cycles(
                contraction,
                tile,
                in_vectors,
                processor.contraction,
                processor.contraction.narrow_cycles if is_narrow else 1.0,
            )
            if cycles < least_cycles:
                best_tile_so_far, least_cycles = tile, cycles
    return best_tile_so_far


def is_short(contraction: Contraction, vector: Axis) -> bool:
    """Whether sums have few terms, and both factors are read in vectors along the given axis."""
    both = all(contraction.step(factor, vector) for factor in (0, 1))
    return both and volume(contraction.reduced) <= _MAX_SHORT_SUM_TERMS


def _tiles_along(
    contraction: Contraction, vector_axis: Axis, processor: Processor, interleaved: bool
) -> Iterator[Tile]:
    """Yield the candidate tiles whose vectors lie along an axis."""
    panel = panel_factor(contraction, vector_axis)
    if panel is None or vector_axis.extent is None or vector_axis.extent == 1:
        return
    copied = contraction.step(panel, vector_axis) != 1
    if copied and not contraction.can_be_copied(panel):
        return
    # Rows go along axes that leave the panel as it is: a vector that is loaded serves all of them.
    other_axes = [
        axis for axis in contraction.spatial if axis is not vector_axis and axis.extent != 1
    ]
    row_axes = [axis for axis in other_axes if not contraction.depends(panel, axis)]
    itemsize = tvm.DataType(contraction.dtype).itemsize
    for lanes, vectors in _widths(vector_axis.extent, processor.lanes(contraction.dtype)):
        # Besides the results, registers hold the vectors of one step and a broadcast element; one
        # more is left to spare.
        max_rows = (processor.registers - 2 - vectors) // vectors
        if is_short(contraction, vector_axis):
            max_rows = min(max_rows, _MAX_SHORT_SUM_VECTORS // vectors)
            # The nests of an interleaved tensor go on together, one element along rows at a time.
            max_rows = 1 if interleaved else max_rows
        if contraction.inside:
            max_rows = min(max_rows, (_MAX_GUARDED_TILE_BYTES - 1) // (vectors * lanes * itemsize))
        for rows in _rows(row_axes, max_rows):
            tile = Tile(vector_axis, panel, copied, lanes, vectors, rows)
            if not processor.by_lane:
                yield tile
            elif by_lane := _by_lane(contraction, tile, processor):
                yield by_lane


def _by_lane(contraction: Contraction, tile: Tile, processor: Processor) -> Tile | None:
    """The tile for a processor that multiplies by lanes; None if its registers do not suffice."""
    other, lanes = 1 - tile.panel, processor.lanes(contraction.dtype)
    free = processor.registers - 1 - tile.registers - tile.vectors
    rows = tile.registers // tile.vectors
    if contraction.step(other, tile.vector) != 0:
        return tile
    if not contraction.distances:
        if len(tile.rows) == 1 and rows % lanes == 0:
            ((axis, length),) = tile.rows
            is_whole = axis.extent is not None and axis.extent % length == 0
            if is_whole and contraction.step(other, axis) == 1 and rows // lanes <= free:
                return replace(tile, held=axis, held_lanes=lanes)
        for axis in contraction.reduced if rows <= free else ():
            if contraction.step(other, axis) == 1 and (axis.extent or 1) % lanes == 0:
                return replace(tile, held=axis, held_lanes=lanes)
    # Elements are loaded in pairs, two of which are under way.
    return tile if free >= 3 else None


def panel_factor(contraction: Contraction, axis: Axis) -> int | None:
    """The number of the factor that is read in vectors along an axis; None if neither can be.

    The other factor is the same for all lanes, or is read in vectors as well.
    """
    steps = [contraction.step(factor, axis) for factor in (0, 1)]
    if None in steps or steps == [0, 0]:
        return None
    if 0 in steps:
        return 1 - steps.index(0)
    # Both factors move along the axis. Only one can be copied, so the other must be contiguous.
    if 1 not in steps:
        return None
    # The better panel depends on fewer axes of the result, which leaves more of them for rows. It
    # can be the panel only where the other factor can be read in place.
    sizes = [len(contraction.used_by(factor, contraction.spatial)) for factor in (0, 1)]
    smaller = 0 if sizes[0] < sizes[1] else 1
    return smaller if steps[1 - smaller] == 1 else 1 - smaller


def _widths(extent: int, lanes: int) -> Iterator[tuple[int, int]]:
    """Yield the lanes and the number of vectors of tiles that fit an extent.

    Vectors of a half or a quarter of a register serve extents that wider ones do not divide.
    """
    for vector_lanes in (lanes, lanes // 2, lanes // 4):
        if 1 < vector_lanes <= extent:
            for vectors in range(1, min(4, extent // vector_lanes) + 1):
                yield vector_lanes, vectors
            if extent % vector_lanes == 0:
                return


def _rows(axes: Sequence[Axis], max_rows: int) -> Iterator[tuple[tuple[Axis, int], ...]]:
    """Yield the row axes of a tile and its lengths along them.

    There are at most two row axes, and the product of the lengths is at most `max_rows`.
    """
    yield ()
    options_by_axis = [[(axis, length) for length in _lengths(axis, max_rows)] for axis in axes]
    for position, first_options in enumerate(options_by_axis):
        for first in first_options:
            yield (first,)
            for second_options in options_by_axis[position + 1 :]:
                yield from (
                    (first, second) for second in second_options if first[1] * second[1] <= max_rows
                )


def _lengths(axis: Axis, max_length: int) -> list[int]:
    """The lengths greater than one that cut an axis into tiles as equal as possible."""
    extent = volume([axis])
    # The least length that needs no more tiles than `length` does wastes the fewest rows.
    balanced = {ceil_div(extent, ceil_div(extent, length)) for length in range(2, max_length + 1)}
    return sorted(length for length in balanced if 1 < length <= max_length)


def _cycles(
    contraction: Contraction,
    tile: Tile,
    in_vectors: bool,
    costs: ContractionCosts,
    operation_cycles: float,
) -> float:
    """An estimate of the cycles of a whole contraction; infinite if copying does not pay.

    `in_vectors` says that results are stored in vectors, and `operation_cycles` is the time of one
    operation on a vector.
    """
    itemsize = tvm.DataType(contraction.dtype).itemsize
    lengths = {axis.var: length for axis, length in tile.rows} | {tile.vector.var: tile.width}
    tiles, ragged_axes = 1, 0
    for axis in contraction.spatial:
        length = lengths.get(axis.var, 1)
        tiles *= ceil_div(volume([axis]), length)
        ragged_axes += axis is not tile.vector and volume([axis]) % length != 0
    terms = volume(contraction.reduced)
    adding_cycles = (
        tiles
        * terms
        * (
            _step_cycles(contraction, tile, costs) * operation_cycles
            + costs.step_cycles / tile.held_lanes
        )
    )
    other_factor = 1 - tile.panel
    row_steps = [(contraction.step(other_factor, axis) or 0, length) for axis, length in tile.rows]
    distant_lengths = [
        length for step, length in row_steps if step * itemsize >= costs.crowded_row_bytes
    ]
    panel_bytes = (
        tile.width * volume(contraction.used_by(tile.panel, contraction.reduced)) * itemsize
    )
    # All losses are shares of the time of the multiply-adds.
    overhead = (
        costs.ragged_overhead * ragged_axes
        + costs.crowded_overhead * (math.prod(distant_lengths) > costs.crowded_rows)
        + _BLOCKED_SUM_OVERHEAD * (panel_bytes > costs.near_bytes)
        + _SPREAD_ROWS_COST * math.log2(1 + sum(abs(step) * length for step, length in row_steps))
    )
    store_cycles = tile.registers * (1.0 if in_vectors else tile.lanes * costs.element_store_cycles)
    copy_cycles = 0.0
    if tile.copied and tile.panel not in contraction.lasting:
        copy_cycles = costs.element_copy_cycles * volume(
            contraction.used_by(tile.panel, contraction.axes)
        )
        if copy_cycles > _MAX_COPY_SHARE * adding_cycles:
            return math.inf
    return adding_cycles * (1 + overhead) + tiles * store_cycles + copy_cycles


def _step_cycles(contraction: Contraction, tile: Tile, costs: ContractionCosts) -> float:
    """The cycles of one step of the innermost loop: one multiply-add per register and its loads."""
    loads, exposed_cycles = 0.0, 0.0
    sum_is_short = is_short(contraction, tile.vector)
    for factor in (0, 1):
        row_lengths = [length for axis, length in tile.rows if contraction.depends(factor, axis)]
        is_vector = bool(contraction.step(factor, tile.vector))
        elements = (
            _mean_loads(contraction, factor, tile) if sum_is_short else math.prod(row_lengths)
        )
        if factor != tile.panel and tile.held is not None:
            is_vector, load_count = True, elements / tile.held_lanes
        else:
            load_count = elements * (tile.vectors if is_vector else 1)
        loads += load_count
        exposed_cycles += load_count * (
            costs.vector_load_cycles if is_vector else costs.element_load_cycles
        )
    # Multiply-adds and loads go on side by side, one of each per cycle: the longer sequence counts.
    return max(tile.registers, loads) + exposed_cycles


def _mean_loads(contraction: Contraction, factor: int, tile: Tile) -> float:
    """How many elements along the rows are loaded in one step, on average over a short sum.

    The windows of neighboring results overlap: what one step has loaded is at hand in the next, so
    only distinct elements count.
    """
    axis_lengths = [*tile.rows, *((axis, volume([axis])) for axis in contraction.reduced)]
    distinct_elements = 1
    for index in contraction.loads[factor].indices:
        reaches = [
            (linear_coefficient(index, axis.var) or 0) * (length - 1)
            for axis, length in axis_lengths
        ]
        # An index takes at most as many values as lie between its least and its greatest.
        distinct_elements *= 1 + sum(abs(reach) for reach in reaches)
    return distinct_elements / volume(contraction.reduced)
