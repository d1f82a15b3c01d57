"""Sampling an image at the points of a grid, and grids of affine maps.

Written in ops that have gradients: gathers of the elements around each point, and weights that are
polynomials of its distance to them. Definitions: ``torch.nn.functional.grid_sample`` and
``affine_grid``, which ONNX shares; Jaderberg et al., *Spatial transformer networks* (2015).
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from ..errors import ArgumentError
from ..ir.tensor import Dimension, Tensor, is_float
from . import functional as op
from .index import gather_at
from .indexing import Indexing
from .legalize import legalization_by_ops

_CUBIC = -0.75
"""The free coefficient of the cubic kernel, as PyTorch and ONNX have it."""

_TAPS: dict[str, tuple[list[float], list[list[float]]]] = {
    "nearest": ([0.0], [[1.0]]),
    "linear": ([0.0, 1.0], [[1.0, 0.0], [-1.0, 1.0]]),
    "cubic": (
        [-1.0, 0.0, 1.0, 2.0],
        [
            [0.0, 1.0, 0.0, 0.0],
            [_CUBIC, 0.0, -_CUBIC, 0.0],
            [-2 * _CUBIC, -(_CUBIC + 3), 2 * _CUBIC + 3, _CUBIC],
            [_CUBIC, _CUBIC + 2, -(_CUBIC + 2), -_CUBIC],
        ],
    ),
}
"""For each method the elements that a point reads along an axis, and their weights.

Elements are numbered from the one at or below the point. A weight is a polynomial in t, the
distance of the point from that element: row k has the coefficients of tᵏ, one for each element. The
cubic kernel is that of Keys (1981)."""


@dataclass(frozen=True)
class Sampling:
    """The method by which values between and beyond the elements are computed.

    Attributes
    ----------
    method : "nearest", "linear" or "cubic"
    padding : "zeros", "border" or "reflection"
    align_corners : bool
        Whether −1 and 1 are the centers of the first and last element, or their outer edges.
    """

    method: str
    padding: str
    align_corners: bool


@dataclass(frozen=True)
class _Taps:
    """The elements around each point, as tensors of shape (batch, points, taps).

    Attributes
    ----------
    position : Tensor
        int64, always that of an element.
    weight : Tensor
    inside : Tensor
        Whether the element exists.
    """

    position: Tensor
    weight: Tensor
    inside: Tensor


def grid_sample(x: Tensor, grid: Tensor, how: Sampling) -> Tensor:
    """The values of x (batch, channels, spatial axes …) at points: (batch, channels, grid axes …).

    Parameters
    ----------
    x : Tensor
        With any number r of spatial axes.
    grid : Tensor
        (batch, grid axes …, r): coordinates from −1 to 1, that of the last spatial axis first.
    how : Sampling

    Integers are sampled in float64, and the digits behind the point are cut off.

    Raises
    ------
    ArgumentError
        A spatial extent of x is symbolic.
    """
    extents = _static(x.shape[2:])
    batch, channels, *_ = x.shape
    dtype = x.dtype
    if not is_float(dtype):  # float64 holds every integer up to 2⁵³
        x = x.astype("float64")
    points = math.prod(grid.shape[1:-1])
    rows = op.reshape(op.widen(grid), [batch, points, len(extents)]).astype(op.widen(x).dtype)
    coordinates = op.split(rows, len(extents), axis=-1) if len(extents) > 1 else [rows]
    # The grid has the coordinate of the last spatial axis first.
    positions = [
        _unnormalize(coordinate, extent, how.align_corners)
        for coordinate, extent in zip(reversed(coordinates), extents, strict=True)
    ]
    sampled = op.reshape(sample_at(x, positions, how), [batch, *grid.shape[1:-1], channels])
    last = sampled.ndim - 1
    return op.permute_dims(sampled, [0, last, *range(1, last)]).astype(dtype)


def sample_at(x: Tensor, positions: Sequence[Tensor], how: Sampling) -> Tensor:
    """The values of x (batch, channels, spatial axes …) at points: (batch, points, channels).

    Half precision is sampled, and returned, in float32.

    Parameters
    ----------
    x : Tensor
    positions : sequence of Tensor
        For each spatial axis where the points are, counted in elements from the center of the
        first: (batch, points, 1), in the dtype of the result.
    how : Sampling

    Raises
    ------
    ArgumentError
        A spatial extent of x is symbolic.
    """
    extents = _static(x.shape[2:])
    elements = op.reshape(op.widen(x), [*x.shape[:2], math.prod(extents)])
    elements = op.permute_dims(elements, [0, 2, 1])
    taps_of_axes = [
        _taps(position, extent, how) for position, extent in zip(positions, extents, strict=True)
    ]
    taps = functools.reduce(_combined, zip(taps_of_axes, extents, strict=True))[0]
    index, weight, inside = (
        op.expand_dims(t, [-1]) for t in (taps.position, taps.weight, taps.inside)
    )
    values = op.where(inside, gather_at(elements, index, Indexing("nd", 1)), 0.0)
    return op.reduce_sum(values * weight, [2])


def affine_grid(theta: Tensor, size: Sequence[Dimension], align_corners: bool) -> Tensor:
    """The affine maps `theta` of the points of a regular grid: (batch, r, grid axes …).

    Parameters
    ----------
    theta : Tensor
        (batch, r, r + 1): of each coordinate, the factors of the coordinates and the offset.
    size : sequence of int
        The r extents of the grid.
    align_corners : bool
        As of `Sampling`.

    Raises
    ------
    ArgumentError
        An extent is symbolic.
    """
    extents = _static(size)
    axes = [_regular(extent, align_corners) for extent in extents]
    points = np.meshgrid(*axes, indexing="ij")
    rows = [axis.reshape(-1) for axis in reversed(points)]
    base = np.stack([*rows, np.ones_like(rows[0])])
    wide = op.widen(theta)
    mapped = wide @ wide.emitter.lift(relax.const(base, wide.dtype))
    return op.reshape(mapped, [theta.shape[0], len(extents), *extents]).astype(theta.dtype)


def _static(extents: Sequence[Any]) -> list[int]:
    try:
        return [int(extent) for extent in extents]
    except TypeError:
        raise ArgumentError(
            f"sampling at a grid needs spatial extents that are numbers, given {list(extents)}; "
            "give the input a static shape there"
        ) from None


def _regular(extent: int, align_corners: bool) -> np.ndarray:
    """The coordinates from −1 to 1 of the elements along an axis."""
    steps = np.arange(extent, dtype="float64")
    if align_corners:
        return 2 * steps / (extent - 1) - 1 if extent > 1 else 0 * steps
    return (2 * steps + 1) / extent - 1


def _combined(slow: tuple[_Taps, int], fast: tuple[_Taps, int]) -> tuple[_Taps, int]:
    """The taps of two axes together, in row-major order, and the number of elements of both."""
    (a, extent_a), (b, extent_b) = slow, fast
    count = a.weight.shape[-1] * b.weight.shape[-1]

    def pairs(combine: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor) -> Tensor:
        combined = combine(op.expand_dims(x, [-1]), op.expand_dims(y, [-2]))
        return op.reshape(combined, [*combined.shape[:2], count])

    taps = _Taps(
        pairs(lambda x, y: x * extent_b + y, a.position, b.position),
        pairs(operator.mul, a.weight, b.weight),
        pairs(op.logical_and, a.inside, b.inside),
    )
    return taps, extent_a * extent_b


def _unnormalize(coordinate: Tensor, extent: int, align_corners: bool) -> Tensor:
    """The position of a coordinate from −1 to 1, in elements from the center of the first."""
    if align_corners:
        return (coordinate + 1.0) * ((extent - 1) / 2)
    return ((coordinate + 1.0) * float(extent) - 1.0) * 0.5


def _taps(x: Tensor, extent: int, how: Sampling) -> _Taps:
    """The elements along one axis around each point."""
    # As PyTorch has it: the point itself is moved inside, but of a cubic kernel each of its taps.
    if how.method != "cubic":
        x = _padded(x, extent, how)
    low = op.round(x) if how.method == "nearest" else op.floor(x)
    offsets, coefficients = _TAPS[how.method]
    # Horner's scheme, from the highest power of t = x − low.
    weight = _row(x, coefficients[-1])
    for row in reversed(coefficients[:-1]):
        weight = weight * (x - low) + _row(x, row)
    position = low + _row(x, offsets)
    if how.method == "cubic":
        position = _padded(position, extent, how)
    # As a float, so that NaN and numbers beyond the integers are outside.
    inside = op.logical_and(
        op.greater_equal(position, 0.0), op.less_equal(position, float(extent - 1))
    )
    element = op.where(inside, position, 0.0).astype("int64")
    return _Taps(element, op.broadcast_to(weight, element.shape), inside)


def _row(like: Tensor, numbers: Sequence[float]) -> Tensor:
    """A constant of shape (1, 1, taps)."""
    return like.emitter.lift(relax.const(np.array([[numbers]]), like.dtype))


def _padded(x: Tensor, extent: int, how: Sampling) -> Tensor:
    """The position that is read for `x`: another one only where `x` is outside of the image."""
    if how.padding == "zeros":
        return x
    if how.padding == "reflection":
        x = _reflected(x, extent, how.align_corners)
    # As PyTorch has it, the slope is 0 on the border itself.
    last = float(extent - 1)
    return op.where(op.greater(x, 0.0), op.where(op.less(x, last), x, last), 0.0)


def _reflected(x: Tensor, extent: int, align_corners: bool) -> Tensor:
    """Fold the line onto the image, at the centers or at the edges of the outer elements."""
    low = 0.0 if align_corners else -0.5
    span = float(extent - 1) if align_corners else float(extent)
    # One element, whose center is both ends: it is read everywhere.
    if not span:
        return x.emitter.full(0.0, x.shape, x.dtype)
    distance = op.abs(x - low)
    flips = op.floor(distance / span)
    beyond = distance - flips * span
    is_even = op.equal(flips - op.floor(flips / 2.0) * 2.0, 0.0)
    return op.where(is_even, beyond, span - beyond) + low


@legalization_by_ops("relax.image.grid_sample", or_stock=True)
def sample_image(x: Tensor, grid: Tensor, attrs: Any) -> Tensor:
    """The result of ``relax.image.grid_sample``, whose grid has its coordinates along axis 1."""
    rank = x.ndim - 2
    points_first = op.permute_dims(grid, [0, *range(2, rank + 2), 1])
    method = {"bilinear": "linear", "bicubic": "cubic"}.get(attrs.method, attrs.method)
    how = Sampling(method, attrs.padding_mode, bool(attrs.align_corners))
    return grid_sample(x, points_first, how)


@legalization_by_ops("relax.image.affine_grid", or_stock=True)
def affine_image_grid(theta: Tensor, size: Sequence[Dimension], attrs: Any) -> Tensor:
    """The result of ``relax.image.affine_grid``, by its attributes."""
    return affine_grid(theta, list(size), bool(attrs.align_corners))
