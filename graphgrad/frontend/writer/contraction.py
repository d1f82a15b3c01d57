"""Matrix products, convolutions and their gradients, resampling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...ops.conv import Layouts, Window
from ...ops.pool_windows import Pool
from .graph import (
    Site,
    UnwritableError,
    refuse_out_layout,
    static_extent,
    static_extents,
    writes,
)

_MAX_TAPS = 64
"""Taps of a kernel from whose number on its gradient is a convolution, and no product for each."""


@writes("relax.matmul")
def _matmul(site: Site) -> Any:
    return site.graph.node("MatMul", *site.names)


def _window(site: Site) -> Window:
    """The window of a convolution whose channels come first."""
    window = Window.of(site.call.attrs)
    layouts, standard = Layouts.of(site.call.attrs, window.rank), Layouts.standard(window.rank)
    if (layouts.data, layouts.kernel) != (standard.data, standard.kernel):
        raise UnwritableError(f"the layout {layouts.data}, {layouts.kernel}")
    refuse_out_layout(site, standard.data)
    return window


@writes(*(f"relax.nn.conv{rank}d" for rank in (1, 2, 3)))
def _convolution(site: Site) -> Any:
    window = _window(site)
    return site.graph.node(
        "Conv",
        *site.names,
        strides=list(window.strides),
        dilations=list(window.dilation),
        pads=list(window.padding),
        group=window.groups,
    )


def padding_behind(
    window: Window | Pool, kernel: Sequence[int], count: Sequence[int], extents: Sequence[int]
) -> list[int]:
    """How far behind the data the last of some windows reaches; less than 0 where it ends before.

    Parameters
    ----------
    window : Window or Pool
    kernel : sequence of int
        The size of a window.
    count : sequence of int
        How many windows there are.
    extents : sequence of int
        Of the data.
    """
    return [
        (n - 1) * step + gap * (k - 1) + 1 - before - extent
        for n, step, gap, k, before, extent in zip(
            count,
            window.strides,
            window.dilation,
            kernel,
            window.padding[: window.rank],
            extents,
            strict=True,
        )
    ]


def pads_of(window: Window | Pool, behind: Sequence[int]) -> list[int]:
    """Paddings as an attribute: those of the window before, and not less than none behind."""
    return [*window.padding[: window.rank], *(max(pad, 0) for pad in behind)]


def spread(
    site: Site,
    ct: str,
    w: str,
    window: Window | Pool,
    kernel: Sequence[int],
    groups: int = 1,
) -> str:
    """The transposed convolution: each element of `ct` times the kernel, added where it was read.

    The spatial extents of `ct` are those of the first argument, and of the sums those of the
    result.
    """
    given, extents = (static_extents(shape[2:]) for shape in (site.shape_of(0), site.shape))
    behind = padding_behind(window, kernel, given, extents)
    result = site.graph.node(
        "ConvTranspose",
        ct,
        w,
        strides=list(window.strides),
        dilations=list(window.dilation),
        pads=pads_of(window, behind),
        group=groups,
    )
    if min(behind) >= 0:
        return str(result)
    # Nothing reads the elements at the far end.
    pads = [0] * (4 + window.rank) + [max(-pad, 0) for pad in behind]
    zero = site.graph.constant(0.0, site.dtype)
    return str(site.graph.node("Pad", result, site.graph.ints(pads), zero))


@writes("graphgrad.conv_data_gradient")
def _convolution_data_gradient(site: Site) -> Any:
    """A convolution with the kernel turned around, where windows lie side by side; else `spread`.

    Runtimes take about half as long for a convolution as for its transpose.
    """
    graph, (ct, w, _), window = site.graph, site.names, _window(site)
    kernel = site.static_shape_of(1)[2:]
    given, extents = (static_extents(shape[2:]) for shape in (site.shape_of(0), site.shape))
    reach = [gap * (k - 1) for gap, k in zip(window.dilation, kernel, strict=True)]
    before = [far - pad for far, pad in zip(reach, window.padding[: window.rank], strict=True)]
    sizes = zip(extents, given, before, reach, strict=True)
    behind = [extent - count - pad + far for extent, count, pad, far in sizes]
    if set(window.strides) != {1} or min(*before, *behind) < 0:
        return spread(site, ct, w, window, kernel, window.groups)
    return graph.node(
        "Conv",
        ct,
        _turned(site, w, window, kernel),
        dilations=list(window.dilation),
        pads=[*before, *behind],
        group=window.groups,
    )


def _turned(site: Site, w: str, window: Window, kernel: Sequence[int]) -> str:
    """A kernel from outputs to inputs, its taps in the opposite order."""
    graph, groups = site.graph, window.groups
    outputs, channels = site.static_shape_of(1)[:2]
    spatial = list(range(2, 2 + window.rank))
    w = graph.reshape(w, [groups, outputs // groups, channels, *kernel])
    w = graph.permute(w, [0, 2, 1, *(axis + 1 for axis in spatial)])
    w = graph.reshape(w, [groups * channels, outputs // groups, *kernel])
    if set(kernel) == {1}:
        return w
    last, backwards = graph.ints([-1] * window.rank), graph.ints([-1] * window.rank)
    beginning = graph.ints([np.iinfo("int64").min] * window.rank)
    return str(graph.node("Slice", w, last, beginning, graph.ints(spatial), backwards))


@writes(*(f"relax.nn.conv{rank}d_transpose" for rank in (1, 2, 3)))
def _transposed_convolution(site: Site) -> Any:
    x, w = site.names
    window, attributes = Window.of(site.call.attrs), site.attributes
    standard = Layouts.standard(window.rank)
    kernel = "IO" + standard.kernel[2:]
    if (attributes.data_layout, attributes.kernel_layout) != (standard.data, kernel):
        raise UnwritableError(f"the layout {attributes.data_layout}, {attributes.kernel_layout}")
    refuse_out_layout(site, standard.data)
    return spread(site, x, w, window, site.static_shape_of(1)[2:], window.groups)


@writes("graphgrad.conv_weight_gradient")
def _convolution_weight_gradient(site: Site) -> Any:
    """For each tap of the kernel, the product of the cotangent with what the tap has read.

    Both become matrices, whose common side is all windows of the batch: the shape that runtimes
    multiply best. Each group has a product of its own.
    """
    graph, (x, ct, _) = site.graph, site.names
    window, kernel = _window(site), static_extents(site.shape[2:])
    if math.prod(kernel) > _MAX_TAPS:
        return _convolution_with_cotangent(site)
    groups, rank = window.groups, window.rank
    batch, *rest = site.shape_of(0)
    channels, *extents = static_extents(rest)
    outputs, *steps = static_extents(site.shape_of(1)[1:])
    windows = batch * math.prod(steps)
    ct = graph.reshape(ct, [batch, groups, outputs // groups, math.prod(steps)])
    ct = graph.reshape(graph.permute(ct, [1, 2, 0, 3]), [groups, outputs // groups, windows])
    pads = pads_of(window, padding_behind(window, kernel, steps, extents))
    if any(pads):
        around = graph.ints([0, 0, *pads[:rank], 0, 0, *pads[rank:]])
        x = graph.node("Pad", x, around, graph.constant(0.0, site.dtype))
    x = graph.permute(x, [0, *range(2, 2 + rank), 1])
    spatial, strides = graph.ints(range(1, 1 + rank)), graph.ints(window.strides)
    products = []
    for tap in np.ndindex(*kernel):
        first = [gap * place for gap, place in zip(window.dilation, tap, strict=True)]
        sizes = zip(first, steps, window.strides, strict=True)
        end = [begin + (count - 1) * step + 1 for begin, count, step in sizes]
        read = graph.node("Slice", x, graph.ints(first), graph.ints(end), spatial, strides)
        read = graph.reshape(read, [windows, groups, channels // groups])
        product = graph.node("MatMul", ct, graph.permute(read, [1, 0, 2]))
        products.append(graph.reshape(product, [outputs, channels // groups, 1]))
    return graph.reshape(graph.node("Concat", *products, axis=2), site.shape)


def _convolution_with_cotangent(site: Site) -> Any:
    """A convolution of the data with the cotangent, whose windows step as the kernel's taps do.

    The batch is what is summed over, and so takes the place of the channels, group by group.
    """
    graph, (x, ct, _) = site.graph, site.names
    window = _window(site)
    groups, spatial = window.groups, list(range(2, 2 + window.rank))
    batch, *rest = site.shape_of(0)
    channels, *extents = static_extents(rest)
    steps, kernel = static_extents(site.shape_of(1)[2:]), static_extents(site.shape[2:])
    taps = channels // groups
    x = graph.reshape(x, [batch, groups, taps, *extents])
    x = graph.permute(x, [2, 1, 0, *(axis + 1 for axis in spatial)])
    x = graph.reshape(x, [taps, batch * groups, *extents])
    ct = graph.permute(ct, [1, 0, *spatial])
    product = graph.node(
        "Conv",
        x,
        ct,
        strides=list(window.dilation),
        dilations=list(window.strides),
        # What the last window reaches may be less than there is, or more than was padded.
        pads=pads_of(window, padding_behind(window, kernel, steps, extents)),
        group=groups,
    )
    begins, ends = graph.ints([0] * window.rank), graph.ints(kernel)
    product = graph.node("Slice", product, begins, ends, graph.ints(spatial))
    return graph.permute(product, [1, 0, *spatial])


@writes("graphgrad.resample")
def _resample(site: Site) -> Any:
    """A product with the matrix of the weights, whose rows are the results."""
    graph, x = site.graph, site.names[0]
    index, weight = (site.call.args[n].value.numpy() for n in (1, 2))
    axis, rank = int(site.call.attrs["axis"]), len(site.shape)
    extent = static_extent(site.shape_of(0)[axis])
    matrix = np.zeros((len(index), extent), site.dtype)
    rows, taps = np.nonzero(index >= 0)
    np.add.at(matrix, (rows, index[rows, taps]), weight[rows, taps].astype(site.dtype))
    last = [*(a for a in range(rank) if a != axis), axis]
    product = graph.node("MatMul", graph.permute(x, last), graph.constant(matrix.T))
    return graph.permute(product, [int(a) for a in np.argsort(last)])
