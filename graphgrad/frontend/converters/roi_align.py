"""Pooling of regions of an image, whose corners lie between the elements.

He et al., *Mask R-CNN* (2017). The mean is an op of TVM's; its maximum is not that of ONNX.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import relax

from ...errors import ModelError
from ...ir.tensor import Tensor
from ...ops import functional as op
from .node import Node, converter


@converter("RoiAlign")
def roi_align(node: Node) -> Any:
    """The mean or the maximum over the sample points of each bin of each region.

    The maximum is that of the terms of the linear interpolations, weight · element, as the
    standard's reference and onnxruntime have it. Equal terms share its gradient equally.
    """
    mode = node.attribute("mode", b"avg").decode()
    x, regions, image = (node.tensor(index) for index in range(3))
    ratio = node.attribute("sampling_ratio", 0)
    if mode == "avg":
        return _mean(node, x, regions, image, ratio)
    if mode != "max":
        raise ModelError(f"its mode {mode!r} is neither 'avg' nor 'max'")
    if ratio < 1:
        raise ModelError(
            "its sampling_ratio is 0, by which the number of points depends on the regions: a "
            "maximum needs a fixed number; export with a positive sampling_ratio"
        )
    if not all(isinstance(extent, int) for extent in x.shape[2:]):
        raise ModelError(
            f"it needs spatial extents that are numbers, given {x.shape[2:]}: import with shapes= "
            "that give them"
        )
    return _maximum(node, x, regions, image, ratio)


def _mean(node: Node, x: Tensor, regions: Tensor, image: Tensor, ratio: int) -> Tensor:
    """The mean of each bin: (regions, channels, rows, columns)."""
    # The op takes an image's number among the corners, so in their dtype: half precision holds no
    # odd integer above 2048.
    regions = _scaled(node, op.widen(regions))
    numbers = op.expand_dims(image, [1]).astype(regions.dtype)
    call = relax.op.vision.roi_align(
        op.widen(x).expr,
        op.concat([numbers, regions], axis=1).expr,
        _output_size(node),
        1.0,
        sample_ratio=ratio,
        aligned=_is_shifted(node),
    )
    mean = node.emitter.emit(call)
    if ratio < 1 and _is_shifted(node):
        # The number of points is by the region's extent. The kernel of the op writes nothing where
        # it is 0; ONNX has zeros there.
        left, top, right, bottom = op.split(
            op.reshape(regions, [regions.shape[0], 4, 1, 1]), 4, axis=1
        )
        has_points = op.logical_and(op.less(left, right), op.less(top, bottom))
        mean = op.where(has_points, mean, 0.0)
    return mean.astype(x.dtype)


@dataclass(frozen=True)
class _Line:
    """The two elements around each sample point along one axis: (regions, 2 · points).

    Attributes
    ----------
    position : Tensor
        The elements' indices along the axis, int64.
    weight : Tensor
        Their weights in the linear interpolation; 0 for points outside of the image.
    """

    position: Tensor
    weight: Tensor


def _maximum(node: Node, x: Tensor, regions: Tensor, image: Tensor, ratio: int) -> Tensor:
    """The maximum of each bin: (regions, channels, rows, columns)."""
    batch, channels, height, width = x.shape
    rows, columns = _output_size(node)
    count = regions.shape[0]
    left, top, right, bottom = op.split(_scaled(node, op.widen(regions)), 4, axis=1)
    down = _line(node, (top, bottom), rows, ratio, height)
    across = _line(node, (left, right), columns, ratio, width)
    elements = op.reshape(op.permute_dims(x, [0, 2, 3, 1]), [batch * height * width, channels])
    # One index for image, row and column: the images are flattened to rows of channels.
    image_start = op.reshape(image.astype("int64") * (height * width), [count, 1, 1])
    position = image_start + op.expand_dims(down.position, [2]) * width
    position = position + op.expand_dims(across.position, [1])
    weight = op.expand_dims(down.weight, [2]) * op.expand_dims(across.weight, [1])
    terms = op.widen(op.take(elements, position, axis=0)) * op.expand_dims(weight, [3])
    bins = op.reshape(terms, [count, rows, 2 * ratio, columns, 2 * ratio, channels])
    largest = op.maximum_of(bins, axis=[2, 4])
    return op.permute_dims(largest, [0, 3, 1, 2]).astype(x.dtype)


def _line(node: Node, ends: tuple[Tensor, Tensor], bins: int, ratio: int, extent: int) -> _Line:
    """The elements around the points of each bin along an axis.

    Parameters
    ----------
    node : Node
    ends : pair of Tensor
        Where each region begins and ends, (regions, 1), in elements of the image.
    bins, ratio : int
        How many bins a region has, and how many points each of those.
    extent : int
        The extent of the image along the axis.
    """
    start, end = ends
    # Without the shift, ONNX gives each region an extent of at least one element.
    size = end - start if _is_shifted(node) else op.maximum(end - start, 1.0)
    steps = op.indices(node.emitter, bins * ratio).astype(size.dtype)
    coordinate = start + size * ((op.expand_dims(steps, [0]) + 0.5) / float(bins * ratio))
    # Up to one element outside a point reads the border; from there on it counts as 0.
    inside = op.logical_and(
        op.greater_equal(coordinate, -1.0), op.less_equal(coordinate, float(extent))
    )
    coordinate = op.where(inside, op.clip(coordinate, 0.0, float(extent - 1)), 0.0)
    lower = op.floor(coordinate)
    fraction = coordinate - lower
    neighbors = [lower, op.minimum(lower + 1.0, float(extent - 1))]
    weights = [op.where(inside, weight, 0.0) for weight in (1.0 - fraction, fraction)]
    shape = [lower.shape[0], 2 * bins * ratio]
    position, weight = (
        op.reshape(op.concat([op.expand_dims(tensor, [2]) for tensor in tensors], axis=2), shape)
        for tensors in (neighbors, weights)
    )
    return _Line(position.astype("int64"), weight)


def _output_size(node: Node) -> tuple[int, int]:
    """The rows and columns of bins that a region has."""
    return node.attribute("output_height", 1), node.attribute("output_width", 1)


def _is_shifted(node: Node) -> bool:
    """Whether the centers of elements lie at whole coordinates, half an element before ONNX's.

    Raises
    ------
    ModelError
        The coordinate transformation mode is unknown.
    """
    if node.opset < 16:  # there was no attribute, and no shift
        return False
    mode = node.attribute("coordinate_transformation_mode", b"half_pixel").decode()
    if mode not in ("half_pixel", "output_half_pixel"):
        raise ModelError(
            f"its coordinate_transformation_mode {mode!r} is neither 'half_pixel' nor "
            "'output_half_pixel'"
        )
    return mode == "half_pixel"


def _scaled(node: Node, regions: Tensor) -> Tensor:
    """The corners of regions in elements of the image: scaled first, and then shifted."""
    corners = regions * node.attribute("spatial_scale", 1.0)
    return corners - 0.5 if _is_shifted(node) else corners
