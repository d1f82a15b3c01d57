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

from ..ir.loops import Statement, index, nested, parallel, sequence, serial, store, unravel
from ..ir.tensor import Dimension

KERNEL = "graphgrad.kernel."
"""How the tags of these stages begin."""

_SMALL = 1 << 14
"""Elements below which handing work to other threads costs more than it saves."""

_ENOUGH = 32
"""Trips of a parallel loop that any number of cores shares evenly enough."""

_CHUNK = 64
"""Neighboring elements that one thread takes: some cache lines, so that none is fought over."""

_LONG = 1024
"""What a symbolic extent is taken for when deciding what is worth a thread."""


def extern(
    name: str,
    shapes: Sequence[Sequence[Dimension]],
    dtypes: Sequence[str],
    inputs: Sequence[te.Tensor],
    build: Callable[[list[Any], list[Any]], Statement],
    attributes: Mapping[str, Any] | None = None,
) -> list[te.Tensor]:
    """The outputs of an extern stage whose loops `build(inputs, outputs)` writes, on buffers.

    Where it is to be differentiated, a restatement as tensor expressions is registered for the
    stage's tag, which is `KERNEL` and the name (`graphgrad.fallback.externs.register`). The
    restatement reads from `attributes`, numbers and strings, what the kernel computes.
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
        """The loops around a body, which is given the indices of a point.

        The outermost loop is parallel, over as many of the shared axes as it takes. What is left of
        them is inside of the serial loops, so that neighboring elements are visited together.
        """
        return self._build(lambda indices, *_: body(indices))

    def build_carrying(
        self, dtype: str, body: Callable[[list[Any], Any, list[Any]], Statement]
    ) -> Statement:
        """The loops around a body that hands a number on from each serial point to the next.

        The body is given the indices of a point, and the buffer and the indices of the number,
        which it must store at the first point before it reads it.
        """
        return self._build(body, dtype)

    def _build(self, body: Callable[..., Statement], carried: str | None = None) -> Statement:
        """The loops around a body as `build` or, if a dtype is carried, `build_carrying` says."""
        lead = list(self.shape[: self.serial.start])
        ordered = list(self.shape[self.serial.start : self.serial.stop])
        tail = list(self.shape[self.serial.stop :])
        free = [*lead, *tail]

        def lines(
            extents: list[Dimension], free_indices: Callable[[list[Any]], list[Any]]
        ) -> Statement:
            """The serial loops around loops over neighboring points, of which each has a number."""
            numbers = tirx.decl_buffer([_product(extents)], carried or "bool", scope="local")

            def point(i: list[Any], inner: list[Any]) -> Statement:
                at = free_indices(inner)
                indices = [*at[: len(lead)], *self._ordered(i), *at[len(lead) :]]
                return body(indices, numbers, [position_of(inner, extents)])

            loops = nested(ordered, lambda i: nested(extents, lambda inner: point(i, inner)))
            return sequence(tirx.AllocBuffer(numbers), loops) if carried else loops

        def inside(outer: list[Any], inner_extents: list[Dimension]) -> Statement:
            return lines(inner_extents, lambda inner: [*outer, *inner])

        def chunk(trip: Any) -> Statement:
            *outer, number = unravel(trip, shared)
            start = number * _CHUNK
            length = tirx.min(index(tail[0]) - start, index(_CHUNK))
            return lines([length], lambda inner: [*outer, start + inner[0]])

        is_small = _volume([*self.shape, self.work]) < _SMALL
        if for_gpu():
            count = len(free)  # a thread takes a point
        elif is_small or not free:
            return nested(lead, lambda outer: inside(outer, tail))
        elif not tail or _volume(lead) >= _ENOUGH:
            count = len(lead)
        elif len(tail) > 1:
            count = len(lead) + 1
        else:  # one axis is left: threads take chunks of neighboring elements of it
            shared = [*lead, tirx.ceildiv(index(tail[0]), index(_CHUNK))]
            return parallel(_product(shared), chunk)
        shared, inner_extents = free[:count], free[count:]
        each = parallel if shared else serial
        return each(_product(shared), lambda trip: inside(unravel(trip, shared), inner_extents))

    def _ordered(self, indices: list[Any]) -> list[Any]:
        if not self.reverse:
            return indices
        extents = self.shape[self.serial.start : self.serial.stop]
        return [index(extent) - 1 - i for extent, i in zip(extents, indices, strict=True)]


def fill(output: Any, value: Callable[[list[Any]], Any]) -> Statement:
    """The loops that write every element of a buffer, each independently of the others."""
    # The last axis is the serial one, so that a processor's thread writes neighbors.
    rank = len(output.shape)
    in_order = range(rank - 1, rank) if rank > 1 and not for_gpu() else range(0)
    nest = Nest(list(output.shape), in_order)
    return nest.build(lambda indices: store(output, indices, value(indices)))


def for_gpu() -> bool:
    """Whether the kernel is being lowered for a GPU, which has a thread for each point."""
    target = tvm.target.Target.current(allow_none=True)
    return target is not None and str(target.kind.name) == "cuda"


def position_of(indices: Sequence[Any], extents: Sequence[Dimension]) -> Any:
    """The number of a point of a shape, in row-major order."""
    position = index(0)
    for at, extent in zip(indices, extents, strict=True):
        position = position * index(extent) + at
    return position


def _product(extents: Sequence[Dimension]) -> Any:
    return math.prod((index(extent) for extent in extents), start=tirx.const(1, "int64"))


def _volume(extents: Sequence[Dimension]) -> int:
    """The product of extents, of which symbolic ones are taken for `_LONG`."""
    return math.prod(
        int(extent) if isinstance(extent, int | tirx.IntImm) else _LONG for extent in extents
    )
