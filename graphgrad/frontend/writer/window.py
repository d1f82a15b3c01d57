"""Poolings and their gradients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...ops.pool_windows import LAYOUTS, Pool
from .contraction import padding_behind, pads_of, spread
from .graph import Site, UnwritableError, refuse_out_layout, static_extents, writes


def _pool(site: Site) -> Pool:
    pool = Pool.of(site.attributes)
    if pool.layout != LAYOUTS[pool.rank]:
        raise UnwritableError(f"the layout {pool.layout}")
    refuse_out_layout(site, pool.layout)
    return pool


def _max_pool_node(site: Site, outputs: int = 1) -> Any:
    """The maxima of windows, and where they are with two outputs."""
    pool = _pool(site)
    attributes: dict[str, Any] = {
        "dilations": list(pool.dilation),
        "kernel_shape": list(pool.size),
        "strides": list(pool.strides),
        "pads": list(pool.padding),
    }
    if pool.ceil_mode:
        extents, count = static_extents(site.shape_of(0)[2:]), static_extents(site.shape[2:])
        behind = padding_behind(pool, pool.size, count, extents)
        # Where the windows end inside of the padding, nothing was rounded up.
        pads = zip(behind, pool.padding[pool.rank :], strict=True)
        attributes["ceil_mode"] = int(any(reached > padded for reached, padded in pads))
    return site.graph.node("MaxPool", site.names[0], outputs=outputs, **attributes)


@writes(*(f"relax.nn.max_pool{rank}d" for rank in (1, 2, 3)))
def _max_pool(site: Site) -> Any:
    return _max_pool_node(site)


@writes("graphgrad.max_pool_index")
def _max_pool_index(site: Site) -> Any:
    """The places of the maxima in the flattened tensor.

    Not the numbers of the taps, which are what the op says; so only the scatter and the gather may
    read them.
    """
    _, places = _max_pool_node(site, outputs=2)
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
    flat, count = graph.ints([-1]), graph.shape([math.prod(site.shape)])
    zero = graph.constant(0.0, site.dtype)
    total = graph.node(
        "ScatterElements",
        graph.node("Expand", zero, count),
        graph.node("Reshape", places, flat),
        graph.node("Reshape", ct, flat),
        axis=0,
        reduction="add",
    )
    return graph.reshape(total, site.shape)


@writes("graphgrad.max_pool_position")
def _max_pool_position(site: Site) -> Any:
    """What the places are already."""
    places = site.names[0]
    if places not in site.graph.places or site.attributes.column_major:
        raise UnwritableError("places of maxima that are not those of a max_pool_index, by rows")
    return places


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


def _ones(site: Site, pool: Pool) -> str:
    """The kernel of a sum, for each channel alone."""
    return site.graph.constant(np.ones((1, 1, *pool.size)), site.dtype)


@writes(*(f"relax.nn.avg_pool{rank}d" for rank in (1, 2, 3)))
def _average_pool(site: Site) -> Any:
    """The sums of windows, by a convolution with ones, divided by the counts."""
    graph, pool = site.graph, _pool(site)
    batch, channels = site.shape_of(0)[:2]
    extents, count = static_extents(site.shape_of(0)[2:]), static_extents(site.shape[2:])
    total = graph.node(
        "Conv",
        graph.reshape(site.names[0], [batch * channels, 1, *extents]),
        _ones(site, pool),
        strides=list(pool.strides),
        dilations=list(pool.dilation),
        pads=pads_of(pool, padding_behind(pool, pool.size, count, extents)),
    )
    counts = graph.constant(_counts(pool, extents, count), site.dtype)
    return graph.node("Div", graph.reshape(total, site.shape), counts)


@writes("graphgrad.avg_pool_gradient")
def _average_pool_gradient(site: Site) -> Any:
    """The cotangents, divided by the counts, added to all that their windows read."""
    graph, pool = site.graph, _pool(site)
    batch, channels = site.shape[:2]
    extents, count = static_extents(site.shape[2:]), static_extents(site.shape_of(0)[2:])
    counts = graph.constant(_counts(pool, extents, count), site.dtype)
    share = graph.node("Div", site.names[0], counts)
    share = graph.reshape(share, [batch * channels, 1, *count])
    return graph.reshape(spread(site, share, _ones(site, pool), pool, pool.size), site.shape)


@writes("relax.nn.adaptive_avg_pool2d")
def _adaptive_average_pool(site: Site) -> Any:
    refuse_out_layout(site, "NCHW")
    if site.attributes.layout != "NCHW" or [*site.shape[2:]] != [1, 1]:
        raise UnwritableError(f"the output size {site.shape[2:]}")
    return site.graph.reduce("ReduceMean", site.names[0], [2, 3], True)
