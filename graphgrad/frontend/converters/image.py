"""Resizing and sampling at a grid, with every attribute that ONNX gives them.

They are written as steps along one axis each (`graphgrad.ops.resample`). TVM's importer serves two
and three spatial axes only, has no antialiasing, and computes in float32; it translates only the
nodes with a symbolic spatial extent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import ModelError
from ...ir.tensor import Tensor, same_dimension
from ...ops import functional as op
from ...ops.grid_sample import Sampling, affine_grid, grid_sample
from ...ops.resize import Interpolation, Resized, resize
from .node import Node, converter

_GRID_METHODS = {"bilinear": "linear", "bicubic": "cubic"}


@converter("Resize")
def convert_resize(node: Node) -> Any:
    """The input interpolated at the positions that the coordinate transformation gives."""
    x = node.tensor(0)
    if node.opset < 11:
        return _upsampled(node, x, node.constant(1))
    axes = [axis % x.ndim for axis in node.attribute("axes", range(x.ndim))]
    resized = (
        _by_sizes(node, x, axes) if _is_given(node, 3) else _by_scales(x, axes, node.constant(2))
    )
    if resized is None:
        return node.by_tvm()
    interpolation = Interpolation(
        node.attribute("mode", b"nearest").decode(),
        node.attribute("coordinate_transformation_mode", b"half_pixel").decode(),
        node.attribute("nearest_mode", b"round_prefer_floor").decode(),
        node.attribute("cubic_coeff_a", -0.75),
        bool(node.attribute("exclude_outside", 0)),
        bool(node.attribute("antialias", 0)),
        node.attribute("extrapolation_value", 0.0),
    )
    if interpolation.coordinates == "tf_crop_and_resize":
        resized = _cropped(resized, axes, node.constant(1))
    return resize(
        x,
        {axis: resizing for axis, resizing in resized.items() if not resizing.is_identity},
        interpolation,
    )


@converter("Upsample")
def convert_upsample(node: Node) -> Any:
    """The interpolated input; what Resize was before it had coordinate transformations."""
    scales = node.constant(1) if node.has(1) else np.array(node.attribute("scales"), "float32")
    return _upsampled(node, node.tensor(0), scales)


@converter("GridSample")
def convert_grid_sample(node: Node) -> Any:
    """The input, interpolated at the points of a grid."""
    x = node.tensor(0)
    if not all(isinstance(extent, int) for extent in x.shape[2:]):
        return node.by_tvm()
    method = node.attribute("mode", b"linear").decode()
    sampling = Sampling(
        _GRID_METHODS.get(method, method),
        node.attribute("padding_mode", b"zeros").decode(),
        bool(node.attribute("align_corners", 0)),
    )
    return grid_sample(x, node.tensor(1), sampling)


@converter("AffineGrid")
def convert_affine_grid(node: Node) -> Tensor:
    """The points of a regular grid, mapped by an affine map: coordinates last."""
    extents = (node.dimensions(1) or [])[2:]
    if not all(isinstance(extent, int) for extent in extents):
        raise ModelError(f"its grid of {extents} points needs extents that are numbers")
    grid = affine_grid(node.tensor(0), extents, bool(node.attribute("align_corners", 0)))
    return op.permute_dims(grid, [0, *range(2, grid.ndim), 1])


def _upsampled(node: Node, x: Tensor, scales: np.ndarray | None) -> Any:
    """x resized as before opset 11, by an asymmetric map of coordinates.

    The nearest element is found by rounding up where an axis shrinks, and down where it grows.
    """
    resized = _by_scales(x, range(x.ndim), scales)
    if resized is None:
        return node.by_tvm()
    mode = node.attribute("mode", b"nearest").decode()
    method = "linear" if mode == "bilinear" else mode
    for axis, resizing in resized.items():
        if not resizing.is_identity:
            rounding = "ceil" if resizing.scale < 1 else "floor"
            x = resize(x, {axis: resizing}, Interpolation(method, "asymmetric", rounding))
    return x


def _is_given(node: Node, index: int) -> bool:
    """Whether an input with extents is given; an empty one counts as left out."""
    return node.has(index) and bool(node.dimensions(index))


def _by_scales(
    x: Tensor, axes: Sequence[int], scales: np.ndarray | None
) -> dict[int, Resized] | None:
    """The resizing of each axis by a factor; None if one depends on a symbolic extent."""
    if scales is None or len(scales) != len(axes):
        raise ModelError(f"it has scales {scales} for {len(axes)} axes, and no sizes")
    resized = {}
    for axis, scale in zip(axes, scales.astype("float32"), strict=True):
        extent = x.shape[axis]
        if isinstance(extent, int):
            size = int(np.floor(np.float32(extent) * scale))  # in float32, as inference has it
            resized[axis] = Resized(extent, size, _meant(scale, extent, size))
        elif scale != 1:
            return None
    return resized


def _meant(scale: np.float32, extent: int, size: int) -> float:
    """The scale without its rounding to float32: a ratio of extents, or a decimal."""
    if extent and math.isclose(scale * extent, size, rel_tol=1e-6):
        return size / extent
    return float(str(scale))


def _by_sizes(node: Node, x: Tensor, axes: Sequence[int]) -> dict[int, Resized] | None:
    """The resizing of each axis to an extent; None if one depends on a symbolic extent."""
    sizes = node.dimensions(3) or []
    resized = {}
    for axis, size in zip(axes, sizes, strict=True):
        extent = x.shape[axis]
        if isinstance(extent, int) and isinstance(size, int):
            resized[axis] = Resized(extent, size, size / extent if extent else 1.0)
        elif not same_dimension(extent, size):
            return None
    policy = node.attribute("keep_aspect_ratio_policy", b"stretch").decode()
    if policy == "stretch":
        return resized
    # All axes get the scale of one of them, which has to be known.
    if len(resized) < len(axes):
        return None
    extremum = min if policy == "not_larger" else max
    scale = extremum(resizing.scale for resizing in resized.values())
    return {
        axis: Resized(resizing.extent, int(scale * resizing.extent + 0.5), scale)
        for axis, resizing in resized.items()
    }


def _cropped(
    resized: dict[int, Resized], axes: Sequence[int], roi: np.ndarray | None
) -> dict[int, Resized]:
    """The resizing of a region of interest, whose starts and ends `roi` gives."""
    if roi is None or len(roi) != 2 * len(axes):
        raise ModelError(f"tf_crop_and_resize needs a start and an end for {len(axes)} axes in roi")
    regions = dict(zip(axes, zip(roi[: len(axes)], roi[len(axes) :], strict=True), strict=True))
    return {
        axis: Resized(
            resizing.extent,
            resizing.size,
            resizing.scale,
            (float(regions[axis][0]), float(regions[axis][1])),
        )
        for axis, resizing in resized.items()
    }
