"""Poolings and their gradients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...ops.pool_windows import LAYOUTS, Pool
from .graph import Site, UnwritableError, refuse_out_layout, static_extent, writes


def _pool(site: Site) -> Pool:
    pool = Pool.of(site.attributes)
    if pool.layout != LAYOUTS[pool.rank]:
        raise UnwritableError(f"the layout {pool.layout}")
    refuse_out_layout(site, pool.layout)
    return pool


def _attributes(pool: Pool, extents: list[Any], results: list[Any]) -> dict[str, Any]:
    """The attributes of a node; of windows that end where the data do, nothing is rounded up."""
    rank = pool.rank
    attributes = {
        "dilations": list(pool.dilation),
        "kernel_shape": list(pool.size),
        "strides": list(pool.strides),
        "pads": list(pool.padding),
    }
    if not pool.ceil_mode:
        return attributes
    left = [
        extent + before + behind - gap * (size - 1) - 1 - step * (result - 1)
        for extent, before, behind, gap, size, step, result in zip(
            map(static_extent, extents),
            pool.padding[:rank],
            pool.padding[rank:],
            pool.dilation,
            pool.size,
            pool.strides,
            map(static_extent, results),
            strict=True,
        )
    ]
    return attributes | {"ceil_mode": int(min(left) < 0)}


@writes(*(f"relax.nn.max_pool{rank}d" for rank in (1, 2, 3)))
def _max_pool(site: Site) -> Any:
    pool = _pool(site)
    attributes = _attributes(pool, site.shape_of(0)[2:], site.shape[2:])
    return site.graph.node("MaxPool", site.names[0], **attributes)


@writes("graphgrad.max_pool_index")
def _max_pool_index(site: Site) -> Any:
    """The places of the maxima in the flattened tensor.

    Not the numbers of the taps, which are what the op says; so only the scatter and the gather may
    read them.
    """
    pool = _pool(site)
    attributes = _attributes(pool, site.shape_of(0)[2:], site.shape[2:])
    places = site.graph.node("MaxPool", site.names[0], outputs=2, **attributes)[1]
    site.graph.places.add(places)
    return places


def _check_places(site: Site) -> None:
    """Raise `UnwritableError` unless the second argument is what `_max_pool_index` wrote."""
    if site.names[1] not in site.graph.places:
        raise UnwritableError("places of maxima that are not those of a max_pool_index")


@writes("graphgrad.max_pool_scatter")
def _max_pool_scatter(site: Site) -> Any:
    _check_places(site)
    graph, (ct, places, _) = site.graph, site.names
    flat, minus_one = graph.ints([-1]), graph.shape([math.prod(site.shape)])
    zero = graph.constant(0.0, site.dtype)
    total = graph.node(
        "ScatterElements",
        graph.node("Expand", zero, minus_one),
        graph.node("Reshape", places, flat),
        graph.node("Reshape", ct, flat),
        axis=0,
        reduction="add",
    )
    return graph.reshape(total, site.shape)


@writes("graphgrad.max_pool_gather")
def _max_pool_gather(site: Site) -> Any:
    _check_places(site)
    graph, (x, places) = site.graph, site.names
    return graph.node("Gather", graph.node("Reshape", x, graph.ints([-1])), places, axis=0)


def _counts(pool: Pool, extents: list[int], results: list[int]) -> np.ndarray:
    """How many elements each window averages over, along all spatial axes."""
    counts = np.ones((), "int64")
    for axis in range(pool.rank):
        size, step, gap = pool.size[axis], pool.strides[axis], pool.dilation[axis]
        before, behind = pool.padding[axis], pool.padding[pool.rank + axis]
        first = np.arange(results[axis])[:, None] * step - before
        reads = first + gap * np.arange(size)[None, :]
        low, high = (
            (-before, extents[axis] + behind) if pool.count_include_pad else (0, extents[axis])
        )
        along = ((reads >= low) & (reads < high)).sum(1)
        counts = counts[..., None] * along
    return np.maximum(counts, 1)


def _sums(site: Site, pool: Pool, x: str, extents: list[int], results: list[int]) -> str:
    """The sum of each window, by a convolution with ones of every channel alone."""
    graph = site.graph
    batch, channels = site.shape_of(0)[:2]
    ones = graph.constant(np.ones((1, 1, *pool.size)), site.dtype)
    x = graph.reshape(x, [batch * channels, 1, *extents])
    rank = pool.rank
    behind = [
        (r - 1) * s + d * (k - 1) + 1 - b - e
        for r, s, d, k, b, e in zip(
            results, pool.strides, pool.dilation, pool.size, pool.padding, extents, strict=False
        )
    ]
    pads = [*pool.padding[:rank], *(max(pad, 0) for pad in behind)]
    strides, gaps = list(pool.strides), list(pool.dilation)
    total = graph.node("Conv", x, ones, strides=strides, dilations=gaps, pads=pads)
    return graph.reshape(total, site.shape)


@writes(*(f"relax.nn.avg_pool{rank}d" for rank in (1, 2, 3)))
def _average_pool(site: Site) -> Any:
    pool = _pool(site)
    extents = [static_extent(extent) for extent in site.shape_of(0)[2:]]
    results = [static_extent(extent) for extent in site.shape[2:]]
    counts = site.graph.constant(_counts(pool, extents, results), site.dtype)
    return site.graph.node("Div", _sums(site, pool, site.names[0], extents, results), counts)


@writes("graphgrad.avg_pool_gradient")
def _average_pool_gradient(site: Site) -> Any:
    """The cotangents, divided by the counts, added to all that their windows read."""
    graph, ct = site.graph, site.names[0]
    pool = _pool(site)
    batch, channels = site.shape[:2]
    extents = [static_extent(extent) for extent in site.shape[2:]]
    results = [static_extent(extent) for extent in site.shape_of(0)[2:]]
    share = graph.node("Div", ct, graph.constant(_counts(pool, extents, results), site.dtype))
    share = graph.reshape(share, [batch * channels, 1, *results])
    ones = graph.constant(np.ones((1, 1, *pool.size)), site.dtype)
    rank, before = pool.rank, pool.padding
    behind = [
        (r - 1) * s + d * (k - 1) + 1 - b - e
        for r, s, d, k, b, e in zip(
            results, pool.strides, pool.dilation, pool.size, before, extents, strict=False
        )
    ]
    total = graph.node(
        "ConvTranspose",
        share,
        ones,
        strides=list(pool.strides),
        dilations=list(pool.dilation),
        pads=[*before[:rank], *(max(pad, 0) for pad in behind)],
    )
    if min(behind) < 0:
        pads = graph.ints([0] * (4 + rank) + [max(-pad, 0) for pad in behind])
        total = graph.node("Pad", total, pads, graph.constant(0.0, site.dtype))
    return graph.reshape(total, site.shape)


@writes("relax.nn.adaptive_avg_pool2d")
def _adaptive_average_pool(site: Site) -> Any:
    refuse_out_layout(site, "NCHW")
    if site.attributes.layout != "NCHW" or [*site.shape[2:]] != [1, 1]:
        raise UnwritableError(f"the output size {site.shape[2:]}")
    return site.graph.reduce("ReduceMean", site.names[0], [2, 3], True)
