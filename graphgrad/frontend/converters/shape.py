"""Operators that change a tensor's shape or repeat it.

TVM's importer writes Tile as a kernel that no rule can see, reads an Expand or Squeeze whose
settings are inputs wrongly, has no mode of SpaceToDepth, no DepthToSpace without channels, and
flattens a tensor without elements to no columns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...errors import ModelError
from ...ir.tensor import Dimension, Tensor, dimension_text, same_dimension
from ...ops import functional as op
from .node import Node, converter


@converter("DepthToSpace")
def depth_to_space(node: Node) -> Tensor:
    """Channels become blocks of pixels: DCR has the block first, CRD the channel."""
    x, size = node.tensor(0), node.attribute("blocksize")
    batch, channels, height, width = x.shape
    depth = channels // size**2
    if node.attribute("mode", b"DCR") == b"CRD":
        split, order = [depth, size, size], [0, 1, 4, 2, 5, 3]
    else:
        split, order = [size, size, depth], [0, 3, 4, 1, 5, 2]
    blocks = op.reshape(x, [batch, *split, height, width])
    shape = [batch, depth, height * size, width * size]
    return op.reshape(op.permute_dims(blocks, order), shape)


@converter("Expand")
def expand(node: Node) -> Tensor:
    """x, repeated along axes of extent 1 and along new ones."""
    x, target = node.tensor(0), node.dimensions(1) or []
    rank = max(x.ndim, len(target))
    extents = [1] * (rank - x.ndim) + x.shape
    target_extents = [1] * (rank - len(target)) + target
    return op.broadcast_to(
        x, [_broadcast(*pair) for pair in zip(extents, target_extents, strict=True)]
    )


def _broadcast(extent: Dimension, target: Dimension) -> Dimension:
    """The extent of a result that broadcasts `extent` to `target`.

    Where one is a number and the other symbolic, the number is the result: the other one must be
    equal to it, or 1, for the model to run.
    """
    if _is(target, 1, -1) or same_dimension(extent, target):  # exporters write -1 for "as it is"
        return extent
    if _is(extent, 1) or not (isinstance(extent, int) or isinstance(target, int)):
        return target
    if isinstance(extent, int) and isinstance(target, int):
        raise ModelError(f"an extent of {extent} cannot be expanded to {target}")
    return extent if isinstance(extent, int) else target


@converter("Flatten")
def flatten(node: Node) -> Tensor:
    """x as a matrix, whose rows are the axes before `axis` and whose columns are the rest."""
    x, axis = node.tensor(0), node.attribute("axis", 1)
    if not -x.ndim <= axis <= x.ndim:
        raise ModelError(f"its axis {axis} is none of a tensor of {x.ndim} axes")
    split = axis + x.ndim if axis < 0 else axis
    return op.reshape(x, [math.prod(x.shape[:split]), math.prod(x.shape[split:])])


def _is(extent: Dimension, *numbers: int) -> bool:
    """Whether an extent is one of some numbers; a symbolic one is none."""
    return isinstance(extent, int) and extent in numbers


@converter("SpaceToDepth")
def space_to_depth(node: Node) -> Tensor:
    """Blocks of pixels become channels: DCR puts the block first, CRD the channel."""
    x, size = node.tensor(0), node.attribute("blocksize")
    batch, channels, height, width = x.shape
    blocks = op.reshape(x, [batch, channels, height // size, size, width // size, size])
    order = [0, 1, 3, 5, 2, 4] if node.attribute("mode", b"DCR") == b"CRD" else [0, 3, 5, 1, 2, 4]
    shape = [batch, channels * size**2, height // size, width // size]
    return op.reshape(op.permute_dims(blocks, order), shape)


@converter("Squeeze")
def squeeze(node: Node) -> Tensor:
    """x without axes of extent 1."""
    x, axes = node.tensor(0), axes_of(node, 1)
    if axes is None:
        axes = [axis for axis, extent in enumerate(x.shape) if _is(extent, 1)]
    squeezed_axes = normalized(axes, x.ndim)
    for axis in squeezed_axes:
        if not _is(x.shape[axis], 1):
            extent = dimension_text(x.shape[axis])
            raise ModelError(f"axis {axis} has an extent of {extent}: only 1 can be squeezed")
    return op.reshape(
        x, [extent for axis, extent in enumerate(x.shape) if axis not in squeezed_axes]
    )


@converter("Tile")
def tile(node: Node) -> Tensor:
    """x, side by side with copies of itself."""
    x, repeats = node.tensor(0), node.dimensions(1) or []
    if len(repeats) != x.ndim:
        raise ModelError(f"it gives {len(repeats)} repeats for a tensor of {x.ndim} axes")
    if all(isinstance(repeat, int) for repeat in repeats):
        return op.tile(x, repeats)
    # Symbolic: a new axis in front of each one is broadcast and merged with it.
    pairs = list(zip(repeats, x.shape, strict=True))
    separated = op.reshape(x, [size for extent in x.shape for size in (1, extent)])
    copies = op.broadcast_to(separated, [size for pair in pairs for size in pair])
    return op.reshape(copies, [repeat * extent for repeat, extent in pairs])


@converter("Unsqueeze")
def unsqueeze(node: Node) -> Tensor:
    """x with new axes of extent 1."""
    x, axes = node.tensor(0), axes_of(node, 1) or []
    new_axes = normalized(axes, x.ndim + len(axes))
    extents = iter(x.shape)
    rank = x.ndim + len(new_axes)
    return op.reshape(x, [1 if axis in new_axes else next(extents) for axis in range(rank)])


def axes_of(node: Node, index: int) -> list[int] | None:
    """Axes given as an input or, in earlier versions, as an attribute; None if left out."""
    axes = node.dimensions(index)
    if axes is None:
        axes = node.attribute("axes", None)
    return None if axes is None else [int(axis) for axis in axes]


def normalized(axes: Sequence[int], rank: int) -> list[int]:
    """Axes as numbers that are not negative.

    Raises
    ------
    ModelError
        The tensor has no such axis, or one is given twice.
    """
    from_front = [axis + rank if axis < 0 else axis for axis in axes]
    if len(set(from_front)) < len(axes) or not all(0 <= axis < rank for axis in from_front):
        raise ModelError(f"its axes {list(axes)} are not different axes of {rank}")
    return from_front
