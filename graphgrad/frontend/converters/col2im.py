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
    padded = [image[axis] + pads[axis] + pads[axis + rank] for axis in range(rank)]
    reach = [dilations[axis] * (block[axis] - 1) + 1 for axis in range(rank)]
    counts = [(padded[axis] - reach[axis]) // strides[axis] + 1 for axis in range(rank)]
    batch, channels = columns.shape[0], columns.shape[1] // reduce(mul, block, 1)
    # Booleans that meet are counted.
    is_boolean = columns.dtype == "bool"
    terms = columns.astype("int32") if is_boolean else op.widen(columns)
    x = op.reshape(terms, [batch, channels, *block, *counts])
    for axis in range(rank):
        x = _fold(x, rank + 1, dilations[axis], strides[axis], padded[axis])
    # Negative widths crop: the padding is no part of the image.
    before, after = pads[:rank], pads[rank:]
    negative_pads = [-width for pair in zip(before, after, strict=True) for width in pair]
    x = op.pad(x, [0, 0, 0, 0, *negative_pads]) if any(negative_pads) else x
    return op.greater(x, 0) if is_boolean else x.astype(columns.dtype)


def _fold(x: Tensor, axis: int, dilation: int, stride: int, extent: Dimension) -> Tensor:
    """Add the taps of one spatial axis to the image: axis 2 goes, and `axis` becomes `extent`.

    Axis 2 counts the taps of a block. `axis`, counted without it, is the one of the blocks.
    """
    taps = op.split(x, list(range(1, x.shape[2])), axis=2) if x.shape[2] > 1 else [x]
    contributions = []
    for tap, tap_columns in enumerate(taps):
        blocks = op.reshape(tap_columns, [*x.shape[:2], *x.shape[3:]])
        shape = [*blocks.shape[:axis], extent, *blocks.shape[axis + 1 :]]
        # Tap t of block b is the element t · dilation + b · stride of the padded image.
        contributions.append(unslice(blocks, [axis], [tap * dilation], [stride], shape))
    return reduce(add, contributions)
