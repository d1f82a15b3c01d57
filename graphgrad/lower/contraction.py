"""Contractions: sums of products of two reads. Matrix products, convolutions, their gradients.

A tile of outputs is held in registers: some rows of one vector each. Along the vector axis one
operand is read as vectors, and along the row axes the other is broadcast, so that each value
fetched serves several multiply-adds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir import Schedule

from .epilogue import Epilogue
from .map import SMALL, parallel_leading
from .reduction import vector_length
from .structure import (
    Axis,
    Load,
    Stage,
    buffer_of,
    linear_coefficient,
    static,
    stride,
    uses,
    volume,
)
from .target import VectorUnit

_WINDOW = 7
"""Reduction extents up to here, when they slide over an output axis, are a filter's window."""

_MOVE_COST = 8
"""Multiply-adds per element that copying an operand into another order is worth."""

_SCATTER_COST = 40
"""Multiply-adds per output that storing vectors lane by lane is worth."""

_MANY_TERMS = 512
"""Terms of a sum beside which storing it lane by lane takes no time worth naming."""

_CACHED = 1 << 19
"""Bytes of an output that stay in the cache of a core, in whatever order they are stored."""


@dataclass
class Tile:
    """How to compute a contraction.

    Attributes
    ----------
    vector : Axis
        The axis along which vectors lie.
    lanes, vectors : int
        Elements of a vector, vectors side by side.
    rows : dict
        Unrolled length by axis.
    moved : list of int
        Operands to be copied with the vector axis innermost: 0, 1 or both.
    scattered : bool
        What is stored at last, by the epilogue if there is one, is not contiguous along the vector
        axis.
    score : float
        Estimated fraction of the peak.
    """

    vector: Axis
    lanes: int
    vectors: int
    moved: list[int]
    scattered: bool
    score: float
    rows: dict[Any, int] = field(default_factory=dict)

    def length(self, axis: Axis) -> int:
        """Return how many elements along an output axis the tile has."""
        return self.vectors * self.lanes if axis is self.vector else self.rows.get(axis.var, 1)


def operands(stage: Stage) -> tuple[Any, Any] | None:
    """Return the two reads whose products the stage sums, or None if it does something else."""
    if len(stage.stores) != 1 or not stage.reduced or len(stage.loads) != 2:
        return None
    total = stage.values[0]
    if not isinstance(total, tirx.Add):
        return None
    terms = [total.b] if _reads_output(total.a, stage) else [total.a]
    if not isinstance(terms[0], tirx.Mul):
        return None
    left, right = _uncast(terms[0].a), _uncast(terms[0].b)
    return (left, right) if isinstance(left, Load) and isinstance(right, Load) else None


def pays(stage: Stage, epilogue: Epilogue) -> bool:
    """Return whether an epilogue is sooner computed behind each tile than in a pass of its own.

    It is not where it does nothing but put sums of few terms into another order.
    """
    along = [epilogue.along[axis.var].var for axis in stage.spatial if axis.var in epilogue.along]
    order = [axis.var for axis in epilogue.stage.axes if axis.extent != 1]
    moves = not all(a.same_as(b) for a, b in zip(along, order, strict=True))
    copies = len(epilogue.stage.loads) == 1
    return not (moves and copies) or volume(stage.reduced) >= _MANY_TERMS


def plan(stage: Stage, unit: VectorUnit, epilogue: Epilogue | None = None) -> Tile | None:
    """Choose the tile of a contraction; None if it has no profitable one.

    Parameters
    ----------
    stage : Stage
    unit : VectorUnit
    epilogue : Epilogue, optional
        The map that stores what the contraction computes, in an order of its own.
    """
    pair = operands(stage)
    if pair is None or stage.work < SMALL or any(axis.extent == 0 for axis in stage.axes):
        return None
    best = _best(stage, pair, unit, None)
    if best is not None and epilogue is not None:
        results = volume(stage.spatial)
        best = _best(stage, pair, unit, epilogue, max(_copied(pair, best), results - 1))
    if best is None:
        return None
    best.rows = _rows(stage, pair, best, unit)
    return best


def schedule_contraction(
    sch: Schedule, stage: Stage, tile: Tile, epilogue: Epilogue | None = None
) -> None:
    """Apply a tile: parallel outer loops, reductions between, the tile unrolled inside.

    An epilogue is computed from the registers, tile by tile.
    """
    block = sch.get_sblock(stage.name)
    for operand in tile.moved:
        _move_vector_axis(sch, block, stage, operand, tile.vector)
    outer, reduced, rows, vectors, lanes = _split(sch, block, stage, tile, epilogue)
    sch.reorder(*outer, *reduced, *rows, vectors, lanes)
    parallel_leading(sch, outer)
    inside = sch.get_loops(block)
    position = len(inside) - len(reduced) - len(rows) - 2
    _write_back(sch, block, stage, tile, inside[position - 1], epilogue)
    for loop in (*rows, vectors):
        sch.unroll(loop)
    sch.vectorize(lanes)
    start = sch.get_loops(sch.decompose_reduction(block, reduced[0]))[position:]
    for loop in start[:-1]:
        sch.unroll(loop)
    sch.vectorize(start[-1])


def _best(
    stage: Stage,
    pair: tuple[Any, Any],
    unit: VectorUnit,
    epilogue: Epilogue | None,
    most_copied: float = math.inf,
) -> Tile | None:
    """Return the tile of the highest score among those that copy few enough elements."""
    candidates = [_candidate(stage, pair, axis, unit, epilogue) for axis in stage.spatial]
    allowed = (c for c in candidates if c is not None and _copied(pair, c) <= most_copied)
    return max(allowed, key=lambda tile: tile.score, default=None)


def _copied(pair: tuple[Any, Any], tile: Tile) -> int:
    return sum(_elements(pair[operand]) for operand in tile.moved)


def _candidate(
    stage: Stage,
    pair: tuple[Any, Any],
    axis: Axis,
    unit: VectorUnit,
    epilogue: Epilogue | None,
) -> Tile | None:
    """Return a tile with its vectors along `axis`, if that is possible."""
    if not axis.extent or axis.extent == 1:
        return None
    lanes = unit.lanes(stage.dtype)
    length = vector_length(axis.extent, lanes, 1)
    if 4 * length < lanes or length == 1:
        return None
    steps = [stride(load, axis.var) for load in pair]
    if not any(step != 0 for step in steps):
        return None
    score = (length / lanes) ** 0.7
    moved = []
    for i, (load, step) in enumerate(zip(pair, steps, strict=True)):
        if step in (0, 1):
            continue
        reuse = stage.work / max(_elements(load), 1)
        if _moving_position(load, axis) is not None and reuse >= _MOVE_COST:
            moved.append(i)
            score *= reuse / (reuse + _MOVE_COST)
        elif step is not None:
            score *= 0.3
        else:
            return None
    terms = volume(stage.reduced)
    scattered = not _stored_as_vectors(stage, axis, epilogue)
    score *= terms / (terms + _SCATTER_COST) if scattered else 1.0
    score *= 1.0 if 0 in steps else 0.5  # else no operand is shared between the lanes
    vectors = 2 if length == lanes and axis.extent % (2 * lanes) == 0 else 1
    return Tile(axis, length, vectors, moved, scattered, score)


def _stored_as_vectors(stage: Stage, axis: Axis, epilogue: Epilogue | None) -> bool:
    """Return whether neighbours along an axis are neighbours where the result is stored at last."""
    if epilogue is None:
        return stride(stage.stores[0], axis.var) == 1
    taken = epilogue.along[axis.var].var
    (store,) = epilogue.stage.stores
    loads = [load for load in epilogue.stage.loads if not _reads(load, epilogue.taken)]
    return stride(store, taken) == 1 and all(stride(load, taken) in (0, 1) for load in loads)


def _rows(stage: Stage, pair: tuple[Any, Any], tile: Tile, unit: VectorUnit) -> dict[Any, int]:
    """Choose up to two axes along which the vector operand is shared, and their lengths."""
    budget = (unit.registers - 4) // tile.vectors
    read_as_vectors = [load for load in pair if uses(load, tile.vector.var)]
    others = [axis for axis in stage.spatial if axis is not tile.vector and axis.extent]
    shared = [a for a in others if not any(uses(load, a.var) for load in read_as_vectors)]
    rows: dict[Any, int] = {}
    for axis in sorted(shared or others[-1:], key=lambda a: -_divisor(a.extent, budget)):
        length = _divisor(axis.extent, budget)
        if length > 1 and len(rows) < 2:
            rows[axis.var] = length
            budget //= length
    return rows


def _divisor(extent: int | None, most: int) -> int:
    return max(d for d in range(1, max(most, 1) + 1) if (extent or 1) % d == 0)


def _split(
    sch: Schedule, block: Any, stage: Stage, tile: Tile, epilogue: Epilogue | None
) -> tuple[list[Any], list[Any], list[Any], Any, Any]:
    """Split the loops into outer ones, reductions, rows, vectors and lanes."""
    loops = {axis.var: loop for axis, loop in zip(stage.axes, sch.get_loops(block), strict=True)}
    outer, rows = [], []
    for axis in _storing_order(stage, epilogue):
        loop = loops[axis.var]
        if axis is tile.vector:
            loop, vectors, lanes = sch.split(loop, [None, tile.vectors, tile.lanes])
        elif axis.var in tile.rows:
            loop, row = sch.split(loop, [None, tile.rows[axis.var]])
            rows.append(row)
        outer.append(loop)
    reduced = [loops[axis.var] for axis in _reduction_order(stage)]
    return outer, reduced, rows, vectors, lanes


def _storing_order(stage: Stage, epilogue: Epilogue | None) -> list[Axis]:
    """Order the output axes; a large output's as they lie in memory, so that lines fill up soon."""
    size = volume(stage.spatial) * tvm.DataType(stage.dtype).itemsize
    if epilogue is None or size <= _CACHED:
        return stage.spatial
    place = {axis.var: i for i, axis in enumerate(epilogue.stage.axes)}
    long = [axis for axis in stage.spatial if axis.var in epilogue.along]
    one = [axis for axis in stage.spatial if axis.var not in epilogue.along]
    return [*one, *sorted(long, key=lambda axis: place[epilogue.along[axis.var].var])]


def _reduction_order(stage: Stage) -> list[Axis]:
    """Order the reductions: windows outside, so that the innermost loop is long."""
    return sorted(stage.reduced, key=lambda axis: not _is_window(stage, axis))


def _is_window(stage: Stage, axis: Axis) -> bool:
    indices = [index for load in stage.loads for index in load.indices]
    slides = any(uses(i, axis.var) and any(uses(i, s.var) for s in stage.spatial) for i in indices)
    return slides and axis.extent is not None and axis.extent <= _WINDOW


def _write_back(
    sch: Schedule, block: Any, stage: Stage, tile: Tile, where: Any, epilogue: Epilogue | None
) -> None:
    """Hold the tile in registers and store it, transposed in a small buffer if it is scattered.

    Storing single lanes straight from the accumulators would keep them out of registers.
    """
    store = sch.cache_write(block, 0, "local")
    if epilogue is not None:
        sch.reverse_compute_inline(sch.get_sblock(epilogue.stage.name))
    copies = [store]
    if tile.scattered:
        stage_out = sch.cache_write(block, 0, "local")
        order = _vector_axis_last(len(stage.spatial), stage.spatial.index(tile.vector))
        sch.transform_layout(block, ("write", 0), order)
        sch.transform_layout(stage_out, ("write", 0), order)
        sch.set_scope(stage_out, 0, "global")
        copies = [stage_out, store]
    depth = len(sch.get_loops(block)) - len(tile.rows) - 2 - len(stage.reduced)
    for copy in copies:
        sch.reverse_compute_at(copy, where)
        loops = sch.get_loops(copy)[depth:]
        if copy is store and tile.scattered:
            for loop in loops:
                sch.unroll(loop)
        else:
            _vector_copy(sch, loops, stage, tile)


def _vector_copy(sch: Schedule, loops: list[Any], stage: Stage, tile: Tile) -> None:
    """Copy vectors; loops of one trip are already gone."""
    before = stage.spatial[: stage.spatial.index(tile.vector)]
    along = loops[sum(tile.length(axis) > 1 for axis in before)]
    vectors, lanes = sch.split(along, [None, tile.lanes])
    rest = [loop for loop in loops if loop is not along]
    sch.reorder(*rest, vectors, lanes)
    for loop in (*rest, vectors):
        sch.unroll(loop)
    sch.vectorize(lanes)


def _move_vector_axis(sch: Schedule, block: Any, stage: Stage, operand: int, axis: Axis) -> None:
    """Copy an operand into an order in which the vector axis is contiguous."""
    pair = operands(stage)
    assert pair is not None
    load = pair[operand]
    reads = [region.source for region in sch.get(block).reads]
    index = next(i for i, source in enumerate(reads) if source.same_as(buffer_of(load)))
    copy = sch.cache_read(block, index, "global")
    position = _moving_position(load, axis)
    assert position is not None
    sch.transform_layout(copy, ("write", 0), _vector_axis_last(len(load.indices), position))
    loops = sch.get_loops(copy)
    if _elements(load) >= SMALL:
        parallel_leading(sch, loops)


def _vector_axis_last(dimensions: int, position: int) -> tirx.IndexMap:
    def move(*indices: Any) -> list[Any]:
        return [*indices[:position], *indices[position + 1 :], indices[position]]

    return tirx.IndexMap.from_func(move, ndim=dimensions, index_dtype="int64")


def _moving_position(load: Any, axis: Axis) -> int | None:
    """Return the one index of a load that contains the axis, with coefficient one."""
    positions = [i for i, index in enumerate(load.indices) if uses(index, axis.var)]
    if len(positions) != 1 or linear_coefficient(load.indices[positions[0]], axis.var) != 1:
        return None
    return positions[0]


def _elements(load: Any) -> int:
    return volume(Axis(None, static(extent), False) for extent in buffer_of(load).shape)


def _reads_output(value: Any, stage: Stage) -> bool:
    return isinstance(value, Load) and _reads(value, stage.stores[0].buffer)


def _reads(load: Any, buffer: Any) -> bool:
    return bool(buffer_of(load).same_as(buffer))


def _uncast(value: Any) -> Any:
    while isinstance(value, tirx.Cast):
        value = value.value
    return value
