"""Contractions of pairs in tile registers: the choice of a block of them, and its products.

    sums = 0                              up to 2 x 2 registers of rows x lanes
    terms                                 along the sum, so many at once as a register has pairs
      sums += rows · terms × terms · lanes
    sums → memory

A register is filled with rows that are at the same distance in memory. Those of the panel are the
vectors that other tiles load. Those of the other factor must have neighboring terms: they are read
in place where they do, else from a copy in such an order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tvm
from tvm import tirx

from ....ir.kernel_structure import Axis, buffer_of, stride, substitute_values, volume
from ....ir.loops import Statement, ceil_div, sequence, variable
from ...kernels.contraction import Contraction, known
from .. import tile_products
from ..tile_products import ROWS
from ..tuning import ContractionCosts
from .frame import Frame
from .plan import Plan
from .store import ResultStore
from .tile import Tile, panel_factor

_Read = Callable[[int, Sequence[Any], Any], Any]

_LANES = 16
"""Sums in each row of a register."""

MIN_PAIRS = 4
"""Pairs of a register at least."""

_ADD_CYCLES, _LOAD_CYCLES = 16, 8
"""Cycles of a product and of a load, which go on side by side, of a Xeon of the fourth generation
(Intel 64 and IA-32 Architectures Optimization Manual, on AMX). They have not been measured."""

_MIN_PRODUCTS_PER_CYCLE = 32
"""Products of pairs in a cycle from which on registers for matrices are used: vectors have no
more."""

_BLOCK_CYCLES = 64
"""Cycles of a block of registers besides: to clear and to store them."""


def matrix_tile(
    contraction: Contraction, costs: ContractionCosts, result_store: ResultStore
) -> Tile | None:
    """The block of registers with which a contraction takes the least time; None if none pays.

    Parameters
    ----------
    contraction : Contraction
        One of pairs, with static extents.
    costs : ContractionCosts
    result_store : ResultStore
        The store of the results.
    """

    def cycles(tile: Tile) -> float:
        in_vectors = result_store.step(tile.vector) == 1
        return _cycles(contraction, tile, costs, in_vectors)

    best = min(_tiles(contraction), key=cycles, default=None)
    most = volume(contraction.axes) / _MIN_PRODUCTS_PER_CYCLE
    return best if best is not None and cycles(best) <= most else None


def _tiles(contraction: Contraction) -> Iterator[Tile]:
    """Yield the candidates."""
    for vector in contraction.spatial:
        panel = panel_factor(contraction, vector)
        if panel is None or known(vector) < _LANES or contraction.step(1 - panel, vector) != 0:
            continue
        copied = contraction.step(panel, vector) != 1
        if copied and not contraction.can_be_copied(panel):
            continue
        row_axes = [axis for axis in contraction.spatial if not contraction.depends(panel, axis)]
        row_axes = [axis for axis in row_axes if contraction.step(1 - panel, axis)]
        for depth in contraction.reduced:
            pairs = math.gcd(known(depth), ROWS)
            steps = [contraction.step(factor, depth) for factor in (0, 1)]
            if pairs < MIN_PAIRS or None in steps or 0 in steps:
                continue
            if steps[1 - panel] != 1 and not contraction.can_be_copied(1 - panel):
                continue
            for vectors in range(1, min(2, known(vector) // _LANES) + 1):
                for rows in _rows(row_axes):
                    yield Tile(
                        vector, panel, copied, _LANES, vectors, rows, depth, pairs, matrices=True
                    )


def _rows(axes: Sequence[Axis]) -> Iterator[tuple[tuple[Axis, int], ...]]:
    """Yield the rows of blocks: of one register or of two, along one axis or along two."""
    for axis in axes:
        extent = known(axis)
        length = ceil_div(extent, ceil_div(extent, ROWS))
        yield ((axis, length),)
        if extent > ROWS:
            half = ceil_div(extent, 2 * ceil_div(extent, 2 * ROWS))
            if 2 * half <= extent:
                yield ((axis, 2 * half),)
        others = (other for other in axes if other is not axis and known(other) > 1)
        yield from (((other, 2), (axis, length)) for other in others)


def _cycles(
    contraction: Contraction, tile: Tile, costs: ContractionCosts, in_vectors: bool
) -> float:
    """An estimate of the cycles of a contraction; `in_vectors` says how its results are stored."""
    lengths = {axis.var: length for axis, length in tile.rows} | {tile.vector.var: tile.width}
    blocks = math.prod(
        ceil_div(known(axis), lengths.get(axis.var, 1)) for axis in contraction.spatial
    )
    down, across = len(list(_registers(tile.rows))), tile.vectors
    steps = volume(contraction.reduced) / tile.held_lanes
    step_cycles = max(_ADD_CYCLES * down * across, _LOAD_CYCLES * (down + across))
    copies = {tile.panel: tile.copied, 1 - tile.panel: not _has_rows(contraction, tile)}
    copied = sum(
        volume(contraction.used_by(factor, contraction.axes))
        for factor, is_copied in copies.items()
        if is_copied and factor not in contraction.lasting
    )
    store_cycles = 1 / tile.lanes if in_vectors else costs.element_store_cycles
    return (
        blocks * (steps * step_cycles + _BLOCK_CYCLES)
        + volume(contraction.spatial) * store_cycles
        + copied * costs.element_copy_cycles
    )


def _has_rows(contraction: Contraction, tile: Tile) -> bool:
    """Whether the pairs of a row of a register are neighbors in the factor beside the panel."""
    assert tile.held is not None
    return contraction.step(1 - tile.panel, tile.held) == 1


def _registers(rows: Sequence[tuple[Axis, int]]) -> Iterator[list[int]]:
    """Yield the first row of each register of a block, as positions along its row axes."""
    *outer, (_, length) = rows
    if outer:
        yield from ([row, 0] for row in range(outer[0][1]))
    else:
        yield from ([row] for row in range(0, length, register_rows(rows)))


def register_rows(rows: Sequence[tuple[Axis, int]]) -> int:
    """The rows of each register of a block."""
    length = rows[-1][1]
    return length if length <= ROWS else length // 2


def products(plan: Plan, frame: Frame, panel: int, read: _Read, sums: Any) -> Statement:
    """The statement that computes the sums of a block, and stores them in a buffer.

    Parameters
    ----------
    plan : Plan
    frame : Frame
    panel : int
        The number of the factor that is read in vectors.
    read : callable
        From the number of a factor, a position along the rows and a column to the load of the pair
        that the trip of the innermost loop reads there.
    sums : Buffer
        Indexed by the rows and the column.
    """
    analyzer = tvm.sym.Analyzer()
    term, row = frame.trip(plan.terms[-1]), variable("row", frame.dtype)
    zeros = {term: frame.number(0), row: frame.number(0)}
    starts = [list(map(frame.number, rows)) for rows in _registers(plan.rows)]
    columns = [frame.number(plan.lanes * number) for number in range(plan.vectors)]

    def registers(loads: Sequence[Any], moved: Any) -> tuple[list[Any], int]:
        """The first elements of registers, and the bytes from row to row, which `moved` numbers."""
        distance = stride(loads[0], moved)
        assert distance is not None
        itemsize = tvm.DataType(str(buffer_of(loads[0]).dtype)).itemsize
        first = [analyzer.simplify(substitute_values(load, zeros)) for load in loads]
        return first, distance * itemsize

    rows = [read(1 - panel, [*outer, start + row], columns[0]) for *outer, start in starts]
    vectors = [read(panel, starts[0], column) for column in columns]
    add = tile_products.add_products(*registers(rows, row), *registers(vectors, term))
    corners = [[tirx.BufferLoad(sums, [*start, column]) for column in columns] for start in starts]
    itemsize = tvm.DataType(str(sums.dtype)).itemsize
    return sequence(
        *tile_products.zero(len(starts), len(columns)),
        frame.around(plan.terms[:-1], sequence(*add)),
        *tile_products.store(corners, plan.width * itemsize),
    )
