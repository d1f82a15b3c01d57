"""Rules of pooling."""

from __future__ import annotations

from typing import Any

from ..ops import pool
from ..ops.pool import Pool
from ..ops.tensor import Tensor
from .conv import to_layout
from .rule import linear, nondifferentiable, register_gradient
from .sample import Sample, sample, static, tensor

POOLS: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 6, 6), {"pool_size": 2, "strides": 2}),
    ((1, 2, 7, 5), {"pool_size": 3, "strides": 2, "padding": 1}),
    ((1, 2, 5, 5), {"pool_size": 2, "strides": 2}),
    ((1, 1, 7, 7), {"pool_size": 2, "strides": 3}),
    ((1, 2, 6, 7), {"pool_size": (3, 2), "strides": (1, 2), "padding": (1, 0, 0, 1)}),
    ((1, 2, 6, 6), {"pool_size": 3, "strides": 2, "ceil_mode": True}),
    ((1, 2, 7, 6), {"pool_size": 2, "strides": (1, 2), "dilation": (3, 2), "padding": 1}),
    ((1, 2, 5, 5), {"pool_size": 3, "strides": 1, "padding": 1, "count_include_pad": True}),
    (
        (1, 2, 6, 6),
        {"pool_size": 3, "strides": 2, "padding": 1, "ceil_mode": True, "count_include_pad": True},
    ),
]
"""Input shape and windows; some do not cover the input, some overlap."""


def _in_full(attributes: dict[str, Any]) -> dict[str, Any]:
    """Write the windows in full, as the attributes of our own ops have them."""

    def pair(value: Any) -> tuple[int, ...]:
        return (value, value) if isinstance(value, int) else tuple(value)

    padding = pair(attributes.get("padding", 0))
    return {
        "pool_size": pair(attributes["pool_size"]),
        "strides": pair(attributes["strides"]),
        "padding": padding if len(padding) == 4 else (*padding, *padding),
        "dilation": pair(attributes.get("dilation", 1)),
        "ceil_mode": attributes.get("ceil_mode", False),
        "count_include_pad": attributes.get("count_include_pad", False),
    }


@linear(
    "relax.nn.avg_pool2d",
    samples=[sample(shape, **windows) for shape, windows in POOLS]
    + [sample((1, 6, 6, 2), pool_size=2, strides=2, layout="NHWC")],
)
def avg_pool2d(x: Tensor, ct: Tensor, attrs: Any) -> Tensor:
    """x̄ = Σ over the windows that contain the element of ȳ / count"""
    ct = to_layout(ct, attrs.out_layout, "NCHW")
    shape = [x.shape[attrs.layout.index(axis)] for axis in "NCHW"]
    x_bar = pool.avg_pool2d_gradient(ct, shape, Pool.of(attrs))
    return to_layout(x_bar, "NCHW", attrs.layout)


@linear(
    "graphgrad.avg_pool2d_gradient",
    samples=[
        sample((2, 3, 3, 3), static((2, 3, 6, 6)), **_in_full(POOLS[0][1])),
        sample((1, 2, 4, 3), static((1, 2, 7, 5)), **_in_full(POOLS[1][1])),
    ],
)
def avg_pool2d_gradient(ct: Tensor, shape: Any, v: Tensor, attrs: Any) -> tuple[Tensor, None]:
    """With v the cotangent of x̄: avg_pool2d(v)"""
    return pool.avg_pool2d(v, Pool.of(attrs)), None


@register_gradient(
    "relax.nn.max_pool2d",
    samples=[sample(tensor(shape, distinct=True), **windows) for shape, windows in POOLS]
    + [sample(tensor((1, 6, 6, 2), distinct=True), pool_size=3, strides=2, layout="NHWC")],
)
def max_pool2d(inputs: Any, outputs: Any, cotangents: Any, attrs: Any) -> tuple[Tensor]:
    """x̄ = Σ of ȳ over the windows whose first maximum stands at the element"""
    x = to_layout(inputs[0], attrs.layout, "NCHW")
    y, ct = (to_layout(t, attrs.out_layout, "NCHW") for t in (outputs[0], cotangents[0]))
    windows = Pool.of(attrs)
    index = pool.max_pool2d_index(x, y, windows)
    x_bar = pool.max_pool2d_scatter(ct, index, x.shape, windows)
    return (to_layout(x_bar, "NCHW", attrs.layout),)


def _index_samples(shape: tuple[int, ...], *more: Any) -> list[Sample]:
    """Return calls with an index of taps, for 2×2 windows at stride 2 over 4×4 elements."""
    index = tensor((1, 2, 2, 2), 0, 4, dtype="int32")
    return [sample(shape, index, *more, **_in_full({"pool_size": 2, "strides": 2}))]


@register_gradient(
    "graphgrad.max_pool2d_scatter", samples=_index_samples((1, 2, 2, 2), static((1, 2, 4, 4)))
)
def max_pool2d_scatter(inputs: Any, outputs: Any, cotangents: Any, attrs: Any) -> Any:
    """With v the cotangent of x̄: v at the window's maximum"""
    (_, index, _), (v,) = inputs, cotangents
    return pool.max_pool2d_gather(v, index, Pool.of(attrs)), None, None


@register_gradient("graphgrad.max_pool2d_gather", samples=_index_samples((1, 2, 4, 4)))
def max_pool2d_gather(inputs: Any, outputs: Any, cotangents: Any, attrs: Any) -> Any:
    """x̄ = Σ of ȳ over the windows whose index points at the element"""
    (x, index), (ct,) = inputs, cotangents
    return pool.max_pool2d_scatter(ct, index, x.shape, Pool.of(attrs)), None


nondifferentiable("graphgrad.max_pool2d_index")
