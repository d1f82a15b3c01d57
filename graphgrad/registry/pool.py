"""Rules of pooling, over one, two and three spatial axes."""

from __future__ import annotations

from typing import Any

from ..ir.tensor import Tensor
from ..ops import pool
from ..ops.pool_windows import LAYOUTS, Pool
from .conv import to_layout
from .rule import composite, linear, nondifferentiable, register_gradient
from .sample import Sample, sample, static, tensor

POOLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
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
    (("n", 2, 4, 5), {"pool_size": 2, "strides": 2, "padding": 1}),
    (("n", 1, "h", 4), {"pool_size": 2, "strides": 1, "padding": 1}),
    ((2, 5, 6, 2), {"pool_size": 3, "strides": 2, "padding": 1, "layout": "NHWC"}),
    ((1, 2, 4, 6), {"pool_size": 2, "strides": 2, "out_layout": "NHWC"}),
    ((2, 3, 7), {"pool_size": 3, "strides": 2}),
    ((2, 1, 6), {"pool_size": 3, "strides": 2, "padding": (0, 2), "ceil_mode": True}),
    ((1, 2, 9), {"pool_size": 3, "strides": 1, "padding": 1, "dilation": 2}),
    (("n", 6, 2), {"pool_size": 2, "strides": 2, "padding": 1, "layout": "NWC"}),
    ((1, 2, 4, 5, 4), {"pool_size": 2, "strides": 2}),
    (
        (1, 1, 5, 4, 3),
        {
            "pool_size": (3, 2, 2),
            "strides": (2, 1, 2),
            "padding": (1, 1, 0, 0, 0, 1),
            "ceil_mode": True,
            "count_include_pad": True,
        },
    ),
    ((1, 4, 4, 3, 2), {"pool_size": 2, "strides": 1, "dilation": (2, 1, 1), "layout": "NDHWC"}),
]
"""Input shape and windows; some do not cover the input, some overlap."""

IN_PADDING: tuple[tuple[int, ...], dict[str, Any]] = (
    (1, 1, 3, 3),
    {"pool_size": 2, "strides": 2, "padding": 3},
)
"""Windows that lie in the padding as a whole."""

Case = tuple[tuple[Any, ...], dict[str, Any]]


def _of_rank(rank: int) -> list[Case]:
    return [case for case in POOLS if len(case[0]) == rank + 2]


def _in_full(rank: int, attributes: dict[str, Any]) -> dict[str, Any]:
    """Write the windows in full, as the attributes of our own ops have them."""

    def all_axes(value: Any) -> tuple[int, ...]:
        return (value,) * rank if isinstance(value, int) else tuple(value)

    padding = all_axes(attributes.get("padding", 0))
    return {
        "pool_size": all_axes(attributes["pool_size"]),
        "strides": all_axes(attributes["strides"]),
        "padding": padding if len(padding) == 2 * rank else (*padding, *padding),
        "dilation": all_axes(attributes.get("dilation", 1)),
        "ceil_mode": attributes.get("ceil_mode", False),
        "count_include_pad": attributes.get("count_include_pad", False),
        "layout": attributes.get("layout", LAYOUTS[rank]),
    }


def avg_pool(x: Tensor, ct: Tensor, attrs: Any) -> Tensor:
    """x̄ = Σ over the windows that contain the element of ȳ / count"""
    windows = Pool.of(attrs)
    ct = to_layout(ct, attrs.out_layout, windows.layout)
    return pool.avg_pool_gradient(ct, x.shape, windows)


@linear(
    "graphgrad.avg_pool_gradient",
    samples=[
        sample((2, 3, 3, 3), static((2, 3, 6, 6)), **_in_full(2, POOLS[0][1])),
        sample((1, 2, 4, 3), static((1, 2, 7, 5)), **_in_full(2, POOLS[1][1])),
        sample((1, 2, 4), static((1, 2, 9)), **_in_full(1, {"pool_size": 3, "strides": 2})),
        sample(
            (2, 3, 3, 2),
            static((2, 5, 6, 2)),
            **_in_full(2, {"pool_size": 3, "strides": 2, "padding": 1, "layout": "NHWC"}),
        ),
        sample(
            (1, 1, 2, 2, 1),
            static((1, 1, 4, 4, 3)),
            **_in_full(3, {"pool_size": 2, "strides": 2}),
        ),
    ],
)
def avg_pool_gradient(ct: Tensor, shape: Any, v: Tensor, attrs: Any) -> tuple[Tensor, None]:
    """With v the cotangent of x̄: avg_pool(v)"""
    return pool.avg_pool(v, Pool.of(attrs)), None


# Registered for one to three axes at the end of this file, as `avg_pool` is.
def max_pool(inputs: Any, outputs: Any, cotangents: Any, attrs: Any) -> tuple[Tensor]:
    """x̄ = Σ of ȳ over the windows whose first maximum stands at the element

    The first in row-major order of taps, or the first NaN if there is one. A window that lies in
    the padding sends nothing.
    """
    windows = Pool.of(attrs)
    y, ct = (to_layout(t, attrs.out_layout, windows.layout) for t in (outputs[0], cotangents[0]))
    index = pool.max_pool_index(inputs[0], y, windows)
    return (pool.max_pool_scatter(ct, index, inputs[0].shape, windows),)


def adaptive_avg_pool(x: Tensor, attrs: Any) -> Tensor:
    """y = the mean over each of the (nearly) equal parts of each spatial axis"""
    return pool.adaptive_pool_image(x, attrs)


def _index_samples(position: int) -> list[Sample]:
    """Calls with an index of taps for each rank: windows of 2 at stride 2 over 4."""
    samples = []
    for layout in ("NCW", "NCHW", "NHWC", "NCDHW"):
        rank = len(layout) - 2
        outputs, inputs = (
            tuple({"N": 1, "C": 2}.get(axis, extent) for axis in layout) for extent in (2, 4)
        )
        index = tensor(outputs, 0, 2**rank + 1, dtype="int32")
        arguments = [(outputs, index, static(inputs)), (inputs, index)][position]
        windows = _in_full(rank, {"pool_size": 2, "strides": 2, "layout": layout})
        samples.append(sample(*arguments, **windows))
    return samples


@register_gradient("graphgrad.max_pool_scatter", samples=_index_samples(0))
def max_pool_scatter(inputs: Any, outputs: Any, cotangents: Any, attrs: Any) -> Any:
    """With v the cotangent of x̄: v at the window's maximum"""
    (_, index, _), (v,) = inputs, cotangents
    return pool.max_pool_gather(v, index, Pool.of(attrs)), None, None


@register_gradient("graphgrad.max_pool_gather", samples=_index_samples(1))
def max_pool_gather(inputs: Any, outputs: Any, cotangents: Any, attrs: Any) -> Any:
    """x̄ = Σ of ȳ over the windows whose index points at the element"""
    (x, index), (ct,) = inputs, cotangents
    return pool.max_pool_scatter(ct, index, x.shape, Pool.of(attrs)), None


nondifferentiable("graphgrad.max_pool_index", "graphgrad.max_pool_position")

ADAPTIVE: list[Case] = [
    ((2, 2, 6), {"output_size": 3}),
    ((1, 2, 7), {"output_size": 3}),
    (("n", 4, 2), {"output_size": 6, "layout": "NWC"}),
    ((1, 2, 3), {}),
    ((2, 2, 5, 6), {"output_size": (3, 4)}),
    ((2, 2, "h", 5), {"output_size": 1}),
    ((1, 4, 5, 2), {"output_size": (2, 7), "layout": "NHWC", "out_layout": "NCHW"}),
    ((1, 2, 4, 3, 5), {"output_size": (2, 3, 1)}),
    ((1, 3, 4, 5, 2), {"output_size": 2, "layout": "NDHWC"}),
]
"""Input shape and attributes of adaptive average pooling."""

for _rank in (1, 2, 3):
    linear(
        f"relax.nn.avg_pool{_rank}d",
        samples=[sample(shape, **windows) for shape, windows in _of_rank(_rank)]
        + [sample(IN_PADDING[0], **IN_PADDING[1])] * (_rank == 2),
    )(avg_pool)
    register_gradient(
        f"relax.nn.max_pool{_rank}d",
        samples=[
            sample(tensor(shape, distinct=True), **windows) for shape, windows in _of_rank(_rank)
        ],
    )(max_pool)
    composite(
        f"relax.nn.adaptive_avg_pool{_rank}d",
        samples=[
            sample(shape, **attributes) for shape, attributes in ADAPTIVE if len(shape) == _rank + 2
        ],
    )(adaptive_avg_pool)
