"""Resizing by interpolation, one axis after the other, as ONNX defines it.

Where the k-th output lies among the inputs is computed here, on the host: a resize is a few
constant tables (`graphgrad.ops.resample`). Definition: the operator Resize of ONNX, whose
coordinate transformations and kernels ``relax.image.resize2d`` shares. The cubic kernel is that of
Keys, *Cubic convolution interpolation for digital image processing* (1981).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from ..errors import ArgumentError
from ..ir.tensor import Tensor, dimension_text, is_float
from ..layout import orders
from ..layout.rule import (
    LaidOut,
    Site,
    layout_rule,
)
from . import functional as op
from .legalize import legalization_by_ops
from .pool_windows import LAYOUTS
from .resample import Table, resample

_SUPPORT = {"linear": 1, "cubic": 2}
"""How far a kernel reaches to either side, in inputs."""

ROUNDINGS: dict[str, Callable[[Any], Any]] = {
    "round": np.rint,
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


@dataclass(frozen=True)
class Interpolation:
    """The method by which values between the inputs are computed.

    Attributes
    ----------
    method : "nearest", "linear" or "cubic"
    coordinates : str
        ONNX's ``coordinate_transformation_mode``, or TVM's ``tf_half_pixel_for_nn``.
    rounding : str
        Of "nearest": a name in `ROUNDINGS`.
    cubic_coefficient : float
    exclude_outside : bool
        Taps outside the input weigh nothing, and the others more; otherwise the edge is repeated.
    antialias : bool
        Widen the kernel where the output is smaller.
    extrapolation : float
        The value outside the region of ``tf_crop_and_resize``.
    """

    method: str
    coordinates: str
    rounding: str = "round_prefer_floor"
    cubic_coefficient: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False
    extrapolation: float = 0.0


@dataclass(frozen=True)
class Resized:
    """The resizing of one axis.

    Attributes
    ----------
    extent, size : int
        Before and after.
    scale : float
        Outputs per input; ``size`` may be rounded down from ``scale · extent``.
    region : (float, float)
        Start and end of the crop of ``tf_crop_and_resize``, where 1 is the last input.
    """

    extent: int
    size: int
    scale: float
    region: tuple[float, float] = (0.0, 1.0)

    @property
    def is_identity(self) -> bool:
        """Whether every output is the input of the same number."""
        return (self.extent, self.scale, self.region) == (self.size, 1.0, (0.0, 1.0))


def resize(x: Tensor, axes: Mapping[int, Resized], how: Interpolation) -> Tensor:
    """The tensor resized along axes.

    Integers are interpolated in float32 and rounded.

    Raises
    ------
    ArgumentError
        An axis has no elements.
    """
    tables = {axis: _table(x, axis, resized, how) for axis, resized in axes.items()}
    # Booleans have no products with weights.
    copies_elements = how.method == "nearest" and x.dtype != "bool"
    y = op.widen(x) if is_float(x.dtype) or copies_elements else x.astype("float32")
    outside = np.zeros([1] * x.ndim, dtype=bool)
    for axis, (table, beyond) in tables.items():
        y = resample(y, table, axis)
        outside = outside | beyond.reshape([-1 if k == axis else 1 for k in range(x.ndim)])
    if how.extrapolation and outside.any():
        filled = np.where(outside, how.extrapolation, 0.0)
        y = y + y.emitter.lift(relax.const(filled, y.dtype))
    if is_float(x.dtype) or copies_elements:
        return y.astype(x.dtype)
    return y.emitter.emit(relax.op.round(y.expr)).astype(x.dtype)


def _table(x: Tensor, axis: int, resized: Resized, how: Interpolation) -> tuple[Table, np.ndarray]:
    """The weights along one axis, and which outputs lie outside the region."""
    if not resized.extent:
        raise ArgumentError(
            f"cannot resize axis {axis} of a tensor of shape {x.shape}: it has no elements"
        )
    positions = _coordinates(resized, how.coordinates)
    # In float32 as the runtimes have it: a coordinate that is an integer or half of one up to
    # rounding counts as that.
    snapped = positions.astype("float32").astype("float64")
    beyond = np.zeros(resized.size, dtype=bool)
    if how.coordinates == "tf_crop_and_resize":
        beyond = (snapped < 0) | (snapped > resized.extent - 1)
    rows: list[dict[int, float]] = []
    for position, snap, is_beyond in zip(positions, snapped, beyond, strict=True):
        if is_beyond:
            rows.append({})  # reads nothing: `resize` adds the extrapolated value
        elif how.method == "nearest":
            nearest = int(ROUNDINGS[how.rounding](snap))
            rows.append({min(max(nearest, 0), resized.extent - 1): 1.0})
        else:
            rows.append(_weights(float(position), resized, how))
    return Table(rows, resized.extent), beyond


def _weights(position: float, resized: Resized, how: Interpolation) -> dict[int, float]:
    """The weights of the inputs around a position, less those that are 0."""
    # With antialiasing and fewer outputs the kernel is stretched, so that it reaches more inputs.
    scale = min(resized.scale, 1.0) if how.antialias else 1.0
    start = math.floor(-_SUPPORT[how.method] / scale) + 1
    taps = [math.floor(position) + tap for tap in range(start, 2 - start)]
    values = [_kernel(scale * (tap - position), how) for tap in taps]
    if how.exclude_outside:
        values = [
            value if 0 <= tap < resized.extent else 0.0
            for tap, value in zip(taps, values, strict=True)
        ]
    total = sum(values) if how.exclude_outside or how.antialias else 1.0
    weights: dict[int, float] = {}
    for tap, value in zip(taps, values, strict=True):
        if value:
            clamped = min(max(tap, 0), resized.extent - 1)
            weights[clamped] = weights.get(clamped, 0.0) + value / total
    return weights


def _kernel(distance: float, how: Interpolation) -> float:
    """The weight of an input at a distance from the position, before any normalization."""
    d, a = abs(distance), how.cubic_coefficient
    if how.method == "linear":
        return max(1.0 - d, 0.0)
    if d <= 1:
        return ((a + 2) * d - (a + 3)) * d * d + 1
    return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a if d < 2 else 0.0


def _coordinates(axis: Resized, mode: str) -> np.ndarray:
    """The position of each output among the inputs, by ONNX's formula for the mode.

    Raises
    ------
    ArgumentError
        There is no such mode.
    """
    outputs = np.arange(axis.size, dtype="float64")
    # The scaled extent before it is rounded down to `size`; `size` itself, where only the rounding
    # of the scale keeps them apart.
    resized = axis.scale * axis.extent
    if math.isclose(resized, axis.size, rel_tol=1e-6):
        resized = axis.size
    last, start, end = axis.extent - 1, *axis.region
    if mode == "align_corners":
        return outputs * last / (resized - 1) if resized != 1 else 0 * outputs
    if mode == "asymmetric":
        return outputs / axis.scale
    if mode == "tf_crop_and_resize":
        if resized == 1:
            return 0 * outputs + 0.5 * (start + end) * last
        return start * last + outputs * (end - start) * last / (resized - 1)
    if mode == "pytorch_half_pixel" and axis.size == 1:
        return 0 * outputs
    if mode == "tf_half_pixel_for_nn":
        return (outputs + 0.5) / axis.scale
    if mode in ("half_pixel", "pytorch_half_pixel"):
        return (outputs + 0.5) / axis.scale - 0.5
    if mode == "half_pixel_symmetric":
        center = 0.5 * axis.extent * (1 - axis.size / resized)
        return center + (outputs + 0.5) / axis.scale - 0.5
    raise ArgumentError(f"unknown coordinate transformation {mode!r}")


@legalization_by_ops("relax.image.resize2d", "relax.image.resize3d", or_stock=True)
def resize_image(x: Tensor, size: Any, attrs: Any) -> Tensor:
    """The results of ``relax.image.resize2d`` and ``resize3d``, by their attributes.

    Raises
    ------
    ArgumentError
        A spatial extent is symbolic, or the layout is blocked.
    """
    spatial = [name for name in "DHW" if name in attrs.layout]
    if len(attrs.layout) != x.ndim:
        raise ArgumentError(f"cannot resize in the blocked layout {attrs.layout}")
    axes = {}
    for k, name in enumerate(spatial):
        axis = attrs.layout.index(name)
        extent, target = x.shape[axis], _number(size[k])
        if not isinstance(extent, int) or target is None:
            raise ArgumentError(
                f"cannot resize axis {name} from {extent} to {dimension_text(size[k])}: both "
                "extents must be numbers; give the input a static shape there"
            )
        scale = target / extent if extent else 1.0
        axes[axis] = Resized(extent, target, scale, _region(attrs, k, len(spatial)))
    how = Interpolation(
        attrs.method.removesuffix("_neighbor"),
        attrs.coordinate_transformation_mode,
        attrs.rounding_method
        or ("round" if attrs.coordinate_transformation_mode == "align_corners" else "floor"),
        attrs.cubic_alpha,
        bool(attrs.cubic_exclude),
        extrapolation=attrs.extrapolation_value,
    )
    y = resize(x, axes, how)
    return y.astype(str(attrs.out_dtype)) if attrs.out_dtype else y


def _region(attrs: Any, axis: int, rank: int) -> tuple[float, float]:
    """The crop along a spatial axis; the three-dimensional op lists them in reverse."""
    roi: Sequence[float] = attrs.roi
    axis = rank - 1 - axis if rank == 3 else axis
    start, end = roi[axis], roi[axis + rank]
    return start, end


def _number(extent: Any) -> int | None:
    """An extent as an int; None if it is symbolic."""
    try:
        return int(extent)
    except TypeError:
        return None


@layout_rule("relax.image.resize2d", "relax.image.resize3d")
def resizing_layout(site: Site) -> LaidOut | None:
    """The resizing in NHWC, where the data come in that order."""
    x = site.operands[0]
    standard = LAYOUTS[x.rank - 2]
    if x.is_plain or site.attributes.layout != standard:
        return None
    order = orders.channels_last(x.rank)
    layout = orders.letters(standard, order)
    return site.passed([x.in_order(order), *site.call.args[1:]], order, layout=layout)
