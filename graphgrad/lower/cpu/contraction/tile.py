"""The choice of a tile: by an estimate of the cycles that a contraction takes with it.

The constants are measured on Zen 4; they rank tiles and say nothing about other machines' seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import tvm

from ....ir.kernel_structure import Axis, linear_coefficient, volume
from ....ir.loops import ceil_div
from ...kernels.contraction import Contraction
from ..vector_unit import VectorUnit
from .store import ResultStore

CACHE = 5 << 17
"""Bytes that are used again and again: they fit the second cache of a core, with room to spare."""

_LOAD_CYCLES = (0.1, 0.35)
"""Cycles that a load costs beside the multiply-adds that hide it: of one element, of a vector."""

_STEP_CYCLES = 1.0
"""Cycles of the innermost loop itself, in each step."""

_NARROW_OPERATION_CYCLES = 0.7
"""Cycles of an operation on part of a register: many processors do two of a half in one cycle."""

_RAGGED_OVERHEAD = 0.06
"""Part of the time that rows beyond the end cost, besides what is computed for nothing."""

_SPREAD_ROWS_COST = 1e-6
"""Cost of rows that lie far apart, where nothing else decides: part of the time per doubling."""

_MAX_UNCROWDED_ROWS = 8
_CROWDED_ROW_BYTES = 2048
_CROWDED_OVERHEAD = 0.15
"""Part of the time that it costs to read more than a few rows which lie so many bytes apart: they
compete for the same places of the first cache."""

_BLOCKED_SUM_OVERHEAD = 0.05
"""Part of the time that it costs to go through a sum in blocks, where panels do not fit CACHE."""

_ELEMENT_STORE_CYCLES = 2.0
"""Cycles to store one element of a tile that cannot be stored in vectors."""

_MAX_GUARDED_TILE_BYTES = 1024
"""Bytes of results below which tiles stay whose terms may lie outside a factor. Larger ones take
0.75 to 1.15 of the time, one depthwise weight gradient or another."""

_MAX_SHORT_SUM_TERMS = 64
"""Terms up to which a sum is short: if both factors are read in vectors, waiting for them is what
takes time."""

_MAX_SHORT_SUM_VECTORS = 4
"""Vectors of a tile of short sums at most: a core then begins with the next tile meanwhile."""

_ELEMENT_COPY_CYCLES = 2.0
"""Cycles to copy one element into a panel of vectors that are not contiguous."""

_MAX_COPY_SHARE = 0.5
"""Copying may take this part of the time of the multiply-adds, at most."""


@dataclass(frozen=True)
class Tile:
    """A tile of results that is held in registers.

    Attributes
    ----------
    vector : Axis
        The axis along which vectors lie.
    panel : int
        The factor that is read in vectors; the other one may be, too.
    copied : bool
        Whether it has to be copied for that, because its vectors are not contiguous.
    lanes, vectors : int
        Elements of a vector, vectors side by side.
    rows : tuple of (Axis, int)
        The other axes, and how many elements along them.
    """

    vector: Axis
    panel: int
    copied: bool
    lanes: int
    vectors: int
    rows: tuple[tuple[Axis, int], ...]

    @property
    def width(self) -> int:
        """Elements along the vector axis."""
        return self.lanes * self.vectors

    @property
    def registers(self) -> int:
        """Vectors in all."""
        return self.vectors * math.prod(length for _, length in self.rows)


def best_tile(contraction: Contraction, unit: VectorUnit, result_store: ResultStore) -> Tile | None:
    """The tile with which a contraction takes the least time; None if none pays."""
    best, least = None, math.inf
    for axis in contraction.spatial:
        step = result_store.step(axis)
        for tile in _tiles_along(contraction, axis, unit):
            in_vectors = step == 1 and not (result_store.once and volume([axis]) % tile.width)
            is_narrow = tile.lanes < unit.lanes(contraction.dtype)
            cycles = _cycles(
                contraction, tile, in_vectors, _NARROW_OPERATION_CYCLES if is_narrow else 1.0
            )
            if cycles < least:
                best, least = tile, cycles
    return best


def is_short(contraction: Contraction, vector: Axis) -> bool:
    """Whether sums have few terms, and all factors are read in vectors along an axis."""
    both = all(contraction.step(factor, vector) for factor in (0, 1))
    return both and volume(contraction.reduced) <= _MAX_SHORT_SUM_TERMS


def _tiles_along(contraction: Contraction, axis: Axis, unit: VectorUnit) -> Iterator[Tile]:
    """Yield the tiles whose vectors lie along an axis."""
    panel = _panel_factor(contraction, axis)
    if panel is None or axis.extent is None or axis.extent == 1:
        return
    copied = contraction.step(panel, axis) != 1
    if copied and not contraction.can_be_copied(panel):
        return
    others = [one for one in contraction.spatial if one is not axis and one.extent != 1]
    shared = [one for one in others if not contraction.depends(panel, one)]
    itemsize = tvm.DataType(contraction.dtype).itemsize
    for lanes, vectors in _widths(axis.extent, unit.lanes(contraction.dtype)):
        # Beside the results, registers hold the vectors of one step and one broadcast element.
        most = (unit.registers - 2 - vectors) // vectors
        if is_short(contraction, axis):
            most = min(most, _MAX_SHORT_SUM_VECTORS // vectors)
        if contraction.inside:
            most = min(most, (_MAX_GUARDED_TILE_BYTES - 1) // (vectors * lanes * itemsize))
        for rows in _rows(shared, most):
            yield Tile(axis, panel, copied, lanes, vectors, rows)


def _panel_factor(contraction: Contraction, axis: Axis) -> int | None:
    """The factor that is read in vectors along an axis; None if none can be.

    The other one is the same for all lanes, or is read in vectors as well.
    """
    steps = [contraction.step(factor, axis) for factor in (0, 1)]
    if None in steps or steps == [0, 0]:
        return None
    if 0 in steps:
        return 1 - steps.index(0)
    if 1 not in steps:
        return None
    sizes = [len(contraction.used_by(factor, contraction.spatial)) for factor in (0, 1)]
    smaller = 0 if sizes[0] < sizes[1] else 1
    return smaller if steps[1 - smaller] == 1 else 1 - smaller


def _widths(extent: int, lanes: int) -> Iterator[tuple[int, int]]:
    """Yield lanes and vectors of tiles that fit an extent; no less than a quarter of a register.

    Vectors that do not fill a register serve extents that wider ones do not divide.
    """
    for narrower in (lanes, lanes // 2, lanes // 4):
        if 1 < narrower <= extent:
            for vectors in range(1, min(4, extent // narrower) + 1):
                yield narrower, vectors
            if extent % narrower == 0:
                return


def _rows(axes: Sequence[Axis], most: int) -> Iterator[tuple[tuple[Axis, int], ...]]:
    """Yield row axes and lengths, up to two of them with a product of up to `most`."""
    yield ()
    options = [[(axis, n) for n in _lengths(axis, most)] for axis in axes]
    for position, first in enumerate(options):
        for one in first:
            yield (one,)
            for second in options[position + 1 :]:
                yield from ((one, two) for two in second if one[1] * two[1] <= most)


def _lengths(axis: Axis, most: int) -> list[int]:
    """Lengths that cut an axis into tiles as equal as possible."""
    extent = volume([axis])
    even = {ceil_div(extent, ceil_div(extent, n)) for n in range(2, most + 1)}
    return sorted(n for n in even if 1 < n <= most)


def _cycles(contraction: Contraction, tile: Tile, in_vectors: bool, operation: float) -> float:
    """An estimate of the time of a whole contraction; infinite if copying does not pay.

    `in_vectors` says that results are stored in vectors; `operation` is the time of one vector's.
    """
    itemsize = tvm.DataType(contraction.dtype).itemsize
    lengths = {axis.var: length for axis, length in tile.rows} | {tile.vector.var: tile.width}
    tiles, ragged = 1, 0
    for axis in contraction.spatial:
        length = lengths.get(axis.var, 1)
        tiles *= ceil_div(volume([axis]), length)
        ragged += axis is not tile.vector and volume([axis]) % length != 0
    terms = volume(contraction.reduced)
    adding = tiles * terms * (_step_cycles(contraction, tile) * operation + _STEP_CYCLES)
    other = 1 - tile.panel
    steps = [(contraction.step(other, axis) or 0, length) for axis, length in tile.rows]
    far = [length for step, length in steps if step * itemsize >= _CROWDED_ROW_BYTES]
    panel = tile.width * volume(contraction.used_by(tile.panel, contraction.reduced)) * itemsize
    losses = (
        _RAGGED_OVERHEAD * ragged
        + _CROWDED_OVERHEAD * (math.prod(far) > _MAX_UNCROWDED_ROWS)
        + _BLOCKED_SUM_OVERHEAD * (panel > CACHE)
        + _SPREAD_ROWS_COST * math.log2(1 + sum(abs(step) * length for step, length in steps))
    )
    stored = tile.registers * (1.0 if in_vectors else tile.lanes * _ELEMENT_STORE_CYCLES)
    copying = 0.0
    if tile.copied:
        copying = _ELEMENT_COPY_CYCLES * volume(contraction.used_by(tile.panel, contraction.axes))
        if copying > _MAX_COPY_SHARE * adding:
            return math.inf
    return adding * (1 + losses) + tiles * stored + copying


def _step_cycles(contraction: Contraction, tile: Tile) -> float:
    """The cycles of one step of the innermost loop: one multiply-add per register."""
    loads, waits = 0.0, 0.0
    short = is_short(contraction, tile.vector)
    for factor in (0, 1):
        rows = [length for axis, length in tile.rows if contraction.depends(factor, axis)]
        is_vector = bool(contraction.step(factor, tile.vector))
        places = _places(contraction, factor, tile) if short else math.prod(rows)
        number = places * (tile.vectors if is_vector else 1)
        loads += number
        waits += number * _LOAD_CYCLES[is_vector]
    return max(tile.registers, loads) + waits


def _places(contraction: Contraction, factor: int, tile: Tile) -> float:
    """How many elements along the rows are read in one step, on average over a short sum.

    Windows overlap: what one step has read is at hand in the next.
    """
    lengths = [*tile.rows, *((axis, volume([axis])) for axis in contraction.reduced)]
    places = 1
    for index in contraction.loads[factor].indices:
        reaches = [(linear_coefficient(index, a.var) or 0) * (n - 1) for a, n in lengths]
        places *= 1 + sum(abs(reach) for reach in reaches)
    return places / volume(contraction.reduced)
