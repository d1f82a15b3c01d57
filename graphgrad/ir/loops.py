"""Loop nests written by hand: kernels whose writes depend on data, or on what was written before.

A tensor expression says what each element *is*; a scatter or a scan says what is *done*, in an
order. Such a kernel is one opaque block, which no schedule touches; so it brings its own threads: a
few with much work each for a processor, one for each independent point for a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import te, tirx

from .tensor import Dimension

KERNEL = "graphgrad.kernel."
"""How the tags of these stages begin."""

Indices = Sequence[Any]
Statement = Any

_SMALL = 1 << 14
"""Elements below which handing work to other threads costs more than it saves."""

_ENOUGH = 32
"""Trips of a parallel loop that any number of cores shares evenly enough."""

_CHUNK = 64
"""Neighboring elements that one thread takes: some cache lines, so that none is fought over."""

_LONG = 1024
"""What a symbolic extent is taken for when deciding what is worth a thread."""


def loop(extent: Dimension, body: Callable[[Any], Statement], parallel: bool = False) -> Statement:
    """Return a loop from 0; `body` is given its variable."""
    var = tirx.Var("i", "int64")
    kind = tirx.ForKind.PARALLEL if parallel else tirx.ForKind.SERIAL
    return tirx.For(var, tirx.const(0, "int64"), _index(extent), kind, body(var))


def loops(extents: Sequence[Dimension], body: Callable[[list[Any]], Statement]) -> Statement:
    """Return nested loops; `body` is given all their variables."""
    if not extents:
        return body([])
    return loop(extents[0], lambda i: loops(extents[1:], lambda rest: body([i, *rest])))


def sequence(*statements: Statement) -> Statement:
    """Return statements one after the other."""
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(list(statements))


def extern(
    name: str,
    shapes: Sequence[Sequence[Dimension]],
    dtypes: Sequence[str],
    inputs: Sequence[te.Tensor],
    build: Callable[[list[Any], list[Any]], Statement],
    attributes: Mapping[str, Any] | None = None,
) -> list[te.Tensor]:
    """Return the outputs of a kernel; `build(inputs, outputs)` writes it, on buffers.

    Where it is to be differentiated as a tensor expression, a restatement is registered for its
    tag, `KERNEL` and the name (`graphgrad.fallback.externs.register`); it is told by `attributes`,
    numbers and strings, what the kernel does.
    """
    outputs = te.extern(
        [tuple(shape) for shape in shapes],
        list(inputs),
        lambda ins, outs: build(list(ins), list(outs)),
        dtype=list(dtypes),
        name=name,
        tag=f"{KERNEL}{name}",
        attrs=dict(attributes or {}),
    )
    return list(outputs) if isinstance(outputs, list | tuple) else [outputs]


@dataclass(frozen=True)
class Nest:
    """Loops over a shape in which some neighboring axes run in order, and threads share the rest.

    Attributes
    ----------
    shape : sequence of int or expression
    serial : range
        The axes whose points one thread visits one after the other, in row-major order.
    reverse : bool
        They are visited last to first.
    work : int or expression
        Elements that a point stands for.
    """

    shape: Sequence[Dimension]
    serial: range
    reverse: bool = False
    work: Dimension = 1

    def build(self, body: Callable[[list[Any]], Statement]) -> Statement:
        """Return the loops; `body` is given the indices of a point."""
        lead = list(self.shape[: self.serial.start])
        ordered = list(self.shape[self.serial.start : self.serial.stop])
        tail = list(self.shape[self.serial.stop :])

        def within(before: list[Any], first_of_tail: list[Any], remaining: list[Any]) -> Statement:
            return loops(
                ordered,
                lambda i: loops(
                    remaining, lambda t: body([*before, *self._ordered(i), *first_of_tail, *t])
                ),
            )

        if _for_gpu():
            return self._by_points(lead, ordered, tail, body)
        if _volume([*self.shape, self.work]) < _SMALL or not (lead or tail):
            return loops(lead, lambda before: within(before, [], tail))
        if not tail or _volume(lead) >= _ENOUGH:
            trips = _product(lead)
            return loop(trips, lambda t: within(_unravel(t, lead), [], tail), parallel=True)
        if len(tail) > 1:
            shared = [*lead, tail[0]]

            def each(trip: Any) -> Statement:
                *before, first = _unravel(trip, shared)
                return within(before, [first], tail[1:])

            return loop(_product(shared), each, parallel=True)
        return self._by_chunks(lead, ordered, tail[0], body)

    def _by_points(
        self,
        lead: list[Dimension],
        ordered: list[Dimension],
        tail: list[Dimension],
        body: Callable[[list[Any]], Statement],
    ) -> Statement:
        """Return loops in which a thread takes one point of all the axes that are shared."""
        shared = [*lead, *tail]

        def each(trip: Any) -> Statement:
            indices = _unravel(trip, shared)
            before, after = indices[: len(lead)], indices[len(lead) :]
            return loops(ordered, lambda i: body([*before, *self._ordered(i), *after]))

        return loop(_product(shared), each, parallel=bool(shared))

    def _by_chunks(
        self,
        lead: list[Dimension],
        ordered: list[Dimension],
        tail: Dimension,
        body: Callable[[list[Any]], Statement],
    ) -> Statement:
        """Return loops in which a thread takes some neighboring elements of the last axis."""
        shared = [*lead, tirx.ceildiv(_index(tail), tirx.const(_CHUNK, "int64"))]

        def each(trip: Any) -> Statement:
            *before, chunk = _unravel(trip, shared)
            start = chunk * _CHUNK
            length = tirx.min(_index(tail) - start, tirx.const(_CHUNK, "int64"))
            return loops(
                ordered,
                lambda i: loop(length, lambda t: body([*before, *self._ordered(i), start + t])),
            )

        return loop(_product(shared), each, parallel=True)

    def _ordered(self, indices: list[Any]) -> list[Any]:
        if not self.reverse:
            return indices
        extents = self.shape[self.serial.start : self.serial.stop]
        return [_index(extent) - 1 - i for extent, i in zip(extents, indices, strict=True)]


def fill(output: Any, value: Callable[[list[Any]], Any]) -> Statement:
    """Return loops that write every element of a buffer, each on its own."""
    rank = len(output.shape)
    serial = range(rank - 1, rank) if rank > 1 and not _for_gpu() else range(0)
    nest = Nest(list(output.shape), serial)
    return nest.build(lambda indices: tirx.BufferStore(output, value(indices), indices))


def _for_gpu() -> bool:
    """Return whether the kernel is being lowered for a GPU, which has a thread for each point."""
    target = tvm.target.Target.current(allow_none=True)
    return target is not None and str(target.kind.name) == "cuda"


def _index(extent: Dimension) -> Any:
    return tirx.const(extent, "int64") if isinstance(extent, int) else extent


def _product(extents: Sequence[Dimension]) -> Any:
    return math.prod((_index(extent) for extent in extents), start=tirx.const(1, "int64"))


def _volume(extents: Sequence[Dimension]) -> int:
    return math.prod(
        int(extent) if isinstance(extent, int | tirx.IntImm) else _LONG for extent in extents
    )


def _unravel(flat: Any, extents: Sequence[Dimension]) -> list[Any]:
    """Return the indices of the flat-th point of a shape, in row-major order."""
    indices: list[Any] = []
    for extent in reversed(extents[1:]):
        indices.insert(0, tirx.floormod(flat, extent))
        flat = tirx.floordiv(flat, extent)
    return [flat, *indices] if extents else []
