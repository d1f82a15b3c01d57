"""Rules of convolutions: with two ops of our own they are closed under differentiation."""

from __future__ import annotations

from typing import Any

from ..errors import ArgumentError
from ..ops import conv
from ..ops import functional as op
from ..ops.conv import Window
from ..ops.tensor import Tensor
from .rule import bilinear
from .sample import sample, static

WINDOWS: list[tuple[tuple[Any, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 5, 5), (4, 3, 3, 3), {"padding": 1}),
    ((2, 3, 6, 7), (4, 3, 3, 3), {"strides": 2, "padding": 1}),
    ((1, 4, 7, 6), (6, 2, 3, 2), {"strides": (2, 3), "padding": (1, 0, 2, 1), "groups": 2}),
    ((2, 4, 6, 5), (4, 1, 3, 3), {"padding": 1, "groups": 4}),
    ((2, 3, 5, 5), (6, 1, 3, 3), {"strides": 2, "padding": 1, "groups": 3}),
    ((1, 2, 8, 9), (3, 2, 3, 2), {"dilation": (2, 3), "padding": 2}),
    ((1, 8, 5, 5), (4, 8, 1, 1), {"strides": 2}),
    ((1, 2, 7, 7), (2, 2, 3, 3), {"strides": 3, "dilation": 2, "padding": (1, 2)}),
    ((1, 1, 1, 1), (1, 1, 1, 1), {}),
    (("n", 3, 4, 4), (2, 3, 3, 3), {"padding": 1}),
]
"""Input shape, weight shape and window of convolutions."""


_HWIO = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
_OHWI = {"data_layout": "NHWC", "kernel_layout": "OHWI"}
CHANNELS_LAST: list[tuple[tuple[Any, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 5, 5, 3), (3, 3, 3, 4), {"strides": 2, "padding": 1, **_HWIO}),
    ((1, 6, 5, 4), (2, 3, 2, 6), {"padding": (1, 0, 2, 1), "groups": 2, **_HWIO}),
    ((2, 5, 6, 3), (4, 3, 2, 3), {"dilation": 2, **_OHWI}),
    ((2, 5, 5, 3), (4, 3, 3, 3), {"data_layout": "NHWC", "kernel_layout": "OIHW"}),
]
"""The same with the channels of the data last."""


def _window_of(attributes: dict[str, Any]) -> dict[str, Any]:
    """Write a window in full, as the attributes of our own ops have it."""

    def pair(value: Any) -> tuple[int, int]:
        return (value, value) if isinstance(value, int) else tuple(value)

    padding = attributes.get("padding", 0)
    pads = pair(padding)
    return {
        "strides": pair(attributes.get("strides", 1)),
        "padding": pads if len(pads) == 4 else (*pads, *pads),
        "dilation": pair(attributes.get("dilation", 1)),
        "groups": attributes.get("groups", 1),
    }


def _output_shape(x: tuple[int, ...], w: tuple[int, ...], window: dict[str, Any]) -> tuple:
    spatial = [
        (
            x[2 + i]
            + window["padding"][i]
            + window["padding"][2 + i]
            - (w[2 + i] - 1) * window["dilation"][i]
            - 1
        )
        // window["strides"][i]
        + 1
        for i in range(2)
    ]
    return (x[0], w[0], *spatial)


def _gradient_samples(first: str) -> list[Any]:
    samples = []
    for x, w, attributes in WINDOWS:
        window = _window_of(attributes)
        if isinstance(x[0], str):
            continue
        ct = _output_shape(x, w, window)
        arguments = {"data": (ct, w, static(x)), "weight": (x, ct, static(w))}[first]
        samples.append(sample(*arguments, **window))
    return samples


@bilinear(
    "relax.nn.conv2d", samples=[sample(x, w, **window) for x, w, window in WINDOWS + CHANNELS_LAST]
)
def conv2d(x: Tensor, w: Tensor, ct: Tensor, attrs: Any) -> tuple[Tensor, Tensor]:
    """x̄ = data_gradient(ȳ, w),  w̄ = weight_gradient(x, ȳ)"""
    window = Window.of(attrs)
    x, w, ct = op.same_dtype(x, w, ct)
    x = to_layout(x, attrs.data_layout, "NCHW")
    w = to_layout(w, attrs.kernel_layout, "OIHW")
    ct = to_layout(ct, attrs.out_layout, "NCHW")
    x_bar = conv.conv2d_data_gradient(ct, w, x.shape, window)
    w_bar = conv.conv2d_weight_gradient(x, ct, w.shape, window)
    return (
        to_layout(x_bar, "NCHW", attrs.data_layout),
        to_layout(w_bar, "OIHW", attrs.kernel_layout),
    )


@bilinear("graphgrad.conv2d_data_gradient", samples=_gradient_samples("data"))
def conv2d_data_gradient(
    ct: Tensor, w: Tensor, shape: Any, v: Tensor, attrs: Any
) -> tuple[Tensor, Tensor, None]:
    """With v the cotangent of x̄: conv2d(v, w) for ȳ,  weight_gradient(v, ȳ) for w"""
    window = Window.of(attrs)
    return conv.conv2d(v, w, window), conv.conv2d_weight_gradient(v, ct, w.shape, window), None


@bilinear("graphgrad.conv2d_weight_gradient", samples=_gradient_samples("weight"))
def conv2d_weight_gradient(
    x: Tensor, ct: Tensor, shape: Any, v: Tensor, attrs: Any
) -> tuple[Tensor, Tensor, None]:
    """With v the cotangent of w̄: data_gradient(ȳ, v) for x,  conv2d(x, v) for ȳ"""
    window = Window.of(attrs)
    return conv.conv2d_data_gradient(ct, v, x.shape, window), conv.conv2d(x, v, window), None


def to_layout(x: Tensor, source: str, target: str) -> Tensor:
    """Permute the axes of a tensor from one layout, such as NHWC, to another.

    Raises
    ------
    ArgumentError
        The layout has other axes, such as the blocked NCHW4c.
    """
    if sorted(source) != sorted(target):
        raise ArgumentError(
            f"no gradient for layout {source} or {target}: layouts are served that permute the "
            "axes NCHW or OIHW; convert the op's layout first"
        )
    return op.permute_dims(x, [source.index(axis) for axis in target])
