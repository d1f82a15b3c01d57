"""Rules of resampling: resizing, sampling at the points of a grid."""

from __future__ import annotations

import itertools
from typing import Any

from tvm import relax

from ..ir.tensor import Tensor
from ..ops.grid_sample import affine_image_grid, sample_image
from ..ops.resample import Table, resample_by
from ..ops.resize import resize_image
from .rule import composite, register_gradient
from .sample import Sample, sample, static, tensor

_CROP: dict[str, Any] = {"coordinate_transformation_mode": "tf_crop_and_resize"}

RESIZES: list[Sample] = [
    sample((1, 2, 3, 4), static((5, 6))),
    sample((2, 1, 5, 4), static((3, 2)), method="nearest_neighbor", rounding_method="floor"),
    sample((1, 4, 5, 2), static((3, 7)), method="cubic", layout="NHWC"),
    sample((1, 1, 4, 5), static((7, 3)), method="cubic", cubic_exclude=1, cubic_alpha=-0.5),
    sample(
        (1, 1, 4, 5),
        static((3, 4)),
        roi=(0.2, -0.3, 0.9, 1.2),
        extrapolation_value=7.0,
        **_CROP,
    ),
    sample((1, 1, 4, 4), static((1, 1)), roi=(0.2, 0.3, 0.7, 0.9), **_CROP),
    sample(("n", 2, 3, 4), static((6, 4))),
    sample((1, 1, 3, 3), static((3, 3))),
]
RESIZES += [
    sample((1, 1, 4, 3), static(size), method=method, coordinate_transformation_mode=mode)
    for method, mode, size in itertools.product(
        ("linear", "cubic"),
        ("align_corners", "asymmetric", "pytorch_half_pixel"),
        ((6, 2), (1, 5)),
    )
]
RESIZES += [
    sample(
        (1, 1, 4, 5),
        static((7, 3)),
        method="nearest_neighbor",
        coordinate_transformation_mode=mode,
        rounding_method=rounding,
    )
    for mode, rounding in itertools.product(
        ("asymmetric", "half_pixel"),
        ("", "round", "round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
    )
]
RESIZES += [
    sample(
        (1, 1, 4, 5),
        static((7, 3)),
        method="nearest_neighbor",
        coordinate_transformation_mode=mode,
        rounding_method="",
    )
    for mode in ("align_corners", "tf_half_pixel_for_nn")
]

RESIZES_3D = [
    sample((1, 1, 2, 3, 4), static((3, 2, 5))),
    sample((1, 2, 3, 2, 1), static((2, 4, 3)), layout="NDHWC", method="cubic"),
    sample((1, 1, 3, 3, 2), static((2, 6, 5)), method="nearest_neighbor"),
    sample((1, 1, 3, 4, 5), static((2, 3, 3)), roi=(0.1, 0.2, 0.3, 0.7, 0.8, 1.1), **_CROP),
]

_METHODS = ("bilinear", "nearest", "bicubic")
_PADDINGS = ("zeros", "border", "reflection")

GRID_SAMPLES = [
    sample(
        (2, 2, 3, 4),
        tensor((2, 2, 2, 3), -1.6, 1.6),
        second_order=method == "bicubic",
        method=method,
        padding_mode=padding,
        align_corners=align_corners,
    )
    for method, padding, align_corners in itertools.product(_METHODS, _PADDINGS, (False, True))
    if method == "bilinear" or align_corners == (padding == "border")
]
GRID_SAMPLES += [
    sample(
        (1, 2, 3, 2, 4),
        tensor((1, 3, 2, 1, 3), -1.6, 1.6),
        second_order=False,
        layout="NCDHW",
        method=method,
        padding_mode=padding,
        align_corners=padding == "border",
    )
    for method, padding in zip(_METHODS[:2], _PADDINGS[1:], strict=True)
]
GRID_SAMPLES += [
    sample(("n", 1, 3, 4), tensor(("n", 2, 2, 2), -1.6, 1.6)),
    sample((1, 1, 1, 1), tensor((1, 2, 2, 2)), padding_mode="reflection", align_corners=True),
]


def _resample_sample(shape: tuple[Any, ...], axis: int, rows: Any, extent: int) -> Sample:
    table = Table(rows, extent)
    arrays = [*table.arrays(), *table.transposed().arrays()]
    return sample(shape, *(relax.const(a, str(a.dtype)) for a in arrays), axis=axis)


@register_gradient(
    "graphgrad.resample",
    samples=[
        _resample_sample((2, 5), 1, [{0: 1.0}, {2: 0.5, 3: 0.5}, {}, {4: -1.5, 0: 2.0}], 5),
        _resample_sample((3, 2, 2), 0, [{2: 1.0}, {0: 1.0}], 3),
        _resample_sample(("n", 2, 1), 1, [{1: 0.25}] * 3, 2),
    ],
)
def resample_rule(inputs: Any, outputs: Any, cotangents: Any, attrs: Any) -> Any:
    """x̄ = resample(ȳ) by the transposed table"""
    (_, *tables), (ct,) = inputs, cotangents
    transposed = [*tables[2:], *tables[:2]]
    return resample_by(ct, transposed, attrs.axis), None, None, None, None


def resize(x: Tensor, size: Any, attrs: Any) -> Tensor:
    """y = the weighted sums of a few elements, along one spatial axis after the other"""
    return resize_image(x, size, attrs)


@composite("relax.image.grid_sample", samples=GRID_SAMPLES)
def grid_sample(x: Tensor, grid: Tensor, attrs: Any) -> Tensor:
    """y = Σ over the elements around each point of their value · weight(distance)"""
    return sample_image(x, grid, attrs)


@composite(
    "relax.image.affine_grid",
    samples=[
        sample((2, 2, 3), static((3, 4)), align_corners=False),
        sample(("n", 2, 3), static((2, 1)), align_corners=True),
        sample((2, 3, 4), static((2, 3, 2)), align_corners=True),
        sample((1, 3, 4), static((2, 1, 3)), align_corners=False),
    ],
)
def affine_grid(theta: Tensor, size: Any, attrs: Any) -> Tensor:
    """grid = θ · (the coordinates of a regular grid, 1)"""
    return affine_image_grid(theta, size, attrs)


composite("relax.image.resize2d", samples=RESIZES)(resize)
composite("relax.image.resize3d", samples=RESIZES_3D)(resize)
