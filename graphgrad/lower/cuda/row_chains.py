"""Chains of stages that compute row by row, in one launch: softmax, norms, and their gradients.

A warp has a row, or a block a longer one. Its threads read neighboring vectors of the row, combine
what they reduce by shuffles, and keep what a later stage reads in registers: a tensor is read once,
and what is only between two stages is in no memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.tirx import ForKind

from ...ir.kernel_structure import Load, buffer_of, is_among, substitute_values, uses
from ...ir.loops import (
    bound,
    ceil_div,
    index,
    load,
    loop,
    registers,
    sequence,
    store,
    unravel,
    variable,
)
from ...ir.tensor import bits
from ...ir.visits import replace_nodes
from ...ir.warps import WARP
from ..cpu.rowwise import Chain, Part, Role
from ..cpu.tuning import Processor
from .lanes import over_lanes, wide_lanes
from .reduction import Reduction, reduction_of
from .rows import combined_in_warp
from .threads import THREADS, barrier

GPU = Processor(
    vector_bytes=16, registers=255, multiplies_pairs=False, row_bytes=1 << 20, is_gpu=True
)
"""What decides whether stages are a chain: a thread has vectors of 16 bytes."""

_MIN_ELEMENTS = 32
"""Elements of a row for which a warp is used."""

_MIN_THREADS = 1 << 14
"""Threads, at least, that a launch should have: a GPU has several times as many."""

_ROW_THREADS = (WARP, 128, 256, 512, 1024)
"""Threads that may have a row together."""

_KEPT_BYTES = dict.fromkeys(_ROW_THREADS, 256) | {1024: 96}
"""Bytes of a row, of all tensors together, that each of so many threads has registers for."""

_MOST_VECTORS = 64
"""Vectors of a row that a thread goes through at most, where it keeps none: they are read again
from a near cache by each stage."""


def row_chain(chain: Chain, blocks: Mapping[str, Any]) -> Any | None:
    """The launch that computes a chain; None if it has other stages than this is for.

    Parameters
    ----------
    chain : Chain
    blocks : dict
        Of the kernel's stages, by name.
    """
    try:
        return _Launch(chain, blocks).statement()
    except _UnfitError:
        return None


class _UnfitError(Exception):
    """A chain is not one that can be computed here."""


@dataclass(frozen=True)
class _Kept:
    """What registers hold of a row.

    Attributes
    ----------
    buffer : Buffer
        The tensor.
    position : Expr
        Of an element in it, by the row and the number of the element in the row.
    held : Buffer
    """

    buffer: Any
    position: Any
    held: Any


class _Launch:
    """Writes the launch of a chain."""

    def __init__(self, chain: Chain, blocks: Mapping[str, Any]):
        self._chain, self._blocks = chain, blocks
        self._row, self._element = variable("row"), variable("element")
        self._analyzer = tvm.sym.Analyzer()
        self._length = self._common_length()
        ranges = ((self._row, chain.rows), (self._element, self._length))
        for var, extent in ranges:
            self._analyzer.bind(var, tvm.ir.Range(0, index(extent)))
        self._walks = self._grouped()
        self._lanes = self._common_lanes()
        self._again = self._read_again()
        self._threads, self._keeps = self._shared_by()
        self._vectors = ceil_div(self._length // self._lanes, self._threads)
        self._thread = variable("thread")
        self._in_row = tirx.floormod(self._thread, self._threads)
        self._allocated: list[Any] = []
        self._numbers: dict[Any, Any] = {}
        self._kept: list[_Kept] = []

    def _common_length(self) -> int:
        """The elements of a row, which all stages along it have in common."""
        lengths = {_length(part) for part in self._chain.parts if part.inner}
        along = any(part.role is Role.ALONG for part in self._chain.parts)
        if len(lengths) != 1 or not along or self._chain.endings or self._chain.accesses.views:
            raise _UnfitError
        (length,) = lengths
        if length < _MIN_ELEMENTS:
            raise _UnfitError
        return length

    def _grouped(self) -> list[list[Part]]:
        """The stages, those together that one walk along the row can compute."""
        walks: list[list[Part]] = []
        sums: list[Any] = []  # complete only after the last walk
        for part in self._chain.parts:
            read = [buffer_of(each) for each in part.stage.loads]
            same = walks and bool(walks[-1][0].inner) == bool(part.inner)
            if not same or any(is_among(buffer, sums) for buffer in read):
                walks.append([])
                sums = []
            walks[-1].append(part)
            if part.role is Role.ALONG:
                sums += [each.buffer for each in part.stage.stores]
        return walks

    def _common_lanes(self) -> int:
        """Neighboring elements that a thread moves at once."""
        accesses = [
            access
            for part in self._chain.parts
            if part.inner
            for access in (*part.stage.loads, *part.stage.stores)
            if uses(self._position(access, part), self._element)
        ]
        lanes = wide_lanes(accesses)
        while self._length % lanes:
            lanes //= 2
        return lanes

    def _read_again(self) -> list[tuple[Any, Any]]:
        """The elements that several walks read, each as the tensor and the position in it."""
        written = list(self._chain.row_dimensions)
        first: list[tuple[Any, Any, int]] = []
        again: list[tuple[Any, Any]] = []
        for number, walk in enumerate(self._walks):
            for part in walk if walk[0].inner else ():
                for each in part.stage.loads:
                    buffer, position = buffer_of(each), self._position(each, part)
                    if is_among(buffer, written) or not uses(position, self._row):
                        continue  # What all rows read is in a near cache.
                    if not uses(position, self._element):
                        continue
                    known = [
                        walked
                        for other, at, walked in first
                        if other.same_as(buffer) and tvm_ffi.structural_equal(at, position)
                    ]
                    if not known:
                        first.append((buffer, position, number))
                    elif number not in known and not _is_known(again, buffer, position):
                        again.append((buffer, position))
        return again

    def _shared_by(self) -> tuple[int, bool]:
        """How many threads have a row, and whether they keep what is read again."""
        vectors = self._length // self._lanes
        made = [b for part in self._chain.parts if _is_row(part) for b in _stored(part)]
        must = sum(map(_size, made))
        may = sum(_size(buffer) for buffer, _ in self._again)
        for keeps in (True, False):
            for threads in _ROW_THREADS:
                elements = ceil_div(vectors, threads) * self._lanes
                if (
                    elements * (must + may * keeps) <= _KEPT_BYTES[threads]
                    and ceil_div(vectors, threads) <= _MOST_VECTORS
                    and self._chain.rows * threads >= _MIN_THREADS
                ):
                    return threads, keeps
        raise _UnfitError

    def statement(self) -> Any:
        """The launch."""
        statements = [each for walk in self._walks for each in self._walked(walk)]
        body = sequence(*(tirx.AllocBuffer(buffer) for buffer in self._allocated), *statements)
        # Where a row has several warps, these wait for each other, and no others are in the block.
        rows = THREADS // WARP if self._threads == WARP else 1
        block = variable("block")
        row = block * rows + tirx.floordiv(self._thread, self._threads)
        if self._chain.rows % rows:
            # Whole warps have no row, and wait for nobody.
            body = tirx.IfThenElse(row < self._chain.rows, body, None)
        body = substitute_values(body, {self._row: row})
        inner = bound(self._thread, index(rows * self._threads), "threadIdx.x", body)
        return bound(block, index(ceil_div(self._chain.rows, rows)), "blockIdx.x", inner)

    def _walked(self, walk: list[Part]) -> list[Any]:
        """The statements that compute stages of a walk, or the numbers of a row."""
        if not walk[0].inner:
            return [statement for part in walk for statement in self._number(part)]
        lane, vector = variable("lane"), variable("vector")
        at = vector * self._lanes + lane  # in the registers of a thread
        number = vector * self._threads + self._in_row
        self._fresh: list[Any] = []
        reductions: list[tuple[Part, Reduction, list[Any]]] = []
        body: list[Any] = []
        before: list[Any] = []
        for part in walk:
            if part.role is Role.MAP:
                body += self._mapped(part, at)
                continue
            reduction = self._reduction(part)
            held = [self._registers("held", t.result, self._lanes) for t in reduction.targets]
            reductions.append((part, reduction, held))
            before += [
                store(buffer, [index(i)], value)
                for buffer, value in zip(held, reduction.initial, strict=True)
                for i in range(self._lanes)
            ]
            values = reduction.update([load(buffer, [lane]) for buffer in held])
            body += [
                store(buffer, [lane], self._value(value, part, at))
                for buffer, value in zip(held, values, strict=True)
            ]
        body = [*self._fresh, *body]
        element = number * self._lanes + lane
        statement = substitute_values(sequence(*body), {self._element: element})
        statement = over_lanes(lane, self._lanes, statement)
        vectors = self._length // self._lanes
        if vectors % self._threads:
            statement = tirx.IfThenElse(number < vectors, statement, None)
        statement = loop(vector, self._vectors, statement, ForKind.UNROLLED)
        return [*before, statement, *(s for each in reductions for s in self._reduced(*each))]

    def _mapped(self, part: Part, at: Any) -> list[Any]:
        """The statements that compute an element of a map, keep it and store it."""
        (written,) = part.stage.stores
        held = self._registers("kept", written.buffer, self._vectors * self._lanes)
        value = self._value(part.value, part, at)
        self._kept.append(_Kept(written.buffer, self._position(written, part), held))
        statements = [store(held, [at], value)]
        if not is_among(written.buffer, self._chain.local):
            indices = [substitute_values(i, self._values(part)) for i in written.indices]
            statements.append(store(written.buffer, indices, load(held, [at])))
        return statements

    def _number(self, part: Part) -> list[Any]:
        """The statements that compute a number of each row, in all of its threads."""
        (written,) = part.stage.stores
        return self._known(part, written, self._value(part.value, part, index(0)))

    def _known(self, part: Part, written: Any, value: Any) -> list[Any]:
        """The statements that keep a number of a row, and store it if anything else reads it."""
        held = self._registers("number", written.buffer, 1)
        self._numbers[written.buffer] = held
        statements = [store(held, [index(0)], value)]
        if not is_among(written.buffer, self._chain.local):
            indices = [substitute_values(i, self._values(part)) for i in written.indices]
            stored = store(written.buffer, indices, load(held, [index(0)]))
            statements.append(tirx.IfThenElse(self._in_row == 0, stored, None))
        return statements

    def _reduced(self, part: Part, reduction: Reduction, held: list[Any]) -> list[Any]:
        """The statements that combine what the threads of a row have."""
        statements = combined_in_warp(reduction, held, self._lanes)
        values = [load(buffer, [index(0)]) for buffer in held]
        if self._threads > WARP:
            statements += self._across_warps(reduction, held)
        for written, value in zip(part.stage.stores, values, strict=True):
            statements += self._known(part, written, value)
        return statements

    def _across_warps(self, reduction: Reduction, held: list[Any]) -> list[Any]:
        """The statements by which each thread combines what the warps have, in their order."""
        warps = self._threads // WARP
        assert reduction.combine is not None
        parts = [
            tirx.decl_buffer([index(warps)], str(buffer.dtype), "parts", scope="shared")
            for buffer in held
        ]
        self._allocated += parts
        zero, warp = [index(0)], variable("warp")
        warp_of_thread = tirx.floordiv(self._in_row, WARP)
        mine = [store(p, [warp_of_thread], load(h, zero)) for p, h in zip(parts, held, strict=True)]
        totals = [load(buffer, zero) for buffer in held]
        values = reduction.combine(totals, [load(buffer, [warp]) for buffer in parts])
        added = [store(buffer, zero, value) for buffer, value in zip(held, values, strict=True)]
        return [
            tirx.IfThenElse(tirx.floormod(self._in_row, WARP) == 0, sequence(*mine), None),
            barrier(),
            *(store(buffer, zero, load(p, zero)) for buffer, p in zip(held, parts, strict=True)),
            loop(warp, warps - 1, sequence(*added), ForKind.UNROLLED, start=1),
        ]

    def _reduction(self, part: Part) -> Reduction:
        """A stage along the row as a reduction, in the variables of its axes."""
        loops = [loop(axis.var, axis.extent, tirx.Evaluate(0)) for axis in part.stage.axes]
        reduction = reduction_of(part.stage, loops, self._blocks[part.stage.name].block)
        if reduction.combine is None or not reduction.are_apart:
            raise _UnfitError
        return reduction

    def _value(self, value: Any, part: Part, at: Any) -> Any:
        """A value of a stage for the element of a thread, with registers in the place of memory."""
        written = list(self._chain.row_dimensions)

        def read(node: Any) -> Any:
            buffer = buffer_of(node)
            if buffer in self._numbers:
                return load(self._numbers[buffer], [index(0)])
            if buffer.scope() != "global":
                return node
            position = self._position(node, part)
            for kept in self._kept:
                if kept.buffer.same_as(buffer) and tvm_ffi.structural_equal(
                    kept.position, position
                ):
                    return load(kept.held, [at])
            if is_among(buffer, written):
                raise _UnfitError  # another element of the row, which another thread has
            if not self._keeps or not _is_known(self._again, buffer, position):
                return node
            held = self._registers("read", buffer, self._vectors * self._lanes)
            indices = [substitute_values(i, self._values(part)) for i in node.indices]
            self._kept.append(_Kept(buffer, position, held))
            self._fresh.append(store(held, [at], load(buffer, indices)))
            return load(held, [at])

        return substitute_values(replace_nodes(value, Load, read), self._values(part))

    def _values(self, part: Part) -> dict[Any, Any]:
        """The values of a stage's variables, by the row and the number of an element in it."""
        values = {axis.var: index(0) for axis in part.stage.axes}
        values |= zip(part.rows, unravel(self._row, self._chain.extents), strict=True)
        extents = [axis.extent or 0 for axis in part.inner]
        inner = [axis.var for axis in part.inner]
        values |= zip(inner, unravel(self._element, extents), strict=True)
        return {var: value.astype(str(var.ty.dtype)) for var, value in values.items()}

    def _position(self, access: Any, part: Part) -> Any:
        """The number of the element that an access is of."""
        position = index(0)
        for at, extent in zip(access.indices, buffer_of(access).shape, strict=True):
            position = position * index(extent) + index(at)
        return self._analyzer.simplify(substitute_values(position, self._values(part)))

    def _registers(self, name: str, buffer: Any, count: int) -> Any:
        held = registers(name, (count,), str(buffer.dtype))
        self._allocated.append(held)
        return held


def _length(part: Part) -> int:
    return math.prod(axis.extent or 0 for axis in part.inner)


def _is_row(part: Part) -> bool:
    """Whether a stage makes elements of a row, rather than numbers of it."""
    return bool(part.inner) and part.role is Role.MAP


def _stored(part: Part) -> list[Any]:
    return [each.buffer for each in part.stage.stores]


def _size(buffer: Any) -> int:
    return max(bits(str(buffer.dtype)) // 8, 4)  # registers are as wide


def _is_known(known: Sequence[tuple[Any, Any]], buffer: Any, position: Any) -> bool:
    return any(
        other.same_as(buffer) and tvm_ffi.structural_equal(at, position) for other, at in known
    )
