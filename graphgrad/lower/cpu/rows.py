"""Rows: what a step of a loop accesses at one time, as buffers of their own.

Rows that were written before and the row that is written now are different buffers then, so that a
step is a kernel like any other. Of lanes that are shared by threads (see `lanes.py`), a row has
those of one thread alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlock

from ...ir.kernel_structure import Load, is_among, static, uses
from ...ir.visits import nodes_in
from ..kernels.local_values import restate_regions
from .buffer_views import BufferView


class Inseparable(Exception):
    """Stages between which rows cannot be told apart."""


@dataclass(frozen=True)
class Tile:
    """The lanes of one thread along an axis; in indices, they are ``start`` plus an iterator.

    Attributes
    ----------
    start : Var
    length : int
    """

    start: Any
    length: int


@dataclass(frozen=True)
class Rows:
    """Stages that access rows.

    Attributes
    ----------
    nests : list of Stmt
    internal : list of Buffer
        The buffers that no others access.
    views : list of BufferView
        The rows.
    """

    nests: list[Any]
    internal: list[Any]
    views: list[BufferView]


@dataclass(frozen=True)
class _Row:
    """The elements of a buffer at one time, in the lanes of one thread.

    Attributes
    ----------
    base : Buffer
    time : Expr or None
        The first index, if it depends on times; otherwise it is an index as the others are.
    tiles : tuple of Tile or None
        For each other index.
    buffer : Buffer
        What stands for them.
    """

    base: Any
    time: Any
    tiles: tuple[Tile | None, ...]
    buffer: Any

    def view(self) -> BufferView:
        """The row as a view of its base."""
        first = [] if self.time is None else [self.time]
        starts = [tile and tile.start for tile in self.tiles]

        def to_base(indices: Sequence[Any]) -> list[Any]:
            pairs = zip(starts, indices, strict=True)
            return [*first, *(i if start is None else start + i for start, i in pairs)]

        return BufferView(self.buffer, self.base, to_base)


def separate_rows(
    nests: Sequence[Any], internal: Sequence[Any], times: Sequence[Any], tiles: Sequence[Tile] = ()
) -> Rows:
    """Stages in which what is accessed at one time is a buffer of its own.

    Parameters
    ----------
    nests : sequence of Stmt
    internal : sequence of Buffer
        Those that no other stages access.
    times : sequence of Var
    tiles : sequence of Tile

    Raises
    ------
    Inseparable
        What one of them writes, another may access under another name; or a lane is accessed at
        another index than its own.
    """
    return _Separation(internal, times, tiles).rows(nests)


class _Separation:
    def __init__(self, internal: Sequence[Any], times: Sequence[Any], tiles: Sequence[Tile]):
        self._internal = internal
        self._times = times
        self._tiles = tiles
        self._rows: list[_Row] = []
        self._cut: dict[Any, Any] = {}
        self._others: list[Any] = []
        self._written: list[Any] = []
        # An exception would not come through the walk of a statement as it was raised.
        self._is_separable = True

    def rows(self, nests: Sequence[Any]) -> Rows:
        changes = [((Load, tirx.BufferStore), self._change), (SBlock, restate_regions)]
        changed = [tvm_ffi.structural_map(nest, changes) for nest in nests]
        if not self._is_separable:
            raise Inseparable
        self._check_apart()
        internal = [self._cut.get(buffer, buffer) for buffer in self._internal]
        return Rows(changed, internal, [row.view() for row in self._rows])

    def _change(self, node: Any) -> Any:
        is_store = isinstance(node, tirx.BufferStore)
        buffer = node.buffer if is_store else node.source
        indices = list(node.indices)
        is_internal = is_among(buffer, self._internal)
        time = None
        if not is_internal and len(indices) > 1 and _is_time(indices, self._times):
            time, *indices = indices
        tiles = tuple(map(self._tile_of, indices))
        if not self._is_separable:
            return node
        inner = [i if tile is None else i.b for i, tile in zip(indices, tiles, strict=True)]
        target = None
        if time is not None or any(tiles):
            if is_internal:
                buffer = self._cut.setdefault(buffer, _part(buffer, buffer.shape, tiles))
            else:
                target = self._row_of(buffer, time, tiles)
                buffer = target.buffer
        if target is None and not is_internal:
            self._others.append(buffer)
        if not is_store:
            return tirx.BufferLoad(buffer, inner)
        self._written.append(buffer if target is None else target)
        return tirx.BufferStore(buffer, node.value, inner)

    def _tile_of(self, index: Any) -> Tile | None:
        """The tile that an index walks through; none if it walks through all of an axis."""
        used = [tile for tile in self._tiles if uses(index, tile.start)]
        if not used:
            return None
        (tile,) = used[:1]
        is_plain = isinstance(index, tirx.Add) and index.a.same_as(tile.start)
        if len(used) > 1 or not is_plain or not isinstance(index.b, tvm.ir.Var):
            self._is_separable = False
        return tile

    def _row_of(self, buffer: Any, time: Any, tiles: tuple[Tile | None, ...]) -> _Row:
        for row in self._rows:
            if (
                row.base.same_as(buffer)
                and row.tiles == tiles
                and tvm_ffi.structural_equal(row.time, time)
            ):
                return row
        shape = list(buffer.shape)[time is not None :]
        self._rows.append(_Row(buffer, time, tiles, _part(buffer, shape, tiles)))
        return self._rows[-1]

    def _check_apart(self) -> None:
        """Raise unless what is written under one name is accessed under no other."""
        for target in self._written:
            if not isinstance(target, _Row):
                if any(row.base.same_as(target) for row in self._rows):
                    raise Inseparable
                continue
            if is_among(target.base, self._others):
                raise Inseparable
            for row in self._rows:
                is_other = row is not target and row.base.same_as(target.base)
                if is_other and not _differ(row.time, target.time):
                    raise Inseparable


def _part(buffer: Any, shape: Sequence[Any], tiles: Sequence[Tile | None]) -> Any:
    """A buffer for some lanes of another one, and for one time if `shape` is that of a row."""
    extents = [
        extent if tile is None else tirx.const(tile.length, str(extent.ty.dtype))
        for extent, tile in zip(shape, tiles, strict=True)
    ]
    return tirx.decl_buffer(extents, str(buffer.dtype), buffer.name)


def _is_time(indices: Sequence[Any], times: Sequence[Any]) -> bool:
    """Whether an access is at one time: the first index depends on times alone, and others not."""
    variables = nodes_in(indices[0], tvm.ir.Var)
    return (
        bool(variables)
        and all(is_among(var, times) for var in variables)
        and not nodes_in(indices[0], Load)
        and not any(uses(index, time) for index in indices[1:] for time in times)
    )


def _differ(a: Any, b: Any) -> bool:
    """Whether two times are never the same."""
    if a is None or b is None:
        return False
    analyzer = tvm.sym.Analyzer()
    modulus = None
    if isinstance(a, tirx.FloorMod) and isinstance(b, tirx.FloorMod):
        modulus = static(a.b)
        if modulus is None or static(b.b) != modulus:
            return False
        a, b = a.a, b.a
    distance = static(analyzer.simplify(a - b))
    return distance is not None and (distance % modulus if modulus else distance) != 0
