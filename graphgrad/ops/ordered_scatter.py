"""Scatters for GPUs: updates in the order of their positions, of which a thread takes one.

Threads that share updates by columns alone are too few for an embedding's gradient, which has some
hundred columns and many thousand updates. So the updates are ordered first, stably: each counts
those that come before it, which is quadratic work but needs no more than integers in a near cache.
The updates of one position are then neighbors in that order, and are combined in the order of the
loops, as on a processor: results have the same bits in every run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tvm import te, tirx

from ..ir.kernel_structure import static
from ..ir.loops import Statement, index, parallel, registers, sequence, serial, store, unravel
from ..ir.tensor import Dimension
from .indexing import Indexing, within
from .opaque_kernel import extern, position_of

_FEW = 32
"""Updates that a thread visits in less time than launches take."""

_MANY = 1 << 21
"""Updates from which on to count those before each takes longer than one thread takes to visit all:
on an H200, four operations of 2.9e13 a second for each pair, and 0.4 µs for each visit."""

_KEY = "int32"
"""The dtype of positions, numbers of updates, and how many there are of a position."""

_LARGEST = 2**31 - 1

Combine = Callable[[Any, Any], Any]
"""From what a position holds, and an update, to what it holds then."""


def pays(
    indexing: Indexing,
    shape: Sequence[Dimension],
    index_shape: Sequence[Dimension],
    updates: Sequence[Dimension],
) -> bool:
    """Whether the updates of a scatter can be ordered, and are enough for that.

    Parameters
    ----------
    indexing : Indexing
    shape : sequence of int or expression
        Of the data.
    index_shape : sequence of int or expression
        Of the index tensor.
    updates : sequence of int or expression
        Shape of the updates.
    """
    is_shared = indexing.form == "take" or (indexing.form == "nd" and indexing.axis == 0)
    extents = [static(extent) for extent in (*shape, *index_shape)]
    if not is_shared or None in extents:
        return False
    loop_shape = indexing.output_shape(shape, index_shape)
    count = math.prod(int(loop_shape[axis]) for axis in indexing.serial_axes(len(index_shape)))
    variables = [tirx.Var("i", "int64") for _ in loop_shape]
    return (
        _FEW <= count <= _MANY
        and 0 < math.prod(int(extent) for extent in shape) <= _LARGEST
        and not within(variables, updates, loop_shape)
    )


def order(indexing: Indexing, shape: Sequence[Dimension], indices: te.Tensor) -> list[te.Tensor]:
    """The numbers of a scatter's updates in the order of their positions, and these positions.

    Updates are numbered in row-major order, and so are positions, in the indexed axes of the data.

    Returns
    -------
    order, counts, targets : Tensor
        Of int32: the number of the update at each place of the order; how many there are of one
        position, at the place of its first, and 0 elsewhere and where they point outside; and the
        position of each update.
    """
    extents, ordered, lead = _axes(indexing, shape, indices.shape)
    outside = math.prod(extents)

    def target(number: Any) -> Any:
        behind = len(indexing.output_shape(shape, indices.shape)) - len(lead) - len(ordered)
        output = [*lead, *unravel(number, ordered), *[index(0)] * behind]
        position, inside, _ = indexing.position(shape, indices, output)
        first = indexing.axis
        at = position_of(position[first : first + len(extents)], extents)
        return tirx.if_then_else(inside, at, index(outside)).astype(_KEY)

    count = math.prod(ordered)
    targets = te.compute((count,), target, name="targets")

    def build(ins: list[Any], outs: list[Any]) -> Statement:
        (keys,), (places, counts) = ins, outs
        numbers = registers("numbers", [3], _KEY)  # of smaller ones, of equal ones before, of equal

        def rank(number: Any) -> Statement:
            def compare(other: Any) -> Statement:
                is_smaller = keys[other] < keys[number]
                is_equal = keys[other] == keys[number]
                seen = (is_smaller, tirx.And(is_equal, other < number), is_equal)
                return sequence(
                    *(
                        store(numbers, [index(i)], numbers[i] + each.astype(_KEY))
                        for i, each in enumerate(seen)
                    )
                )

            zeros = [store(numbers, [index(i)], index(0, _KEY)) for i in range(3)]
            place = (numbers[0] + numbers[1]).astype("int64")
            is_first = tirx.And(numbers[1] == index(0, _KEY), keys[number] < outside)
            of_first = tirx.Select(is_first, numbers[2], index(0, _KEY))
            return sequence(
                tirx.AllocBuffer(numbers),
                *zeros,
                serial(count, compare),
                store(places, [place], number.astype(_KEY)),
                store(counts, [place], of_first),
            )

        return parallel(count, rank)

    places, counts = extern("order", [(count,)] * 2, [_KEY] * 2, [targets], build)
    return [places, counts, targets]


def combined(
    indexing: Indexing,
    index_shape: Sequence[Dimension],
    out: Any,
    updates: Any,
    ordered: Sequence[Any],
    combine: Combine,
) -> Statement:
    """The loops that combine what each position of a buffer holds with its updates, in order.

    Parameters
    ----------
    indexing : Indexing
    index_shape : sequence of int
        Of the index tensor.
    out, updates : Buffer
    ordered : sequence of Buffer
        What `order` returns.
    combine : callable
    """
    places, counts, targets = ordered
    shape = [int(extent) for extent in out.shape]
    extents, loop_shape, _ = _axes(indexing, shape, index_shape)
    first = indexing.axis
    lead, tail = shape[:first], shape[first + len(extents) :]
    points = [*lead, math.prod(loop_shape), *tail]
    held = registers("held", [1], str(out.dtype))

    def at(number: Any) -> Statement:
        indices = unravel(number, points)
        before, place, behind = indices[:first], indices[first], indices[first + 1 :]
        target = targets[places[place].astype("int64")].astype("int64")
        position = [*before, *unravel(target, extents), *behind]

        def visit(k: Any) -> Statement:
            update = places[place + k].astype("int64")
            value = updates[(*before, *unravel(update, loop_shape), *behind)]
            return store(held, [index(0)], combine(held[0], value))

        return tirx.IfThenElse(
            counts[place] > 0,
            sequence(
                tirx.AllocBuffer(held),
                store(held, [index(0)], out[tuple(position)]),
                serial(counts[place].astype("int64"), visit),
                store(out, position, held[0]),
            ),
            None,
        )

    return parallel(math.prod(points), at)


def _axes(
    indexing: Indexing, shape: Sequence[Any], index_shape: Sequence[Any]
) -> tuple[list[int], list[int], list[Any]]:
    """The extents of the data's indexed axes and of the updates, and zeros for the axes before."""
    serial_axes = indexing.serial_axes(len(index_shape))
    loop_shape = indexing.output_shape(shape, index_shape)
    updates = [int(loop_shape[axis]) for axis in serial_axes]
    coordinates = int(index_shape[-1]) if indexing.form == "nd" else 1
    extents = [int(extent) for extent in shape[indexing.axis : indexing.axis + coordinates]]
    return extents, updates, [index(0) for _ in range(serial_axes.start)]
