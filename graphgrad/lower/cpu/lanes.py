"""Lanes: axes along which the steps of a loop over time never read one another.

Such an axis is the batch of a recurrent network, or a channel of a selective scan: each stage of a
step computes a lane from the same lane of other stages and of the steps before. A thread can take
some of the lanes through all times. It waits for no other between two steps, and what it carries
from one to the next stays in its cache.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import Range
from tvm.s_tir import SBlock, SBlockRealize

from ...ir.kernel_rewrite import replace_block
from ...ir.kernel_structure import (
    ASSUMED_SYMBOLIC_EXTENT,
    Load,
    buffer_of,
    is_among,
    loop_nest,
    static,
    substitute_values,
    uses,
)
from ...ir.loops import ceil_div, loop, unravel, variable
from ...ir.visits import nodes_in, replace_nodes
from .buffer_views import block_of
from .rows import Tile
from .tuning import Processor

_PART_POINTS = 1 << 11
"""Points of a step that a thread takes at least: what one step costs beside its arithmetic, such as
the calls for inner buffers, is little then."""

_MIN_PRODUCT_LANES = 8
"""Lanes of a thread at least, where all of them are multiplied by the same factor: about the rows
of a contraction's tile in registers."""

_DATA_PARALLEL = int(tirx.IterVar.DataPar)


@dataclass(frozen=True)
class Split:
    """Lanes shared by threads.

    Attributes
    ----------
    nests : list of Stmt
        The stages of a step, over the lanes of one thread.
    tiles : list of Tile
        Those lanes, along each axis that is split.
    counts : list of int
        The number of parts along each of these axes.
    """

    nests: list[Any]
    tiles: list[Tile]
    counts: list[int]

    def around(self, body: Any, buffers: Sequence[Any]) -> Any:
        """A parallel loop over all parts around what a thread does for one.

        Parameters
        ----------
        body : Stmt
            It mentions the starts of the tiles.
        buffers : sequence of Buffer
            What is allocated for each part.
        """
        body = replace_nodes(body, tirx.For, _serial)
        dtype = str(self.tiles[0].start.ty.dtype)
        parts = math.prod(self.counts)
        dom = Range(tirx.const(0, dtype), tirx.const(parts, dtype))
        part = tirx.IterVar(dom, variable("part", dtype), tirx.IterVar.DataPar)
        places = unravel(part.var, self.counts)
        starts = {
            tile.start: place * tile.length for tile, place in zip(self.tiles, places, strict=True)
        }
        inside = SBlock(
            [part], [], [], "lanes", substitute_values(body, starts), alloc_buffers=list(buffers)
        )
        number = variable("part", dtype)
        nest = SBlockRealize([number], tirx.const(True, "bool"), inside)
        return loop(number, parts, nest, tirx.ForKind.PARALLEL)


def has_lanes(nests: Sequence[Any], times: Sequence[Any], processor: Processor) -> bool:
    """Whether a step has lanes, and what they share is little enough to be read by each thread.

    Parameters
    ----------
    nests, times, processor
        As in `split_lanes`.
    """
    step = _Step(nests)
    lanes = step.lanes()
    return bool(lanes) and step.shared(lanes, times)[0] <= processor.step_bytes


def split_lanes(nests: Sequence[Any], times: Sequence[Any], processor: Processor) -> Split | None:
    """The stages of a step over some of their lanes; None if that does not pay, or there are none.

    Parameters
    ----------
    nests : sequence of Stmt
        The stages of one step.
    times : sequence of Var
    processor : Processor
    """
    step = _Step(nests)
    lanes = step.lanes()
    return _split(nests, lanes, step.lengths(lanes, times, processor))


def split_into_vectors(nests: Sequence[Any], processor: Processor) -> Split | None:
    """Stages over vectors of their lanes; None if there are no lanes, or too few.

    Parameters
    ----------
    nests : sequence of Stmt
        Stages of which no step is worth a call, such as that for an inner buffer.
    processor : Processor
    """
    step = _Step(nests)
    lanes = step.lanes()
    return _split(nests, lanes, _lengths(lanes, processor.lanes(str(step.written[0].dtype))))


def _split(nests: Sequence[Any], lanes: Sequence[_Lane], lengths: Sequence[int]) -> Split | None:
    """Stages over so many of their lanes; None if these are all."""
    split = [
        (lane, length) for lane, length in zip(lanes, lengths, strict=True) if length < lane.extent
    ]
    dtypes = {str(lane.iterators[0].ty.dtype) for lane, _ in split}
    if len(dtypes) != 1:
        return None
    (dtype,) = dtypes
    tiles = [Tile(variable("lane", dtype), length) for _, length in split]
    changed = []
    for number, nest in enumerate(nests):
        iterators = [lane.iterators[number] for lane, _ in split]
        changed.append(_of_tiles(nest, dict(zip(iterators, tiles, strict=True))))
    return Split(changed, tiles, [lane.extent // length for lane, length in split])


@dataclass(frozen=True)
class _Lane:
    """An axis along which a step is independent.

    Attributes
    ----------
    extent : int
    iterators : list of Var
        The iterator of each stage that goes along it.
    side_by_side : int
        Bytes of an element where lanes are neighbors in all that is written, else 0.
    """

    extent: int
    iterators: list[Any]
    side_by_side: int


class _Step:
    """The stages of one step, and what they access."""

    def __init__(self, nests: Sequence[Any]):
        self.blocks = [block_of(nest) for nest in nests]
        self.accesses = [nodes_in(nest, (Load, tirx.BufferStore)) for nest in nests]
        stores = [store for nest in nests for store in nodes_in(nest, tirx.BufferStore)]
        self.written = [store.buffer for store in stores]

    def lanes(self) -> list[_Lane]:
        """The axes along which stages read no other lanes, in the order of the first stage."""
        found = [self._lane(axis.var) for axis in self.blocks[0].iter_vars]
        return [lane for lane in found if lane]

    def _lane(self, first: Any) -> _Lane | None:
        """The lanes that an iterator of the first stage goes along, if they are independent."""
        iterators: dict[int, Any] = {}
        dimensions: dict[Any, int] = {}
        due = [(0, first)]
        while due:
            number, iterator = due.pop()
            if number in iterators:
                if not iterators[number].same_as(iterator):
                    return None
                continue
            iterators[number] = iterator
            for access in self.accesses[number]:
                buffer = buffer_of(access)
                if not is_among(buffer, self.written):
                    continue
                dimension = _dimension(access, iterator)
                if dimension is None or dimensions.get(buffer, dimension) != dimension:
                    return None
                if buffer not in dimensions:
                    dimensions[buffer] = dimension
                    due += self._iterators_at(buffer, dimension)
        extents = {self._extent(number, iterator) for number, iterator in iterators.items()}
        dtypes = {str(iterator.ty.dtype) for iterator in iterators.values()}
        if len(iterators) < len(self.blocks) or len(extents) != 1 or len(dtypes) != 1:
            return None
        (extent,) = extents
        if not extent:
            return None
        is_last = all(d == len(buffer.shape) - 1 for buffer, d in dimensions.items())
        widths = [tvm.DataType(str(buffer.dtype)).itemsize for buffer in dimensions]
        return _Lane(
            extent,
            [iterators[number] for number in range(len(self.blocks))],
            min(widths) if is_last else 0,
        )

    def _iterators_at(self, buffer: Any, dimension: int) -> list[tuple[int, Any]]:
        """What the stages that access a buffer have as an index of it."""
        return [
            (number, access.indices[dimension])
            for number, accesses in enumerate(self.accesses)
            for access in accesses
            if buffer_of(access).same_as(buffer)
        ]

    def _extent(self, number: int, iterator: Any) -> int | None:
        """The extent of an iterator of a stage; None unless it goes over a static range from 0."""
        for axis in self.blocks[number].iter_vars:
            if axis.var.same_as(iterator) and int(axis.iter_type) == _DATA_PARALLEL:
                return static(axis.dom.extent) if static(axis.dom.min) == 0 else None
        return None

    def lengths(
        self, lanes: Sequence[_Lane], times: Sequence[Any], processor: Processor
    ) -> list[int]:
        """How many lanes along each axis a thread is to take; all where they are not to be split.

        Parameters
        ----------
        lanes : sequence
        times : sequence of Var
        processor : Processor
        """
        whole = [lane.extent for lane in lanes]
        shared, is_product = self.shared(lanes, times)
        if shared > processor.step_bytes:
            return whole
        points = sum(map(_points, self.blocks))
        needed = ceil_div(_PART_POINTS * math.prod(whole), max(points, 1))
        if is_product:
            needed = max(needed, _MIN_PRODUCT_LANES)
        return _lengths(lanes, needed, processor.line_bytes)

    def shared(self, lanes: Sequence[_Lane], times: Sequence[Any]) -> tuple[int, bool]:
        """Bytes that all lanes read alike in each step, and whether they are multiplied by them."""
        shared: dict[Any, int] = {}
        is_product = False
        for number, accesses in enumerate(self.accesses):
            variables = [*times, *(lane.iterators[number] for lane in lanes)]
            for access in accesses:
                buffer = buffer_of(access)
                if is_among(buffer, self.written) or any(uses(access, var) for var in variables):
                    continue
                is_product = is_product or self.blocks[number].init is not None
                item = tvm.DataType(str(buffer.dtype)).itemsize
                shared[buffer] = item * math.prod(
                    static(n) or ASSUMED_SYMBOLIC_EXTENT for n in buffer.shape
                )
        return sum(shared.values()), is_product


def _lengths(lanes: Sequence[_Lane], needed: int, line_bytes: int = 0) -> list[int]:
    """How many lanes along each axis make as many as are needed, or all there are.

    No thread writes to a part of a cache line of `line_bytes` only.
    """
    lengths: list[int] = []
    for lane in reversed(lanes):
        in_line = line_bytes // lane.side_by_side if lane.side_by_side else 1
        least = min(max(needed, in_line), lane.extent)
        lengths.insert(0, _least_divisor(lane.extent, least))
        needed = ceil_div(needed, lengths[0])
    return lengths


def _least_divisor(number: int, least: int) -> int:
    """The least divisor that is no less than another number."""
    return next(n for n in range(least, number + 1) if number % n == 0)


def _dimension(access: Any, iterator: Any) -> int | None:
    """The only dimension that an access indexes by an iterator, and by that iterator alone."""
    used = [d for d, index in enumerate(access.indices) if uses(index, iterator)]
    if len(used) != 1 or not access.indices[used[0]].same_as(iterator):
        return None
    return used[0]


def _points(block: SBlock) -> int:
    """How often a block is evaluated; an extent that is symbolic counts as a long one."""
    return math.prod(static(axis.dom.extent) or ASSUMED_SYMBOLIC_EXTENT for axis in block.iter_vars)


def _of_tiles(nest: Any, tiles: dict[Any, Tile]) -> Any:
    """A stage over the lanes of one thread, by its iterators."""
    loops, realize = loop_nest(nest) or ([], None)
    assert realize is not None
    outer = realize.block
    axes, lengths = [], {}
    for axis, value in zip(outer.iter_vars, realize.iter_values, strict=True):
        tile, dom = tiles.get(axis.var), axis.dom
        if tile is not None:
            lengths[value] = tile.length
            dom = Range(dom.min, tirx.const(tile.length, str(dom.extent.ty.dtype)))
        axes.append(tirx.IterVar(dom, axis.var, axis.iter_type))
    shifted = {var: tile.start + var for var, tile in tiles.items()}
    init = None if outer.init is None else substitute_values(outer.init, shifted)
    body = substitute_values(outer.body, shifted)
    block = replace_block(outer, iter_vars=axes, body=body, init=init, reads=[], writes=[])
    nest = SBlockRealize(realize.iter_values, realize.predicate, block)
    for each in reversed(loops):
        extent = lengths.get(each.loop_var, each.extent)
        nest = loop(each.loop_var, extent, nest, each.kind, each.min)
    return nest


def _serial(node: Any) -> Any:
    """A loop that threads do not share."""
    if node.kind != tirx.ForKind.PARALLEL:
        return node
    return loop(node.loop_var, node.extent, node.body, start=node.min)
