"""Orders of axes, as pure integers.

An *order* says how a tensor of the model lies in memory: axis ``k`` of what is stored is axis
``order[k]`` of the model's tensor. (0, 1, 2, 3) is the model's own order, NCHW for images, and
(0, 2, 3, 1) is NHWC.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..ir.tensor import Dimension, same_dimension

Order = tuple[int, ...]

OrderOfFilters = Callable[[int, bool], Order]
"""From the rank of weights, and whether their convolution is depthwise, to the order in which it
reads them."""


def own(rank: int) -> Order:
    """The model's own order."""
    return tuple(range(rank))


def channels_last(rank: int) -> Order:
    """The order of images whose channels, axis 1 of the model's, are innermost."""
    return (0, *range(2, rank), 1) if rank > 1 else own(rank)


def filters_last(rank: int, is_depthwise: bool = False) -> Order:
    """The order of kernels (O, I, spatial…) that stores them as (spatial…, I, O)."""
    return (*range(2, rank), 1, 0)


def input_channels_last(rank: int, is_depthwise: bool = False) -> Order:
    """The order of kernels that tensor cores read, their input channels innermost.

    A depthwise convolution is not for these. Its filters, of one channel each, are innermost: as
    its data are, so that neighboring channels are neighbors in all that it reads.
    """
    return filters_last(rank) if is_depthwise else channels_last(rank)


def letters(layout: str, order: Order) -> str:
    """A layout such as NCHW, reordered."""
    return "".join(layout[axis] for axis in order)


def steps(source: Order, target: Order) -> list[int]:
    """The permutation of stored axes that leads from one order to another."""
    return [source.index(axis) for axis in target]


def inverse(order: Order) -> Order:
    """The permutation that undoes an order: from what is stored to the model's tensor."""
    return tuple(steps(order, own(len(order))))


def extents(shape: Sequence[Dimension], order: Order) -> list[Dimension]:
    """The extents of what is stored; `shape` is the model's."""
    return [shape[axis] for axis in order]


def relabeled(order: Order, axes: Sequence[int]) -> Order:
    """The order of the same memory after the model permutes its axes by `axes`."""
    return tuple(axes.index(axis) for axis in order)


def without(order: Order, axes: Sequence[int]) -> Order:
    """The order after the model drops some axes."""
    remaining = [axis for axis in range(len(order)) if axis not in axes]
    return tuple(remaining.index(axis) for axis in order if axis in remaining)


def insert_axis(order: Order, axis: int) -> Order:
    """The order after the model inserts an axis, which is stored outermost."""
    return (axis, *(model_axis + (model_axis >= axis) for model_axis in order))


def wide(order: Order, shape: Sequence[Dimension]) -> list[int]:
    """The axes whose extent is not 1, as they are stored."""
    return [axis for axis in order if not same_dimension(shape[axis], 1)]


def is_same_memory(source: Order, target: Order, shape: Sequence[Dimension]) -> bool:
    """Whether two orders of a shape differ only in axes of extent 1, so that no element moves."""
    return wide(source, shape) == wide(target, shape)


def through_reshape(
    order: Order, shape: Sequence[Dimension], new_shape: Sequence[Dimension]
) -> Order | None:
    """The order after the model reshapes, where the memory may stay as it is.

    A reshape merges and splits groups of adjacent axes. It needs no copy of what is stored in an
    order if there, too, the axes of each group are adjacent and in their order.

    Returns
    -------
    Order or None
        The model's own order or `channels_last` where either describes the memory. None where
        elements would have to move, or where that cannot be told of symbolic extents.
    """
    groups = _groups(shape, new_shape)
    if groups is None:
        return None
    # The groups in the order of memory: each must begin where the one before it ended.
    by_first = {before[0]: (before, after) for before, after in groups}
    stored = wide(order, shape)
    new_stored: list[int] = []
    while stored:
        before, after = by_first.get(stored[0], ([], []))
        if not before or stored[: len(before)] != before:
            return None
        new_stored += after
        stored = stored[len(before) :]
    rank = len(new_shape)
    # Where axes of extent 1 lie is free: a usual order is preferred.
    for candidate in (own(rank), channels_last(rank)):
        if wide(candidate, new_shape) == new_stored:
            return candidate
    return (*new_stored, *(axis for axis in range(rank) if axis not in new_stored))


def _groups(
    shape: Sequence[Dimension], new_shape: Sequence[Dimension]
) -> list[tuple[list[int], list[int]]] | None:
    """The groups of axes that a reshape merges and splits, those of extent 1 left out.

    Each pair has axes of the old shape, and those of the new shape with as many elements. None
    where the groups cannot be told, as of symbolic extents.
    """
    before, after = wide(own(len(shape)), shape), wide(own(len(new_shape)), new_shape)
    groups: list[tuple[list[int], list[int]]] = []
    while before and after:
        left, right = [before.pop(0)], [after.pop(0)]
        if not same_dimension(shape[left[0]], new_shape[right[0]]):
            size, new_size = shape[left[0]], new_shape[right[0]]
            # The side with fewer elements takes its next axis, until both have equally many.
            while isinstance(size, int) and isinstance(new_size, int) and size != new_size:
                axes, remaining, side_shape = (
                    (left, before, shape) if size < new_size else (right, after, new_shape)
                )
                if not remaining or not isinstance(side_shape[remaining[0]], int):
                    return None
                axes.append(remaining.pop(0))
                if axes is left:
                    size *= side_shape[axes[-1]]
                else:
                    new_size *= side_shape[axes[-1]]
            if not isinstance(size, int) or not isinstance(new_size, int):
                return None
        groups.append((left, right))
    return None if before or after else groups
