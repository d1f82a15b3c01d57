"""Rules of convolutions: with two ops of our own they are closed under differentiation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import ArgumentError
from ..ir.tensor import Tensor, same_shape
from ..ops import functional as op
from ..ops.conv import (
    Layouts,
    Window,
    check_layout,
    check_output,
    conv,
    conv_data_gradient,
    conv_weight_gradient,
)
from .rule import bilinear
from .sample import Sample, sample, static

Case = tuple[tuple[Any, ...], tuple[Any, ...], dict[str, Any]]
"""Input shape, weight shape and attributes of a call."""

_HWIO = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
_OHWI = {"data_layout": "NHWC", "kernel_layout": "OHWI"}

CONVOLUTIONS: dict[int, list[Case]] = {
    1: [
        ((2, 3, 7), (4, 3, 3), {"padding": 1}),
        ((2, 4, 9), (6, 2, 3), {"strides": 2, "padding": (2, 1), "dilation": 2, "groups": 2}),
        ((1, 3, 6), (6, 1, 2), {"strides": 3, "groups": 3}),
        ((2, 8, 5), (3, 8, 1), {}),
        (("n", 2, "w"), (3, 2, 3), {"strides": 2, "padding": (2, 1)}),
        ((2, 2, 9), (3, 2, "r"), {"strides": 3, "padding": 1}),
        ((2, 6, 3), (4, 3, 2), {"padding": (1, 0), "data_layout": "NWC", "kernel_layout": "OIW"}),
        ((2, 6, 4), (3, 2, 6), {"groups": 2, "data_layout": "NWC", "kernel_layout": "WIO"}),
        ((2, 3, 6), (2, 3, 2), {"out_layout": "NWC"}),
    ],
    2: [
        ((2, 3, 5, 5), (4, 3, 3, 3), {"padding": 1}),
        ((2, 3, 6, 7), (4, 3, 3, 3), {"strides": 2, "padding": 1}),
        ((1, 4, 7, 6), (6, 2, 3, 2), {"strides": (2, 3), "padding": (1, 0, 2, 1), "groups": 2}),
        ((2, 4, 6, 5), (4, 1, 3, 3), {"padding": 1, "groups": 4}),
        ((2, 3, 5, 5), (6, 1, 3, 3), {"strides": 2, "padding": 1, "groups": 3}),
        ((1, 2, 8, 9), (3, 2, 3, 2), {"dilation": (2, 3), "padding": 2}),
        ((1, 8, 5, 5), (4, 8, 1, 1), {"strides": 2}),
        ((1, 2, 7, 7), (2, 2, 3, 3), {"strides": 3, "dilation": 2, "padding": (1, 2)}),
        ((1, 2, 11, 9), (2, 2, 3, 4), {"strides": (6, 3), "dilation": (4, 2), "padding": 1}),
        ((1, 1, 1, 1), (1, 1, 1, 1), {}),
        ((0, 2, 4, 4), (3, 2, 3, 3), {"padding": 1}),
        (("n", 3, 4, 4), (2, 3, 3, 3), {"padding": 1}),
        (("n", 2, "h", "w"), (2, 2, 3, 2), {"padding": (1, 2), "strides": (2, 1)}),
        ((2, 5, 5, 3), (3, 3, 3, 4), {"strides": 2, "padding": 1, **_HWIO}),
        ((1, 6, 5, 4), (2, 3, 2, 6), {"padding": (1, 0, 2, 1), "groups": 2, **_HWIO}),
        ((2, 5, 6, 3), (4, 3, 2, 3), {"dilation": 2, **_OHWI}),
        ((2, 5, 5, 3), (4, 3, 3, 3), {"data_layout": "NHWC", "kernel_layout": "OIHW"}),
        ((1, 2, 4, 5), (3, 2, 2, 3), {"out_layout": "NHWC"}),
    ],
    3: [
        ((1, 2, 4, 3, 4), (3, 2, 3, 2, 3), {"padding": 1}),
        (
            (1, 4, 5, 4, 4),
            (4, 2, 2, 3, 2),
            {
                "strides": (2, 1, 3),
                "padding": (1, 0, 2, 0, 1, 1),
                "dilation": (1, 2, 1),
                "groups": 2,
            },
        ),
        ((1, 3, 3, 3, 3), (3, 1, 2, 2, 2), {"strides": 2, "groups": 3}),
        (("n", 2, 3, "h", 3), (2, 2, 2, 2, 1), {}),
        (
            (1, 3, 4, 3, 2),
            (2, 3, 2, 2, 3),
            {"padding": 1, "data_layout": "NDHWC", "kernel_layout": "DHWIO"},
        ),
        (
            (1, 3, 4, 3, 2),
            (4, 2, 2, 2, 1),
            {"strides": 2, "data_layout": "NDHWC", "kernel_layout": "ODHWI", "groups": 2},
        ),
    ],
}
TRANSPOSED: dict[int, list[Case]] = {
    1: [
        ((2, 3, 4), (3, 4, 3), {"padding": 1}),
        (
            (1, 4, 3),
            (4, 3, 3),
            {
                "strides": 3,
                "padding": (2, 1),
                "output_padding": 2,
                "dilation": 2,
                "groups": 2,
            },
        ),
        (("n", 2, "w"), (2, 3, 3), {"strides": 2, "padding": 1, "output_padding": 1}),
        ((2, 3, 4), (3, 2, 4), {"strides": 2, "data_layout": "NWC", "kernel_layout": "WOI"}),
    ],
    2: [
        ((2, 3, 4, 3), (3, 4, 3, 3), {}),
        ((1, 3, 3, 3), (3, 2, 3, 3), {"strides": 2, "padding": 1, "output_padding": 1}),
        (
            (1, 4, 3, 2),
            (4, 3, 2, 3),
            {
                "strides": (2, 3),
                "padding": (1, 0, 2, 1),
                "output_padding": (0, 2),
                "dilation": (2, 1),
                "groups": 2,
            },
        ),
        ((2, 3, 3, 3), (3, 1, 2, 2), {"strides": 2, "groups": 3}),
        ((2, 2, 3, 3), (2, 3, 1, 1), {"strides": 3}),
        ((1, 2, 2, 2), (2, 2, 6, 3), {"strides": (4, 5), "padding": (1, 0)}),
        ((0, 2, 3, 3), (2, 3, 2, 2), {}),
        (("n", 2, 3, "w"), (2, 2, 3, 2), {"strides": 2, "padding": 1}),
        (
            (1, 3, 3, 4),
            (2, 3, 3, 4),
            {"strides": 2, "groups": 2, "data_layout": "NHWC", "kernel_layout": "HWOI"},
        ),
        ((1, 3, 2, 2), (3, 2, 2, 2), {"out_layout": "NHWC", "output_padding": 1, "strides": 2}),
    ],
    3: [
        ((1, 2, 3, 2, 2), (2, 3, 2, 3, 2), {"padding": (0, 1, 0)}),
        (
            (1, 4, 2, 2, 2),
            (4, 1, 2, 2, 3),
            {
                "strides": (2, 1, 3),
                "padding": (1, 0, 1, 0, 1, 2),
                "output_padding": (1, 0, 2),
                "dilation": (1, 2, 1),
                "groups": 2,
            },
        ),
        (("n", 2, 2, "h", 2), (2, 2, 2, 1, 2), {"strides": (1, 2, 1), "output_padding": (0, 1, 0)}),
        (
            (1, 2, 3, 2, 4),
            (2, 2, 2, 4, 1),
            {"strides": 2, "groups": 2, "data_layout": "NDHWC", "kernel_layout": "DHWIO"},
        ),
    ],
}


def _samples(cases: Sequence[Case]) -> list[Sample]:
    return [sample(x, w, **attributes) for x, w, attributes in cases]


def _gradient_samples(of_data: bool) -> list[Sample]:
    """Calls of a gradient op: those that some of the convolutions would emit."""
    samples = []
    for rank, cases in CONVOLUTIONS.items():
        ordered = [case for case in cases if "kernel_layout" in case[2]]
        for x, w, attributes in [*cases[:3], *ordered[:2]]:
            window, layouts = _window(rank, attributes), _layouts(rank, attributes)
            ct = _output_shape(x, w, window, layouts)
            arguments = (ct, w, static(x)) if of_data else (x, ct, static(w))
            layout_attributes = layouts.attributes() if "kernel_layout" in attributes else {}
            samples.append(sample(*arguments, **window.attributes(), **layout_attributes))
    # A cotangent with fewer positions than the window has on these data.
    missing_end = Window((2,), (0, 0), (3,), 1).attributes()
    ct, x, w = (1, 2, 2), (1, 3, 11), (2, 3, 3)
    arguments = (ct, w, static(x)) if of_data else (x, ct, static(w))
    return [*samples, sample(*arguments, **missing_end)]


def _window(rank: int, attributes: dict[str, Any]) -> Window:
    """Write a window in full, as the attributes of our own ops have it."""

    def per_axis(name: str, default: int) -> tuple[int, ...]:
        value = attributes.get(name, default)
        return (value,) * rank if isinstance(value, int) else tuple(value)

    pads = per_axis("padding", 0)
    return Window(
        per_axis("strides", 1),
        pads if len(pads) == 2 * rank else (*pads, *pads),
        per_axis("dilation", 1),
        attributes.get("groups", 1),
    )


def _layouts(rank: int, attributes: dict[str, Any]) -> Layouts:
    standard = Layouts.standard(rank)
    return Layouts(
        attributes.get("data_layout", standard.data),
        attributes.get("kernel_layout", standard.kernel),
    )


def _output_shape(
    x: Sequence[int], w: Sequence[int], window: Window, layouts: Layouts
) -> tuple[int, ...]:
    """The shape of a convolution's output, in the layout of its data."""
    kernel = dict(zip(layouts.kernel, w, strict=True))
    extents = dict(zip(layouts.data, x, strict=True))
    extents["C"] = kernel.pop("O")
    spatial = layouts.spatial(layouts.data)
    reach = window.reach([kernel[axis] for axis in spatial])
    for axis, before, after, far, stride in zip(
        spatial, window.before, window.after, reach, window.strides, strict=True
    ):
        extents[axis] = (extents[axis] + before + after - 1 - far) // stride + 1
    return tuple(extents[axis] for axis in layouts.data)


def convolution(x: Tensor, w: Tensor, ct: Tensor, attrs: Any) -> tuple[Tensor, Tensor]:
    """x̄ = data_gradient(ȳ, w),  w̄ = weight_gradient(x, ȳ)"""
    window = Window.of(attrs)
    layouts = Layouts.of(attrs, window.rank)
    x, w, ct = _prepared(x, w, ct, attrs.out_layout, layouts)
    x_bar = conv_data_gradient(ct, w, x.shape, window, layouts)
    return x_bar, conv_weight_gradient(x, ct, w.shape, window, layouts)


def transposed_convolution(x: Tensor, w: Tensor, ct: Tensor, attrs: Any) -> tuple[Tensor, Tensor]:
    """x̄ = conv(ȳ, w),  w̄ = weight_gradient(ȳ, x), for y = data_gradient(x, w)"""
    window = Window.of(attrs)
    layouts = Layouts.of(attrs, window.rank).transposed
    x, w, ct = _prepared(x, w, ct, attrs.out_layout, layouts)
    x_bar = _drop_end(conv(ct, w, window, layouts), x, layouts)
    return x_bar, conv_weight_gradient(ct, x, w.shape, window, layouts)


for _rank in (1, 2, 3):
    bilinear(f"relax.nn.conv{_rank}d", samples=_samples(CONVOLUTIONS[_rank]))(convolution)
    bilinear(f"relax.nn.conv{_rank}d_transpose", samples=_samples(TRANSPOSED[_rank]))(
        transposed_convolution
    )


@bilinear("graphgrad.conv_data_gradient", samples=_gradient_samples(of_data=True))
def data_gradient(
    ct: Tensor, w: Tensor, shape: Any, v: Tensor, attrs: Any
) -> tuple[Tensor, Tensor, None]:
    """With v the cotangent of x̄: conv(v, w) for ȳ,  weight_gradient(v, ȳ) for w"""
    window = Window.of(attrs)
    layouts = Layouts.of(attrs, window.rank)
    ct_bar = _drop_end(conv(v, w, window, layouts), ct, layouts)
    return ct_bar, conv_weight_gradient(v, ct, w.shape, window, layouts), None


@bilinear("graphgrad.conv_weight_gradient", samples=_gradient_samples(of_data=False))
def weight_gradient(
    x: Tensor, ct: Tensor, shape: Any, v: Tensor, attrs: Any
) -> tuple[Tensor, Tensor, None]:
    """With v the cotangent of w̄: data_gradient(ȳ, v) for x,  conv(x, v) for ȳ"""
    window = Window.of(attrs)
    layouts = Layouts.of(attrs, window.rank)
    ct_bar = _drop_end(conv(x, v, window, layouts), ct, layouts)
    return conv_data_gradient(ct, v, x.shape, window, layouts), ct_bar, None


def _prepared(x: Tensor, w: Tensor, ct: Tensor, out_layout: str, layouts: Layouts) -> list[Tensor]:
    """Data, weights and cotangent in their widest dtype, the last in the data's layout."""
    check_layout(out_layout, layouts.data)
    ct = to_layout(ct, out_layout, layouts.data)
    check_output("a convolution", layouts.spatial(ct.shape))
    return op.same_dtype(x, w, ct)


def _drop_end(y: Tensor, like: Tensor, layouts: Layouts) -> Tensor:
    """Drop the positions at the far ends that a cotangent does not have."""
    if same_shape(y.shape, like.shape):
        return y
    axes = layouts.spatial(range(y.ndim))
    ends = [like.shape[axis] for axis in axes]
    return op.strided_slice(y, axes, [0] * len(axes), ends, assume_inbound=True)


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
            "axes of the standard one, such as NCHW or OIHW; convert the op's layout first"
        )
    return op.permute_dims(x, [source.index(axis) for axis in target])
