"""Col2Im: overlapping blocks, added up to the image that they were cut from."""

from __future__ import annotations

from functools import reduce
from operator import add, mul

from ...ir.tensor import Dimension, Tensor
from ...ops import functional as op
from ...ops.movement import unslice
from .node import Node, converter


@converter("Col2Im")
def col2im(node: Node) -> Tensor:
    """An image (N, C, …) from columns (N, C · block, blocks): each block added where it was cut.

    One spatial axis is folded at a time, so that the work grows with the sum of the block's
    extents and not with their product.
    """
    columns = node.tensor(0)
    image, block = node.dimensions(1) or [], node.dimensions(2) or []
    rank = len(block)
    dilations = node.attribute("dilations", (1,) * rank)
    pads = node.attribute("pads", (0,) * (2 * rank))
    strides = node.attribute("strides", (1,) * rank)
    padded = [image[k] + pads[k] + pads[k + rank] for k in range(rank)]
    reach = [dilations[k] * (block[k] - 1) + 1 for k in range(rank)]
    counts = [(padded[k] - reach[k]) // strides[k] + 1 for k in range(rank)]
    batch, channels = columns.shape[0], columns.shape[1] // reduce(mul, block, 1)
    x = op.reshape(op.widen(columns), [batch, channels, *block, *counts])
    for k in range(rank):
        x = _fold(x, rank + 1, dilations[k], strides[k], padded[k])
    before, after = pads[:rank], pads[rank:]
    cut = [-width for pair in zip(before, after, strict=True) for width in pair]
    x = op.pad(x, [0, 0, 0, 0, *cut]) if any(cut) else x
    return x.astype(columns.dtype)


def _fold(x: Tensor, axis: int, dilation: int, stride: int, extent: Dimension) -> Tensor:
    """Add axis 2, the taps of a block, into the axis (counted without it) of the blocks."""
    taps = op.split(x, list(range(1, x.shape[2])), axis=2) if x.shape[2] > 1 else [x]
    placed = []
    for tap, part in enumerate(taps):
        blocks = op.reshape(part, [*x.shape[:2], *x.shape[3:]])
        shape = [*blocks.shape[:axis], extent, *blocks.shape[axis + 1 :]]
        placed.append(unslice(blocks, [axis], [tap * dilation], [stride], shape))
    return reduce(add, placed)
