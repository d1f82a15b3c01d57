"""Deformable convolution: an input shifts the position that each tap reads, also by fractions.

Dai et al., *Deformable convolutional networks* (2017), and with a mask Zhu et al., *Deformable
ConvNets v2* (2019).
"""

from __future__ import annotations

import math

import numpy as np
from tvm import relax

from ...errors import ModelError
from ...ir.tensor import Dimension, Tensor, same_shape
from ...ops import functional as op
from ...ops.grid_sample import Sampling, sample_at
from .conv import biased, check_weights, per_axis
from .node import Node, converter

_SAMPLING = Sampling("linear", "zeros", align_corners=True)


@converter("DeformConv")
def deform_conv(node: Node) -> Tensor:
    """y[n,k,p] = b[k] + Σ m[n,c,r,p] · x(n, c, p·stride + r·dilation − pad + Δ[n,c,r,p]) · w[k,c,r]

    x(…) is linear between the elements, and 0 outside. The slope at an element is that towards the
    next one, as in PyTorch's operators.
    """
    x, w, offset = (node.tensor(index) for index in range(3))
    check_weights(node, x, w, channels_of_weights=1)
    groups, offset_groups = node.attribute("group", 1), node.attribute("offset_group", 1)
    taps = w.shape[2:]
    points = _points(node, x, w, offset)
    (batch, channels), rank, count = x.shape[:2], len(taps), math.prod([*taps, *points])
    images = op.reshape(x, [batch * offset_groups, channels // offset_groups, *x.shape[2:]])
    # Each group of offsets counts as an image of its own.
    shift = op.widen(offset)
    shift = op.reshape(shift, [batch * offset_groups, math.prod(taps), rank, math.prod(points)])
    shifts = op.split(shift, rank, axis=2) if rank > 1 else [shift]
    positions = [
        op.reshape(shift_on_axis, [batch * offset_groups, count, 1]) + regular_position
        for shift_on_axis, regular_position in zip(
            shifts, _regular_positions(node, w, points), strict=True
        )
    ]
    values = sample_at(images, positions, _SAMPLING)
    if node.has(4):
        values = values * op.widen(op.reshape(node.tensor(4), [batch * offset_groups, count, 1]))
    # From here on it is a plain convolution: the samples of a window times its weights.
    columns = op.permute_dims(values, [0, 2, 1])
    terms = channels // groups * math.prod(taps)
    columns = op.reshape(columns, [batch, groups, terms, math.prod(points)])
    weights = op.reshape(op.widen(w), [1, groups, w.shape[0] // groups, terms])
    y = op.reshape(weights @ columns, [batch, w.shape[0], *points]).astype(x.dtype)
    return biased(node, y, index=3)


def _points(node: Node, x: Tensor, w: Tensor, offset: Tensor) -> list[int]:
    """The extents of the output.

    Raises
    ------
    ModelError
        A spatial extent is symbolic, or the offsets or the mask have another shape than the
        data, the weights and the attributes ask for.
    """
    rank, taps = w.ndim - 2, w.shape[2:]
    if not all(isinstance(extent, int) for extent in [*x.shape[2:], *taps]):
        raise ModelError(
            f"it needs spatial extents that are numbers, given {x.shape[2:]} for windows of "
            f"{taps}: import with shapes= that give them"
        )
    strides, dilations, pads = _geometry(node, rank)
    points = [
        (extent + pads[k] + pads[k + rank] - dilations[k] * (taps[k] - 1) - 1) // strides[k] + 1
        for k, extent in enumerate(x.shape[2:])
    ]
    if min(points) < 1:
        raise ModelError(f"its windows of {taps} do not fit into data of {x.shape[2:]}: pad more")
    groups = node.attribute("offset_group", 1)
    if groups < 1 or (isinstance(x.shape[1], int) and x.shape[1] % groups):
        raise ModelError(f"its {x.shape[1]} channels are no multiple of offset_group = {groups}")
    _check(offset, [x.shape[0], groups * math.prod(taps) * rank, *points], "offset")
    if node.has(4):
        _check(node.tensor(4), [x.shape[0], groups * math.prod(taps), *points], "mask")
    return points


def _check(x: Tensor, expected_shape: list[Dimension], name: str) -> None:
    """Refuse an input of another shape; the batch, which may be symbolic, is not compared."""
    if not same_shape(x.shape[1:], expected_shape[1:]):
        raise ModelError(f"its {name} has the shape {x.shape}: {expected_shape} is needed")


def _geometry(node: Node, rank: int) -> tuple[list[int], list[int], list[int]]:
    """Strides, dilations and paddings."""
    strides, dilations = (
        per_axis(node, name, rank, 1, least=1) for name in ("strides", "dilations")
    )
    return strides, dilations, per_axis(node, "pads", 2 * rank, 0, least=0)


def _regular_positions(node: Node, w: Tensor, points: list[int]) -> list[Tensor]:
    """Where a plain convolution would read along each axis: (1, taps · points, 1)."""
    taps, rank = w.shape[2:], len(points)
    strides, dilations, pads = _geometry(node, rank)
    positions = []
    for axis in range(rank):
        on_axis = (
            np.arange(taps[axis])[:, None] * dilations[axis]
            + np.arange(points[axis]) * strides[axis]
            - pads[axis]
        )
        # Taps and points are axes of their own, of which this position depends on one each.
        shape = [1] * (2 * rank)
        shape[axis], shape[rank + axis] = on_axis.shape
        repeated = np.broadcast_to(on_axis.reshape(shape), [*taps, *points])
        dtype = op.widen(w).dtype
        positions.append(
            w.emitter.lift(relax.const(repeated.reshape(1, -1, 1).astype(dtype), dtype))
        )
    return positions
