"""Deformable convolution: each tap of the kernel reads where an input says, between the elements.

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
    shift = op.widen(offset)
    shift = op.reshape(shift, [batch * offset_groups, math.prod(taps), rank, math.prod(points)])
    parts = op.split(shift, rank, axis=2) if rank > 1 else [shift]
    places = [
        op.reshape(part, [batch * offset_groups, count, 1]) + regular
        for part, regular in zip(parts, _regular_places(node, w, points), strict=True)
    ]
    values = sample_at(images, places, _SAMPLING)
    if node.has(4):
        values = values * op.widen(op.reshape(node.tensor(4), [batch * offset_groups, count, 1]))
    columns = op.permute_dims(values, [0, 2, 1])
    depth = channels // groups * math.prod(taps)
    columns = op.reshape(columns, [batch, groups, depth, math.prod(points)])
    weights = op.reshape(op.widen(w), [1, groups, w.shape[0] // groups, depth])
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


def _check(given: Tensor, wanted: list[Dimension], name: str) -> None:
    if not same_shape(given.shape[1:], wanted[1:]):
        raise ModelError(f"its {name} has the shape {given.shape}: {wanted} is needed")


def _geometry(node: Node, rank: int) -> tuple[list[int], list[int], list[int]]:
    """Strides, dilations and paddings."""
    strides, dilations = (
        per_axis(node, name, rank, 1, least=1) for name in ("strides", "dilations")
    )
    return strides, dilations, per_axis(node, "pads", 2 * rank, 0, least=0)


def _regular_places(node: Node, w: Tensor, points: list[int]) -> list[Tensor]:
    """Where a plain convolution would read along each axis: (1, taps · points, 1)."""
    taps, rank = w.shape[2:], len(points)
    strides, dilations, pads = _geometry(node, rank)
    places = []
    for k in range(rank):
        along = (
            np.arange(taps[k])[:, None] * dilations[k] + np.arange(points[k]) * strides[k] - pads[k]
        )
        shape = [1] * (2 * rank)
        shape[k], shape[rank + k] = along.shape
        repeated = np.broadcast_to(along.reshape(shape), [*taps, *points])
        wide = op.widen(w).dtype
        places.append(w.emitter.lift(relax.const(repeated.reshape(1, -1, 1).astype(wide), wide)))
    return places
