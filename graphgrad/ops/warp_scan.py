"""Running sums and products on a GPU, where an axis is long: by warps, and by parts of the axis.

A warp scans 32 neighboring elements at a time. In five steps its threads exchange the total of what
they have with those at a distance: by each step blocks twice as long have been combined, and the
later half of a block takes in what the earlier one has. What a warp has in all it carries on to the
next 32 elements.

    for b in 1, 2, 4, 8, 16:                        total and prefix of each thread
      other = total of the thread at distance b
      if this thread is in the later half: prefix = other ∘ prefix, total = other ∘ total
      else:                                total = total ∘ other

Where there are few rows, each is cut into parts. A first launch finds the total of each part, a
second scans the totals, and a third scans the parts from there on (*reduce, then scan*). Which
elements make a part depends on the shape alone, so that all runs give the same bits.

Merrill and Grimshaw, *Parallel Scan for Stream Architectures* (2009).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import te, tirx

from ..ir.kernel_structure import static
from ..ir.loops import (
    Statement,
    index,
    load,
    parallel,
    registers,
    sequence,
    serial,
    store,
    unravel,
)
from ..ir.warps import WARP, shuffled
from .opaque_kernel import extern, for_gpu

_MIN_LENGTH = 2 * WARP
"""Elements along the axis for which a warp is used."""

_MANY_THREADS = 1 << 14
"""Rows side by side in memory that keep a GPU busy with a thread each."""

_BUSY_WARPS = 1 << 12
"""Warps that keep a large GPU busy."""

_MIN_PART = 1024
"""Elements of a part: fewer are not worth its total."""


@dataclass(frozen=True)
class WarpScan:
    """Running sums or products along an axis.

    Attributes
    ----------
    axis : int
    fold : function
        Combines two numbers, the earlier one first.
    identity : number
    exclusive, reverse : bool
        Whether an element itself counts; whether elements come last to first.
    carried : str
        The dtype of what is carried along.
    """

    axis: int
    fold: Callable[[Any, Any], Any]
    identity: int
    exclusive: bool
    reverse: bool
    carried: str

    def pays(self, shape: Sequence[Any]) -> bool:
        """Whether a tensor is scanned by warps: for a GPU, along a long axis of few rows."""
        extents = [static(extent) for extent in shape]
        if not for_gpu() or None in extents or 0 in extents:
            return False
        length, behind = extents[self.axis], math.prod(extents[self.axis + 1 :])  # type: ignore[arg-type]
        rows = math.prod(extents) // length  # type: ignore[arg-type,operator]
        are_apart = behind > 1 and rows >= _MANY_THREADS
        return length >= _MIN_LENGTH and not are_apart  # type: ignore[operator]

    def of(self, x: te.Tensor, dtype: str) -> te.Tensor:
        """The scanned tensor; its shape is known."""
        shape = [int(extent) for extent in x.shape]
        length = shape[self.axis]
        rows = math.prod(shape) // length
        wished = min(math.ceil(_BUSY_WARPS / rows), length // _MIN_PART)
        part = math.ceil(math.ceil(length / max(wished, 1)) / WARP) * WARP
        parts = math.ceil(length / part)
        inputs = [x] if parts == 1 else [x, self._starts(x, parts, part)]

        def scanned(ins: Sequence[Any], outs: Sequence[Any]) -> Statement:
            def each(at: Callable[[Any], list[Any]], number: list[Any], chunk: _Chunk) -> Statement:
                prefix = self.fold(load(chunk.carry, _FIRST), load(chunk.prefix, _FIRST))
                stored = store(outs[0], at(chunk.place), prefix.astype(dtype))
                return sequence(
                    *chunk.scan(self, not self.exclusive), chunk.within(stored), chunk.advance(self)
                )

            def start(number: list[Any]) -> Any:
                return load(ins[1], number) if len(ins) > 1 else self._neutral

            return self._over_parts(ins[0], (parts, part), start, each)

        (result,) = extern("scanned", [x.shape], [dtype], inputs, scanned)
        return result

    def _starts(self, x: te.Tensor, parts: int, part: int) -> te.Tensor:
        """What comes before each part of each row."""
        shape = [int(extent) for extent in x.shape]
        shape[self.axis] = parts

        def totals(ins: Sequence[Any], outs: Sequence[Any]) -> Statement:
            def each(at: Callable[[Any], list[Any]], number: list[Any], chunk: _Chunk) -> Statement:
                last = chunk.number == part // WARP - 1
                stored = store(outs[0], number, load(chunk.carry, _FIRST))
                return sequence(
                    *chunk.scan(self, False),
                    chunk.advance(self),
                    tirx.IfThenElse(tirx.And(last, chunk.lane == 0), stored, None),
                )

            return self._over_parts(ins[0], (parts, part), lambda _: self._neutral, each)

        (total,) = extern("totals", [shape], [self.carried], [x], totals)
        before = WarpScan(self.axis, self.fold, self.identity, True, self.reverse, self.carried)
        return before.of(total, self.carried)

    @property
    def _neutral(self) -> Any:
        return tirx.const(self.identity, self.carried)

    def _over_parts(
        self,
        x: Any,
        cut: tuple[int, int],
        start: Callable[[list[Any]], Any],
        each: Callable[..., Statement],
    ) -> Statement:
        """The loops over parts and over chunks of them, with a warp for each part.

        Parameters
        ----------
        x : Buffer
        cut : (int, int)
            How many parts, and of how many elements.
        start : function
            From the indices of a part to what comes before it.
        each : function
            From a function that makes indices of a place along the axis, those of the part, and a
            chunk, to what is done with the chunk.
        """
        parts, part = cut
        shape = [int(extent) for extent in x.shape]
        length = shape[self.axis]
        free = [n for axis, n in enumerate(shape) if axis != self.axis]

        def thread(number: Any) -> Statement:
            *outer, p, lane = unravel(number, [*free, parts, WARP])

            def at(place: Any) -> list[Any]:
                return [*outer[: self.axis], place, *outer[self.axis :]]

            def turned(place: Any, extent: int) -> Any:
                return index(extent - 1) - place if self.reverse else place

            of_part = at(turned(p, parts))
            carry, prefix, total, other = (
                registers(name, (1,), self.carried)
                for name in ("carry", "prefix", "total", "other")
            )

            def chunk(n: Any) -> Statement:
                place = p * part + n * WARP + lane
                is_inside = place < length
                element = load(x, at(turned(place, length))).astype(self.carried)
                own = tirx.if_then_else(is_inside, element, self._neutral)
                work = _Chunk(
                    n, lane, turned(place, length), is_inside, own, carry, prefix, total, other
                )
                return each(at, of_part, work)

            return sequence(
                *(tirx.AllocBuffer(buffer) for buffer in (carry, prefix, total, other)),
                store(carry, _FIRST, start(of_part)),
                serial(part // WARP, chunk),
            )

        return parallel(math.prod(free) * parts * WARP, thread)


_FIRST = [index(0)]


@dataclass(frozen=True)
class _Chunk:
    """The 32 elements that a warp scans at a time.

    Attributes
    ----------
    number, lane : Expr
        Of the chunk in its part, and of the thread in its warp.
    place : Expr
        The index of the thread's element along the axis.
    inside : Expr
        Whether there is such an element.
    own : Expr
        The element, or the identity.
    carry, prefix, total, other : Buffer
        A thread's registers: what comes before the chunk; what is before its element, or up to it;
        what a block of threads has in all; and what another block has.
    """

    number: Any
    lane: Any
    place: Any
    inside: Any
    own: Any
    carry: Any
    prefix: Any
    total: Any
    other: Any

    def scan(self, how: WarpScan, inclusive: bool) -> list[Statement]:
        """The statements that scan the elements."""
        total, prefix, other = (load(b, _FIRST) for b in (self.total, self.prefix, self.other))
        neutral = tirx.const(how.identity, how.carried)
        statements = [
            store(self.total, _FIRST, self.own),
            store(self.prefix, _FIRST, total if inclusive else neutral),
        ]
        distance = 1
        while distance < WARP:
            is_later = tirx.floormod(tirx.floordiv(self.lane, distance), 2) == 1
            statements += [
                store(self.other, _FIRST, shuffled(total, distance)),
                store(self.prefix, _FIRST, tirx.Select(is_later, how.fold(other, prefix), prefix)),
                store(
                    self.total,
                    _FIRST,
                    tirx.Select(is_later, how.fold(other, total), how.fold(total, other)),
                ),
            ]
            distance *= 2
        return statements

    def within(self, statement: Statement) -> Statement:
        """A statement for those threads that have an element."""
        return tirx.IfThenElse(self.inside, statement, None)

    def advance(self, how: WarpScan) -> Statement:
        """The statement that carries on what the chunk has in all."""
        carried = how.fold(load(self.carry, _FIRST), load(self.total, _FIRST))
        return store(self.carry, _FIRST, carried)
