"""Reductions of windows: a thread computes neighboring results, and reads what these share once.

Windows that lie side by side read many elements in common: of a sum over 3 × 3 elements, four
neighbors read six in each row where each of them alone would read three. So a thread takes a tile
of neighbors along one axis. For each row of their windows it loads what any of them reads, and
then takes it in for all of them, from registers. What is outside of a tensor is not loaded.

Where neighboring channels are neighbors in memory, a thread has as many of them as fill wide
accesses, and the threads of a block have results of several rows, so that rows that their windows
share are read from a near cache.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.tirx import ForKind

from ...ir.kernel_structure import (
    Load,
    Stage,
    static,
    stride,
    substitute_values,
    uses,
)
from ...ir.loops import index, load, loop, registers, sequence, store, variable
from ...ir.tensor import bits
from ...ir.visits import nodes_in
from ..kernels.blocked_sums import SHORT_SUM
from .lanes import MIN_POINTS, each_lane, large, over_lanes, wide_lanes
from .reduction import Reduction
from .shared_loads import SharedLoads
from .threads import one_thread_per_point

_MAX_TERMS = 128
"""Terms of a window at most: one thread takes them all in."""

_MAX_SPAN = 16
"""Terms along the axis of a tile at most: they become straight code."""

_TILE_RESULTS = 32
"""Results of a thread that leave registers for what it reads."""

_MAX_NEIGHBORS = 8
"""Results along an axis that are wished for at most: more share little more."""

_MAX_SHARE = 0.75
"""How much of what each result alone would read a tile may read, to be worth it."""

_MAX_BLOCKED = 8
"""Rows, and vectors of neighbors, of a block's results: some kilobytes, and whole cache lines."""


def _is_windowed(access: Any, spatial: Sequence[Any], reduced: Sequence[Any]) -> bool:
    """Whether an index of an access depends on both a result and a term."""
    return any(
        any(uses(at, var) for var in spatial) and any(uses(at, var) for var in reduced)
        for at in access.indices
    )


def window_launch(reduction: Reduction, maps: Mapping[Any, Stage] | None = None) -> Any | None:
    """The launch of a reduction by tiles of results; None if neighbors share too little.

    Parameters
    ----------
    reduction : Reduction
    maps : mapping, optional
        Of tensors that it reads and that are in no memory, the maps that compute them. A thread
        computes an element once for all windows of its tile that share it.
    """
    maps = maps or {}
    tile = _tile(reduction, [load for stage in maps.values() for load in stage.loads])
    if tile is None:
        return None
    launch = _Launch(reduction, tile, maps).statement()
    return None if any(each.source in maps for each in nodes_in(launch, Load)) else launch


@dataclass(frozen=True)
class _Tile:
    """What a thread computes.

    Attributes
    ----------
    along : For
        The loop over results that neighbors are taken from.
    term : For
        The loop over terms by which their windows overlap.
    results : int
        Neighbors of a tile.
    lanes : int
        Results of each along the innermost loop, which are neighbors in memory.
    rows : list of For
        Other loops over results whose windows overlap.
    """

    along: Any
    term: Any
    results: int
    lanes: int
    rows: list[Any]


def _tile(reduction: Reduction, behind: Sequence[Any]) -> _Tile | None:
    """The tile that is worth it, if there is one; `behind` is what maps load for the reduction."""
    loops = [*reduction.spatial, *reduction.reduced]
    extents = [static(each.extent) for each in loops]
    if None in extents or any(static(each.min) != 0 for each in loops):
        return None
    if not reduction.reduced or not reduction.spatial:
        return None
    terms = math.prod(int(each.extent) for each in reduction.reduced)
    results = math.prod(int(each.extent) for each in reduction.spatial)
    # An index that is read is not known before.
    if (
        terms > _MAX_TERMS
        or results < MIN_POINTS
        or any(nodes_in(list(access.indices), Load) for access in reduction.loads)
    ):
        return None
    lanes = _lanes(reduction, results, behind)
    # Terms along the tile's axis are taken in last: where that changes their order, it must not
    # matter.
    overlapping = reduction.reduced if reduction.are_apart else reduction.reduced[-1:]
    axes = reduction.spatial[:-1] if lanes > 1 else reduction.spatial
    pairs = [
        (along, term)
        for along in reversed(axes)
        for term in reversed(overlapping)
        if int(along.extent) > 1
        and 1 < int(term.extent) <= _MAX_SPAN
        and any(_is_windowed(a, [along.loop_var], [term.loop_var]) for a in reduction.loads)
    ]
    is_worth_it = lanes > 1 and (bool(behind) or not reduction.are_apart)
    for along, term in pairs:
        number = _neighbors(int(along.extent), min(max(_TILE_RESULTS // lanes, 2), _MAX_NEIGHBORS))
        tile = _Tile(along, term, number, lanes, _unique(a for a, _ in pairs if a is not along))
        # Elsewhere a thread would have one result of those that depend on each other.
        if _share(reduction, tile) <= (1 if is_worth_it else _MAX_SHARE):
            return tile
    return None


def _unique(loops: Iterator[Any]) -> list[Any]:
    """Loops without those that come again."""
    return list({each.loop_var: each for each in loops}.values())


def _lanes(reduction: Reduction, results: int, behind: Sequence[Any]) -> int:
    """How many of so many results along the innermost loop a thread has.

    What is stored in single bytes does not decide: it is less than what windows read.
    """
    innermost = reduction.spatial[-1]
    terms = [each.loop_var for each in reduction.reduced]
    stores = [target.store for target in reduction.targets if target.store is not None]
    accesses = [*reduction.loads, *behind, *(s for s in stores if bits(str(s.buffer.dtype)) > 8)]
    if not any(stride(each, innermost.loop_var) == 1 for each in reduction.loads) or any(
        _is_windowed(each, [innermost.loop_var], terms) for each in reduction.loads
    ):
        return 1
    return math.gcd(wide_lanes(large(accesses, results)), int(innermost.extent))


def _neighbors(extent: int, wished: int) -> int:
    """How many results along an axis make a tile: a divisor of the extent, if one will do."""
    most = min(2 * wished, _MAX_NEIGHBORS)
    fitting = [n for n in range(most, 1, -1) if extent % n == 0]
    return wished if wished in fitting or not fitting else fitting[0]


def _share(reduction: Reduction, tile: _Tile) -> float:
    """How much of what each result alone would read in windows a tile reads."""
    analyzer = tvm.sym.Analyzer()
    group = variable("group")
    analyzer.bind(group, tvm.ir.Range(0, -(-int(tile.along.extent) // tile.results)))
    accesses = [
        each
        for each in reduction.loads
        if _is_windowed(each, [tile.along.loop_var], [tile.term.loop_var])
    ]
    read, alone = 0, 0
    for access in accesses:
        known: list[Any] = []
        for number in range(tile.results):
            for term in range(int(tile.term.extent)):
                at = {
                    tile.along.loop_var: group * tile.results + number,
                    tile.term.loop_var: index(term),
                }
                place = [analyzer.simplify(substitute_values(i, at)) for i in access.indices]
                alone += 1
                if not any(tvm_ffi.structural_equal(place, each) for each in known):
                    known.append(place)
        read += len(known)
    return read / alone


def blocked(each: Any, lanes: int, is_blocked: bool, outer: list[Any], inner: list[Any]) -> Any:
    """The number of a vector along a loop, from new loops over blocks of vectors and in a block.

    Parameters
    ----------
    each : For
    lanes : int
        Points of a vector; they divide those of the loop.
    is_blocked : bool
    outer, inner : list of For
        To which the loops over blocks, and in a block, are appended.
    """
    count = int(each.extent) // lanes
    near = max(n for n in range(1, _MAX_BLOCKED + 1) if count % n == 0) if is_blocked else 1
    number: Any = index(0)
    for part, into in ((count // near, outer), (near, inner)):
        if part > 1:
            into.append(loop(variable(each.loop_var.name), part, tirx.Evaluate(0)))
            number = number * part + into[-1].loop_var
    return number


class _Launch:
    """Writes the launch of a reduction by tiles."""

    def __init__(self, reduction: Reduction, tile: _Tile, maps: Mapping[Any, Stage]):
        self._reduction, self._tile, self._maps = reduction, tile, maps
        self._lane = variable("lane")
        self._group = loop(
            variable("group"), -(-int(tile.along.extent) // tile.results), tirx.Evaluate(0)
        )
        self._loops, self._values = self._blocked()
        self._analyzer = tvm.sym.Analyzer()
        for each in (*self._loops, *reduction.reduced):
            extent = tvm.ir.Range.from_min_extent(each.min, each.extent)
            self._analyzer.bind(each.loop_var, extent)
        self._analyzer.bind(self._lane, tvm.ir.Range(0, tile.lanes))
        dtypes = [str(target.result.dtype) for target in reduction.targets]
        size = tile.results * tile.lanes
        self._held = [registers("held", (size,), dtype) for dtype in dtypes]
        self._parts = [registers("part", (size,), dtype) for dtype in dtypes]

    def _blocked(self) -> tuple[list[Any], dict[Any, Any]]:
        """The loops whose points have a thread each, and the values of the reduction's in them.

        Neighboring threads have neighboring vectors, then rows, then tiles.
        """
        tile, spatial = self._tile, self._reduction.spatial
        outer: list[Any] = []
        inner: list[Any] = []
        values: dict[Any, Any] = {}
        for each in spatial:
            if each is tile.along:
                continue
            lanes = tile.lanes if each is spatial[-1] else 1
            is_blocked = tile.lanes > 1 and (lanes > 1 or each in tile.rows)
            number = blocked(each, lanes, is_blocked, outer, inner)
            values[each.loop_var] = number * lanes + (self._lane if lanes > 1 else 0)
        return [*outer, self._group, *inner], values

    def statement(self) -> Any:
        """The launch."""
        body = sequence(
            *(tirx.AllocBuffer(held) for held in self._held),
            *self._started(self._held),
            *self._reduced(),
            *self._stored(),
        )
        return one_thread_per_point(self._loops, body)

    def _at(self, number: Any) -> dict[Any, Any]:
        """The values of the reduction's loops over results, at one of a tile."""
        tile = self._tile
        return {
            **self._values,
            tile.along.loop_var: self._group.loop_var * tile.results + number,
        }

    def _each(self, statements: Sequence[Any]) -> Any:
        """Statements for each lane."""
        return each_lane(self._lane, self._tile.lanes, statements)

    def _held_at(self, held: Sequence[Any], number: int) -> list[Any]:
        """What a thread has of a result."""
        return [load(buffer, self._place(number)) for buffer in held]

    def _place(self, number: int) -> list[Any]:
        return [index(number * self._tile.lanes) + self._lane]

    def _written(self, held: Sequence[Any], number: int, values: Sequence[Any]) -> Any:
        """The statement that changes what a thread has of a result."""
        place = self._place(number)
        if self._reduction.are_apart:
            return self._each([store(b, place, v) for b, v in zip(held, values, strict=True)])
        # All are computed before any is stored: one reads another's.
        new = [tirx.Var("next", value.ty) for value in values]
        binds = [tirx.Bind(var, value) for var, value in zip(new, values, strict=True)]
        return self._each([*binds, *(store(b, place, v) for b, v in zip(held, new, strict=True))])

    def _started(self, held: Sequence[Any]) -> list[Any]:
        return [
            self._written(
                held,
                number,
                [substitute_values(v, self._at(number)) for v in self._reduction.initial],
            )
            for number in range(self._tile.results)
        ]

    def _reduced(self) -> list[Any]:
        """The statements that take all terms in.

        Long sums of rows are added up apart, so that they round as those of a tree do.
        """
        reduction, tile = self._reduction, self._tile
        outer = [each for each in reduction.reduced if each is not tile.term]
        terms = math.prod(int(each.extent) for each in reduction.reduced)
        in_parts = terms > SHORT_SUM and reduction.combine is not None and bool(outer)
        held = self._parts if in_parts else self._held
        statements = self._row(held)
        if in_parts:
            combine = reduction.combine
            assert combine is not None
            both = (
                combine(self._held_at(self._held, n), self._held_at(held, n))
                for n in range(tile.results)
            )
            added = [self._written(self._held, n, values) for n, values in enumerate(both)]
            allocated = [tirx.AllocBuffer(part) for part in held]
            statements = [*allocated, *self._started(held), *statements, *added]
        body = sequence(*statements)
        for each in reversed(outer):
            body = loop(each.loop_var, each.extent, body)
        return [body]

    def _row(self, held: Sequence[Any]) -> list[Any]:
        """The statements that take in all terms along the tile's axis."""
        tile = self._tile
        shared = SharedLoads(self._analyzer, self._lane, tile.lanes, self._maps)
        updates = []
        for term in range(int(tile.term.extent)):
            for number in range(tile.results):
                values = self._reduction.update(self._held_at(held, number))
                at = {**self._at(number), tile.term.loop_var: index(term)}
                values = [shared.read(substitute_values(value, at)) for value in values]
                updates.append(self._written(held, number, values))
        return [*shared.statements(), *updates]

    def _stored(self) -> list[Any]:
        """The statements that store what a thread has."""
        tile = self._tile
        extent = int(tile.along.extent)
        is_vector = tile.lanes == 1 and tile.along is self._reduction.spatial[-1]
        if is_vector and extent % tile.results == 0:
            own = variable("lane")
            stored = self._stores(own, [load(held, [own]) for held in self._held])
            stored = [substitute_values(each, {self._lane: index(0)}) for each in stored]
            return [over_lanes(own, tile.results, each) for each in stored]
        # One statement in a loop: what proves that a kernel may work in place looks for that.
        result = variable("result")
        held_at = [index(tile.lanes) * result + self._lane]
        stored = self._stores(result, [load(held, held_at) for held in self._held])
        statement = sequence(*(self._each([each]) for each in stored))
        if extent % tile.results:
            place = self._at(result)[tile.along.loop_var]
            statement = tirx.IfThenElse(place < extent, statement, None)
        return [loop(result, tile.results, statement, ForKind.UNROLLED)]

    def _stores(self, number: Any, values: Sequence[Any]) -> list[Any]:
        """The statements that store what there is of a result of a tile, for a lane."""
        return [
            substitute_values(each, self._at(number))
            for target, value in zip(self._reduction.targets, values, strict=True)
            for each in target.stored(value)
        ]
