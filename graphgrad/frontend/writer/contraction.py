"""Matrix products, convolutions and their gradients, resampling."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...ops.conv import Layouts, Window
from .graph import Site, UnwritableError, refuse_out_layout, static_extent, writes


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


def _spread(
    site: Site, ct: str, w: str, window: Window, kernel: list[int], shape: list[Any]
) -> str:
    """The transposed convolution: each element of `ct` times the kernel, added where it was read.

    `shape` has the spatial extents of the result.
    """
    given = [static_extent(extent) for extent in site.shape_of(0)[2:]]
    rank = window.rank
    before = list(window.padding[:rank])
    whole = [
        (g - 1) * s + d * (k - 1) + 1
        for g, s, d, k in zip(given, window.strides, window.dilation, kernel, strict=True)
    ]
    behind = [w - b - static_extent(e) for w, b, e in zip(whole, before, shape, strict=True)]
    result = site.graph.node(
        "ConvTranspose",
        ct,
        w,
        strides=list(window.strides),
        dilations=list(window.dilation),
        pads=[*before, *(max(pad, 0) for pad in behind)],
        group=window.groups,
    )
    if min(behind) >= 0:
        return str(result)
    # Nothing reads the elements at the far end.
    pads = [0] * (4 + rank) + [max(-pad, 0) for pad in behind]
    zero = site.graph.constant(0.0, site.dtype)
    return str(site.graph.node("Pad", result, site.graph.ints(pads), zero))


@writes("graphgrad.conv_data_gradient")
def _convolution_data_gradient(site: Site) -> Any:
    ct, w, _ = site.names
    return _spread(site, ct, w, _window(site), site.static_shape_of(1)[2:], site.shape[2:])


@writes(*(f"relax.nn.conv{rank}d_transpose" for rank in (1, 2, 3)))
def _transposed_convolution(site: Site) -> Any:
    x, w = site.names
    window, attributes = Window.of(site.call.attrs), site.attributes
    standard = Layouts.standard(window.rank)
    kernel = "IO" + standard.kernel[2:]
    if (attributes.data_layout, attributes.kernel_layout) != (standard.data, kernel):
        raise UnwritableError(f"the layout {attributes.data_layout}, {attributes.kernel_layout}")
    refuse_out_layout(site, standard.data)
    return _spread(site, x, w, window, site.static_shape_of(1)[2:], site.shape[2:])


@writes("graphgrad.conv_weight_gradient")
def _convolution_weight_gradient(site: Site) -> Any:
    """A convolution of the data with the cotangent, whose windows step as the kernel's taps do.

    The batch is what is summed over, and so takes the place of the channels, group by group.
    """
    graph, (x, ct, _) = site.graph, site.names
    window, rank = _window(site), _window(site).rank
    groups, spatial = window.groups, list(range(2, 2 + rank))
    batch, channels, *extents = site.shape_of(0)
    _, outputs, *steps = site.shape_of(1)
    channels, outputs = static_extent(channels), static_extent(outputs)
    extents = [static_extent(extent) for extent in extents]
    kernel = [static_extent(extent) for extent in site.shape[2:]]
    taps = channels // groups
    x = graph.reshape(x, [batch, groups, taps, *extents])
    x = graph.permute(x, [2, 1, 0, *(axis + 1 for axis in spatial)])
    x = graph.reshape(x, [taps, batch * groups, *extents])
    ct = graph.permute(ct, [1, 0, *spatial])
    reach = [
        d * (k - 1) + (static_extent(n) - 1) * s + 1
        for d, k, n, s in zip(window.dilation, kernel, steps, window.strides, strict=True)
    ]
    before = list(window.padding[:rank])
    # What the last window reaches, which may be less than there is, or more than was padded.
    behind = [r - b - e for r, b, e in zip(reach, before, extents, strict=True)]
    product = graph.node(
        "Conv",
        x,
        ct,
        strides=list(window.dilation),
        dilations=list(window.strides),
        pads=[*before, *(max(pad, 0) for pad in behind)],
        group=groups,
    )
    ends = graph.ints(kernel)
    begins = graph.ints([0] * rank)
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
