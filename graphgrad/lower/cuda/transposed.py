"""Maps that read a tensor across the order in which they write theirs: tiles in shared memory.

Where neighbors of the result are far apart in a tensor that is read, threads that compute neighbors
fetch a whole sector of memory for each element. So a block first moves a tile of the tensor to
shared memory, in the order of that tensor, and then computes the elements of the tile in the order
of the result: both ends move 16 bytes at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.tirx import ForKind

from ...ir.kernel_structure import Load, Stage, buffer_of, same_indices, static, substitute_values
from ...ir.loops import bound, ceil_div, index, load, loop, sequence, store, unravel, variable
from ...ir.tensor import bits
from ...ir.visits import replace_nodes
from ...ir.warps import WARP
from .lanes import MIN_POINTS, is_vector_dtype, over_lanes, wide_lanes
from .threads import THREADS, at_point, barrier

_EDGES = (64, 32)
"""Elements along either side of a tile: the longest that leaves room for several blocks."""

_MIN_EDGE = 16
"""Elements along an axis from which on it is worth a side of a tile."""

_MAX_TILE_BYTES = 36 << 10
"""Shared memory of a block: a multiprocessor has room for several such."""

_PADDING = 2
"""Elements behind each row of a tile, so that neither rows nor columns fall on few banks."""

_READ_RUN, _WRITE_RUN = 128, 64
"""Bytes that neighboring threads of a warp move of one row, as they fill a tile and empty it: whole
sectors of memory. The others have rows below it, so that a column falls on many banks."""


@dataclass(frozen=True)
class _Axis:
    """Loops that all accesses walk through as one.

    Attributes
    ----------
    loops : list of For
        Outermost first.
    strides : list of int or None
        By access, how far it moves in memory with each step; None if that is no constant.
    """

    loops: list[Any]
    strides: list[int | None]

    @property
    def extent(self) -> int:
        """Its points."""
        return math.prod(int(each.extent) for each in self.loops)


@dataclass(frozen=True)
class _Tile:
    """A load that goes by way of shared memory.

    Attributes
    ----------
    load : TensorLoad
        In the variables of the stage's loops.
    lanes : int
        Neighboring elements that a thread moves at once.
    buffer : Buffer
        In shared memory: a row for each of the neighbors in the result.
    """

    load: Any
    lanes: int
    buffer: Any


def transposed_launch(stage: Stage, loops: Sequence[Any], realize: Any) -> Any | None:
    """The launch of a map by tiles; None if it reads no large tensor across its result's order."""
    if None in (axis.extent for axis in stage.axes) or any(static(each.min) != 0 for each in loops):
        return None
    if stage.work < MIN_POINTS:
        return None
    variables = [iterator.var for iterator in realize.block.iter_vars]
    values = dict(zip(variables, realize.iter_values, strict=True))
    body = substitute_values(realize.block.body, values)
    (stored,) = (substitute_values(each, values) for each in stage.stores)
    loads: list[Any] = []
    for each in stage.loads:
        in_loops = substitute_values(each, values)
        if not any(tvm_ffi.structural_equal(in_loops, known) for known in loads):
            loads.append(in_loops)
    analyzer = tvm.sym.Analyzer()
    for each in loops:
        analyzer.bind(each.loop_var, tvm.ir.Range.from_min_extent(each.min, each.extent))
    axes = _axes(loops, [stored, *loads], analyzer)
    down = next((axis for axis in axes if axis.strides[0] == 1), None)
    if down is None or down.extent < _MIN_EDGE or not is_vector_dtype(stored.buffer):
        return None
    for along in axes:
        if along is not down and along.extent >= _MIN_EDGE:
            turned = [
                i
                for i, each in enumerate(loads, 1)
                if along.strides[i] == 1
                and (down.strides[i] or 0) > 1
                and is_vector_dtype(each.source)
                and _is_inside(each, analyzer)
            ]
            sizes = sum(_size(loads[i - 1]) for i in turned)
            edge = next((n for n in _EDGES if n * (n + _PADDING) * sizes <= _MAX_TILE_BYTES), None)
            if turned and edge is not None:
                launch = _Launch(loops, axes, along, down, [stored, *loads], turned, edge, body)
                return launch.statement()
    return None


def _axes(loops: Sequence[Any], accesses: Sequence[Any], analyzer: Any) -> list[_Axis]:
    """The loops of more than one trip, neighboring ones together where all accesses allow it."""
    variables = [each.loop_var for each in loops]
    by_access = [_coefficients(access, variables, analyzer) for access in accesses]
    axes: list[_Axis] = []
    for i, each in enumerate(loops):
        if int(each.extent) == 1:
            continue
        own = _Axis([each], [None if c is None else c[i] for c in by_access])
        if axes and all(
            outer is None or inner is None or outer == inner * own.extent
            for outer, inner in zip(axes[-1].strides, own.strides, strict=True)
        ):
            own = _Axis([*axes.pop().loops, each], own.strides)
        axes.append(own)
    return axes


def _coefficients(access: Any, variables: list[Any], analyzer: Any) -> list[int] | None:
    """By variable how far an access moves, and where it begins; None if that is not linear."""
    position = index(0)
    for at, extent in zip(access.indices, buffer_of(access).shape, strict=True):
        if static(extent) is None:
            return None
        position = position * index(int(extent)) + index(at)
    equation = tvm.sym.detect_linear_equation(analyzer.simplify(position), variables)
    known = [static(each) for each in equation]
    return None if not known or None in known else known  # type: ignore[return-value]


def _is_inside(load: Any, analyzer: Any) -> bool:
    """Whether a load is inside its tensor at all points, also where a choice leaves it out."""
    return all(
        analyzer.can_prove(tirx.And(at >= 0, at < extent))
        for at, extent in zip(load.indices, load.source.shape, strict=True)
    )


class _Launch:
    """Writes the launch of a map by tiles."""

    def __init__(
        self,
        loops: Sequence[Any],
        axes: Sequence[_Axis],
        along: _Axis,
        down: _Axis,
        accesses: Sequence[Any],
        turned: Sequence[int],
        edge: int,
        body: Any,
    ):
        self._start = {each.loop_var: index(0) for each in loops}
        self._axes, self._along, self._down, self._body = axes, along, down, body
        self._others = [axis for axis in axes if axis is not along and axis is not down]
        self._block, self._thread = variable("block"), variable("thread")
        self._width, self._height = (_side(axis, edge) for axis in (along, down))
        self._tiles = [self._tile(accesses[i], i) for i in turned]
        self._stored_lanes = self._lanes(down, 0, accesses)
        self._size = _size(accesses[0])
        counts = [axis.extent for axis in self._others]
        counts += [ceil_div(along.extent, self._width), ceil_div(down.extent, self._height)]
        self._blocks = math.prod(counts)
        *self._at, across, below = unravel(self._block, counts)
        self._first = {id(along): across * self._width, id(down): below * self._height}

    def _tile(self, access: Any, number: int) -> _Tile:
        shape = [index(self._height), index(self._width + _PADDING)]
        buffer = tirx.decl_buffer(shape, str(access.source.dtype), "tile", scope="shared")
        return _Tile(access, self._lanes(self._along, number, [access]), buffer)

    def _lanes(self, axis: _Axis, access: int, like: Sequence[Any]) -> int:
        """How many neighbors along an axis an access moves at once; so many divide its steps."""
        lanes = wide_lanes(like)
        others = [a.strides[access] for a in self._axes if a is not axis]
        steps = [axis.extent, self._width, self._height, *(each or 0 for each in others)]
        while any(step % lanes for step in steps):
            lanes //= 2
        return lanes

    def statement(self) -> Any:
        """The launch."""
        statements = [tirx.AllocBuffer(tile.buffer) for tile in self._tiles]
        statements += [self._filled(tile) for tile in self._tiles]
        statements += [barrier(), self._emptied()]
        inner = bound(self._thread, index(THREADS), "threadIdx.x", sequence(*statements))
        return bound(self._block, index(self._blocks), "blockIdx.x", inner)

    def _filled(self, tile: _Tile) -> Any:
        """The statement that moves a tile to shared memory, in the order of its tensor."""
        lanes = tile.lanes

        def moved(row: Any, vector: Any) -> Any:
            lane = variable("lane")
            column = vector * lanes + lane
            values = self._values(column, row)
            value = substitute_values(tile.load, values)
            return over_lanes(lane, lanes, store(tile.buffer, [row, column], value))

        run = _READ_RUN // (lanes * _size(tile.load))
        return self._walked(self._along, self._width, lanes, self._down, self._height, run, moved)

    def _emptied(self) -> Any:
        """The statement that computes the elements of a tile, in the order of the result."""
        lanes = self._stored_lanes

        def computed(column: Any, vector: Any) -> Any:
            lane = variable("lane")
            row = vector * lanes + lane

            def read(node: Any) -> Any:
                for tile in self._tiles:
                    if node.source.same_as(tile.load.source) and same_indices(node, tile.load):
                        return load(tile.buffer, [row, column])
                return node

            body = replace_nodes(self._body, Load, read)
            return over_lanes(lane, lanes, substitute_values(body, self._values(column, row)))

        run = _WRITE_RUN // (lanes * self._size)
        return self._walked(
            self._down, self._height, lanes, self._along, self._width, run, computed
        )

    def _values(self, column: Any, row: Any) -> dict[Any, Any]:
        """The values of the loops' variables at an element of the block's tile."""
        values = dict(self._start)
        for axis, at in zip(self._others, self._at, strict=True):
            values |= at_point(axis.loops, at)
        for axis, at in ((self._along, column), (self._down, row)):
            values |= at_point(axis.loops, self._first[id(axis)] + at)
        return values

    def _walked(
        self, inner: _Axis, length: int, lanes: int, outer: _Axis, rows: int, run: int, body: Any
    ) -> Any:
        """The statement by which threads do something with all vectors of a tile.

        Parameters
        ----------
        inner, outer : _Axis
            Those along vectors, and across them.
        length, rows : int
            Of the tile, along the two.
        lanes : int
            Elements of a vector.
        run : int
            Vectors side by side that neighboring threads have.
        body : function
            From the numbers of a row and of a vector in it to a statement.
        """
        vectors = length // lanes
        # A vector may be longer than the run, and the tile lower than what is left of a warp.
        run = max(min(run, vectors, WARP), 1)
        trip = variable("trip")
        count = vectors * rows
        number = trip * THREADS + self._thread
        depth = min(WARP // run, rows)
        high, far, low, near = unravel(number, [rows // depth, vectors // run, depth, run])
        row, vector = high * depth + low, far * run + near
        statement = body(row, vector)
        within = [
            self._first[id(axis)] + at < axis.extent
            for axis, side, at in ((inner, length, vector * lanes), (outer, rows, row))
            if axis.extent % side
        ]
        if count < THREADS:
            within.append(self._thread < count)
        for condition in within:
            statement = tirx.IfThenElse(condition, statement, None)
        return loop(trip, max(count // THREADS, 1), statement, ForKind.UNROLLED)


def _side(axis: _Axis, edge: int) -> int:
    """The elements of a tile along an axis."""
    return min(edge, 1 << (axis.extent - 1).bit_length())


def _size(access: Any) -> int:
    return bits(str(buffer_of(access).dtype)) // 8
