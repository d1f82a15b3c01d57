"""Long reductions in which neighboring results are neighbors in memory, in one launch.

A block of threads reduces some of the terms of a tile of neighboring results. Its threads read
neighboring vectors, each adds up its own terms, and they combine what they have in shared memory.
Each block leaves its part in memory, and the last one to arrive combines those of its tile: in the
order of the parts, not in that of arrival, so that every run adds in the same order.

What belongs to the results moves into the launch: samples of a few terms, which each thread takes
for its own results before it begins, and maps, which the last block computes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm.backend.cuda.op import cuda_func_call

from ...ir.kernel_structure import (
    Axis,
    Load,
    Stage,
    buffer_of,
    is_among,
    static,
    stride,
    substitute_values,
    volume,
)
from ...ir.loops import bound, index, load, loop, own_loop, registers, sequence, store, variable
from ...ir.tensor import bits
from ...ir.visits import nodes_in, replace_nodes
from ..kernels.blocked_sums import SHORT_SUM, sum_in_blocks
from .lanes import each_lane, wide_lanes
from .reduction import MAX_TERMS_PER_THREAD, Reduction, results_of
from .threads import THREADS, at_lane, at_point, barrier

MAX_SAMPLE_TERMS = 16
"""Terms of a sample, which each thread of a reduction adds up again."""

_TILE = 32
"""Vectors of results of a tile at most: the threads of a warp read neighboring ones."""

_BUSY_BLOCKS = 528
"""Blocks that keep a large GPU busy: four on each of 132 multiprocessors."""

_MIN_TERMS = 8
"""Terms that a thread must have for more blocks to be worth their parts."""

_MAX_RUN = 128
"""Parts that a thread adds up one after the other; more in blocks, which take more registers."""

_MAX_TILES = 1024
"""Tiles of a launch at most: each has a counter of the blocks that have arrived."""

_ARRIVAL = "graphgrad_arrives_last"
"""The device function that counts the blocks of a tile."""

_ARRIVAL_SOURCE = f"""
static __device__ unsigned int graphgrad_arrived[{_MAX_TILES}];

// Whether all other blocks of a tile have arrived: then all that they have written can be read.
// The counter is 0 again after the last one. Launches of a program run one after another.
__device__ __forceinline__ int {_ARRIVAL}(int tile, int blocks) {{
  __threadfence();
  __syncthreads();
  int last = 0;
  if (threadIdx.x == 0) last = atomicInc(&graphgrad_arrived[tile], blocks - 1) == blocks - 1;
  last = __syncthreads_or(last);
  __threadfence();
  return last;
}}
"""


@dataclass(frozen=True)
class Companion:
    """A stage with an element for each result of a reduction, computed in its launch.

    Attributes
    ----------
    loops : list of For
        Over its elements; only their variables and ranges are used.
    store : BufferStore
        Of an element, in the variables of the loops.
    is_stored : bool
        Whether anything outside of the launch reads it.
    """

    loops: list[Any]
    store: Any
    is_stored: bool


def arrives_last(call: Any) -> bool:
    """Whether an expression tells the last block of a tile from the others."""
    return (
        isinstance(call, tvm.ir.Call)
        and str(getattr(call.op, "name", "")) == "tirx.cuda.func_call"
        and str(call.args[0].value) == _ARRIVAL
    )


def may_tile_columns(reduction: Reduction) -> bool:
    """Whether a reduction has so few results with so many terms that blocks share them."""
    extents = [static(each.extent) for each in (*reduction.spatial, *reduction.reduced)]
    if None in extents or reduction.combine is None or not reduction.are_apart:
        return False
    if reduction.along_terms or not reduction.spatial or 0 in extents:
        return False
    tile = _Tile.of(reduction)
    # Where results alone keep the GPU busy, threads need not wait for each other.
    return tile.tiles <= _MAX_TILES and tile.parts > 1 and tile.tiles * 2 <= _BUSY_BLOCKS


def belongs(stage: Stage, written: Sequence[Any], results: int) -> bool:
    """Whether a stage has an element for each of some results, and reads of `written` its own.

    Parameters
    ----------
    stage : Stage
    written : sequence of Buffer
        What has an element for each result.
    results : int
        How many they are.
    """
    axes = stage.spatial
    if len(stage.stores) != 1 or any(axis.extent is None for axis in stage.axes):
        return False
    return volume(axes) == results and all(
        is_element(access, axes)
        for access in (*stage.stores, *stage.loads)
        if not isinstance(access, Load) or is_among(buffer_of(access), written)
    )


def is_element(access: Any, axes: Sequence[Axis]) -> bool:
    """Whether an access is of the element that has the number of the point of some axes."""
    shape = [static(extent) for extent in buffer_of(access).shape]
    if None in shape or math.prod(shape) != volume(axes):  # type: ignore[arg-type]
        return False
    analyzer = tvm.sym.Analyzer()
    point = index(0)
    for axis in axes:
        analyzer.bind(axis.var, tvm.ir.Range(0, axis.extent))
        point = point * axis.extent + index(axis.var)
    return bool(analyzer.can_prove_equal(_number(access), point))


def _number(access: Any) -> Any:
    """The number of the element that an access is of."""
    number = index(0)
    for at, extent in zip(access.indices, buffer_of(access).shape, strict=True):
        number = number * extent + index(at)
    return number


@dataclass(frozen=True)
class _Tile:
    """How the results and the terms of a reduction are shared by blocks and threads.

    Attributes
    ----------
    lanes : int
        Neighboring results of a thread.
    width : int
        Vectors of results of a block.
    groups : int
        Vectors of results in all.
    trips : int
        Terms of a thread at most.
    parts : int
        Blocks of a tile.
    terms : int
        Terms of a result.
    """

    lanes: int
    width: int
    groups: int
    trips: int
    parts: int
    terms: int

    @classmethod
    def of(cls, reduction: Reduction) -> _Tile:
        results = results_of(reduction)
        terms = math.prod(int(each.extent) for each in reduction.reduced)
        lanes = _lanes(reduction, results)
        groups = results // lanes
        width = min(_TILE, 1 << (groups - 1).bit_length())
        rows = THREADS // width
        wished = math.ceil(_BUSY_BLOCKS / math.ceil(groups / width))
        trips = max(math.ceil(terms / (wished * rows)), _MIN_TERMS)
        trips = min(trips, MAX_TERMS_PER_THREAD)
        return cls(lanes, width, groups, trips, math.ceil(terms / (trips * rows)), terms)

    @property
    def rows(self) -> int:
        """Terms that a block takes in at a time."""
        return THREADS // self.width

    @property
    def tiles(self) -> int:
        """How many tiles there are."""
        return math.ceil(self.groups / self.width)

    @property
    def results(self) -> int:
        """Results of a tile."""
        return self.width * self.lanes


def _lanes(reduction: Reduction, results: int) -> int:
    """How many neighboring results a thread has."""
    result = reduction.spatial[-1].loop_var
    if not any(stride(each, result) == 1 for each in reduction.loads):
        return 1
    # With as many results as fill a vector of masks, a thread would run out of registers.
    lanes = wide_lanes(each for each in reduction.loads if bits(str(each.source.dtype)) > 8)
    while results % lanes:
        lanes //= 2
    return lanes


def column_tiles(
    reduction: Reduction, samples: Sequence[Reduction], maps: Sequence[Companion], name: str
) -> tuple[Any, list[Any]]:
    """The launch that computes a reduction and what belongs to its results, and its own buffers.

    Parameters
    ----------
    reduction : Reduction
        One that `may_tile_columns`.
    samples : sequence of Reduction
        Each of few terms, with an element for each result, which it and the maps may read.
    maps : sequence of Companion
        In order; of results, of samples and of each other they read their own element.
    name : str
        Of the stage.
    """
    return _Launch(reduction, samples, maps, name).statement()


class _Launch:
    """Writes the launch of a tiled reduction."""

    def __init__(
        self,
        reduction: Reduction,
        samples: Sequence[Reduction],
        maps: Sequence[Companion],
        name: str,
    ):
        self._reduction, self._samples, self._maps = reduction, samples, maps
        self._tile = tile = _Tile.of(reduction)
        self._block, self._thread = variable("block"), variable("thread")
        self._tile_number = tirx.floormod(self._block, tile.tiles)
        self._part = tirx.floordiv(self._block, tile.tiles)
        self._row = tirx.floordiv(self._thread, tile.width)
        self._group = self._tile_number * tile.width + tirx.floormod(self._thread, tile.width)
        self._dtypes = [str(target.result.dtype) for target in reduction.targets]
        self._shared = [
            tirx.decl_buffer(
                [index(tile.rows), index(tile.results)], dtype, "shared", scope="shared"
            )
            for dtype in self._dtypes
        ]
        shape = [index(tile.parts), index(tile.groups * tile.lanes)]
        self._parts = [tirx.decl_buffer(shape, dtype, f"{name}_parts") for dtype in self._dtypes]

    def statement(self) -> tuple[Any, list[Any]]:
        """The launch, and the buffers of the parts."""
        tile = self._tile
        statements = [tirx.AllocBuffer(shared) for shared in self._shared]
        # How many terms a thread has may be unknown, but not how many it has at most.
        statements += self._reduced(self._of_terms(), tile.trips > SHORT_SUM)
        statements += self._combined(self._stored_parts)
        is_last = cuda_func_call(
            _ARRIVAL,
            self._tile_number.astype("int32"),
            tirx.const(tile.parts, "int32"),
            source_code=_ARRIVAL_SOURCE,
            return_type="int32",
        )
        is_long = tile.parts > _MAX_RUN * tile.rows
        ending = self._reduced(self._of_parts(), is_long) + self._combined(self._finished)
        statements.append(
            tirx.IfThenElse(is_last != tirx.const(0, "int32"), sequence(*ending), None)
        )
        inner = bound(self._thread, index(THREADS), "threadIdx.x", sequence(*statements))
        launch = bound(self._block, index(tile.tiles * tile.parts), "blockIdx.x", inner)
        return launch, self._parts

    def _of_terms(self) -> tuple[Any, Any, Any]:
        """The terms of a thread: how many, the number of one, and the function that takes it in."""
        tile = self._tile
        first = self._part * (tile.trips * tile.rows)
        trip = variable("trip")
        count: Any = index(tile.trips)
        if tile.terms % (tile.trips * tile.rows):
            left = tirx.min(index(tile.trips * tile.rows), tile.terms - first)
            count = tirx.floordiv(left - self._row + (tile.rows - 1), tile.rows)
        values = at_point(self._reduction.reduced, first + trip * tile.rows + self._row)

        def update(held: list[Any], lane: Any) -> list[Any]:
            at = {**values, **self._at_lane(lane)}
            return [substitute_values(value, at) for value in self._reduction.update(held)]

        return trip, count, update

    def _of_parts(self) -> tuple[Any, Any, Any]:
        """The parts that a thread of the last block combines, as `_of_terms`."""
        rows, parts = self._tile.rows, self._tile.parts
        trip = variable("trip")
        count: Any = index(parts // rows)
        if parts % rows:
            count = tirx.floordiv(index(parts) - self._row + (rows - 1), rows)
        combine = self._reduction.combine
        assert combine is not None

        def update(held: list[Any], lane: Any) -> list[Any]:
            result = self._group * self._tile.lanes + lane
            part = trip * rows + self._row
            return combine(held, [load(buffer, [part, result]) for buffer in self._parts])

        return trip, count, update

    def _reduced(self, terms: tuple[Any, Any, Any], in_blocks: bool) -> list[Any]:
        """The statements by which a thread reduces its terms, and shares what it has."""
        trip, count, update = terms
        lanes, lane = self._tile.lanes, variable("lane")
        held = [registers("held", (lanes,), dtype) for dtype in self._dtypes]
        values = update([load(b, [lane]) for b in held], lane)
        taken, sampled = self._sampled(values, self._group * lanes, lanes)
        known = {buffer: load(sample, [lane]) for buffer, sample in sampled.items()}
        values = [_read(value, known) for value in values]
        starts = [
            store(buffer, [lane], substitute_values(value, self._at_lane(lane)))
            for buffer, value in zip(held, self._reduction.initial, strict=True)
        ]
        updates = [store(b, [lane], value) for b, value in zip(held, values, strict=True)]
        summed = loop(trip, count, self._over_lanes(lane, updates))
        if in_blocks:
            summed = sum_in_blocks(summed, scope="local", total=None)
        at = tirx.floormod(self._thread, self._tile.width) * lanes + lane
        shared = [
            store(buffer, [self._row, at], load(mine, [lane]))
            for buffer, mine in zip(self._shared, held, strict=True)
        ]
        body = sequence(
            *taken,
            self._over_lanes(lane, starts),
            summed,
            self._over_lanes(lane, shared),
        )
        if self._tile.groups % self._tile.width:
            body = tirx.IfThenElse(self._group < self._tile.groups, body, None)
        return [*(tirx.AllocBuffer(buffer) for buffer in held), body, barrier()]

    def _at_lane(self, lane: Any) -> dict[Any, Any]:
        """The values of the loops over results at one of those of a thread."""
        return at_lane(self._reduction.spatial, self._group, lane, self._tile.lanes)

    def _over_lanes(self, lane: Any, statements: list[Any], lanes: int | None = None) -> Any:
        """Statements for each of some neighboring results, by default those of a thread."""
        return each_lane(lane, self._tile.lanes if lanes is None else lanes, statements)

    def _sampled(
        self, values: Sequence[Any], first: Any, lanes: int
    ) -> tuple[list[Any], dict[Any, Any]]:
        """The statements that take the samples which values read, and the registers of each.

        They are of so many results from the `first` on.
        """
        read = [buffer_of(each) for value in values for each in nodes_in(value, Load)]
        statements: list[Any] = []
        sampled: dict[Any, Any] = {}
        for sample in self._samples:
            (buffer,) = (target.result for target in sample.targets)
            if not is_among(buffer, read):
                continue
            held, lane = registers("sample", (lanes,), str(buffer.dtype)), variable("lane")
            at = at_point(sample.spatial, first + lane)
            start, term = (
                store(held, [lane], substitute_values(value, at))
                for (value,) in (sample.initial, sample.update([load(held, [lane])]))
            )
            body = self._over_lanes(lane, [term], lanes)
            for each in reversed(sample.reduced):
                body = own_loop(each.loop_var, each.extent, body, start=each.min)
            statements += [tirx.AllocBuffer(held), self._over_lanes(lane, [start], lanes), body]
            sampled[buffer] = held
        return statements, sampled

    def _combined(self, stored: Any) -> list[Any]:
        """The statements by which some threads combine what all of a block have, and store it."""
        tile, combine = self._tile, self._reduction.combine
        assert combine is not None
        totals = [registers("total", (1,), dtype) for dtype in self._dtypes]
        zero, row = [index(0)], variable("row")

        def shared(at: Any) -> list[Any]:
            return [load(buffer, [at, self._thread]) for buffer in self._shared]

        values = combine([load(total, zero) for total in totals], shared(row))
        added = sequence(*(store(t, zero, v) for t, v in zip(totals, values, strict=True)))
        result = self._tile_number * tile.results + self._thread
        body = sequence(
            *(store(t, zero, v) for t, v in zip(totals, shared(index(0)), strict=True)),
            loop(row, tile.rows - 1, added, start=1),
            *stored(result, [load(total, zero) for total in totals]),
        )
        condition = self._thread < tile.results
        if tile.groups % tile.width:
            condition = tirx.And(condition, result < tile.groups * tile.lanes)
        if tile.results < THREADS or tile.groups % tile.width:
            body = tirx.IfThenElse(condition, body, None)
        return [*(tirx.AllocBuffer(total) for total in totals), body]

    def _stored_parts(self, result: Any, totals: list[Any]) -> list[Any]:
        """The statements that store the part of a block."""
        pairs = zip(self._parts, totals, strict=True)
        return [store(buffer, [self._part, result], total) for buffer, total in pairs]

    def _finished(self, result: Any, totals: list[Any]) -> list[Any]:
        """The statements that store a result, and compute the maps of it."""
        statements: list[Any] = []
        known: dict[Any, Any] = {}
        for target, total in zip(self._reduction.targets, totals, strict=True):
            known[target.result] = total
            statements += target.stored(total)
        at_result = at_point(self._reduction.spatial, result)
        statements = [substitute_values(statement, at_result) for statement in statements]
        taken, sampled = self._sampled([each.store.value for each in self._maps], result, 1)
        statements += taken
        known.update({buffer: load(held, [index(0)]) for buffer, held in sampled.items()})
        for each in self._maps:
            buffer, at = each.store.buffer, at_point(each.loops, result)
            held = registers("mapped", (1,), str(buffer.dtype))
            # What it reads of registers depends on no loop's variable.
            value = _read(substitute_values(each.store.value, at), known)
            known[buffer] = load(held, [index(0)])
            statements += [tirx.AllocBuffer(held), store(held, [index(0)], value)]
            if each.is_stored:
                indices = [substitute_values(i, at) for i in each.store.indices]
                statements.append(store(buffer, indices, known[buffer]))
        return statements


def _read(value: Any, known: Mapping[Any, Any]) -> Any:
    """An expression with what registers hold in the place of loads from memory."""
    return replace_nodes(value, Load, lambda node: known.get(node.source, node))
