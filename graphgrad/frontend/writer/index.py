"""Gathers and scatters."""

from __future__ import annotations

import math
from typing import Any

from ...ops.indexing import Indexing
from .graph import Site, UnwritableError, elem_type, static_extent, writes


def _inside(site: Site, index: str, mode: str, extent: Any) -> str:
    """Indices of which those outside stand for elements inside, if the mode says so."""
    graph = site.graph
    dtype = str(site.call.args[1].ty.dtype)
    if mode == "wrap":
        return str(graph.node("Mod", index, graph.constant(static_extent(extent), dtype)))
    if mode == "clip":
        last = graph.constant(static_extent(extent) - 1, dtype)
        return str(graph.node("Clip", index, graph.constant(0, dtype), last))
    return index


@writes("relax.take")
def _take(site: Site) -> Any:
    axis, shape = site.attributes.axis, site.shape_of(0)
    x, index = site.names
    if axis is None:
        x, axis, shape = site.graph.node("Reshape", x, site.graph.ints([-1])), 0, [math.prod(shape)]
    index = _inside(site, index, str(site.attributes.mode), shape[axis])
    return site.graph.node("Gather", x, index, axis=int(axis))


@writes("relax.gather_elements")
def _gather_elements(site: Site) -> Any:
    return site.graph.node("GatherElements", *site.names, axis=int(site.attributes.axis))


@writes("relax.gather_nd")
def _gather_nd(site: Site) -> Any:
    return site.graph.node("GatherND", *site.names, batch_dims=int(site.attributes.batch_dims))


@writes("graphgrad.gather")
def _gather(site: Site) -> Any:
    indexing = Indexing.of(site.call.attrs)
    if indexing.form == "take":
        x, index = site.names
        index = _inside(site, index, indexing.mode, site.shape_of(0)[indexing.axis])
        return site.graph.node("Gather", x, index, axis=indexing.axis)
    if indexing.form == "elements":
        return site.graph.node("GatherElements", *site.names, axis=indexing.axis)
    if indexing.form == "nd":
        return site.graph.node("GatherND", *site.names, batch_dims=indexing.axis)
    raise UnwritableError(f"a gather of the form {indexing.form!r}")


def _reduction_of(site: Site) -> str:
    """The reduction of a scatter, as ONNX names it."""
    reduction = str(site.attributes.reduction)
    if reduction in ("min", "max"):
        site.graph.require(18, f"the {reduction} of {site.call.op.name}")
    elif reduction not in ("update", "add", "mul"):
        raise UnwritableError(f"the reduction {reduction!r}")
    return "none" if reduction == "update" else reduction


@writes("relax.scatter_elements")
def _scatter_elements(site: Site) -> Any:
    axis, reduction = int(site.attributes.axis), _reduction_of(site)
    return site.graph.node("ScatterElements", *site.names, axis=axis, reduction=reduction)


@writes("relax.scatter_nd")
def _scatter_nd(site: Site) -> Any:
    return site.graph.node("ScatterND", *site.names, reduction=_reduction_of(site))


def _with_batch(site: Site, index: str, batch: int) -> str:
    """Coordinates with those of the batch axes, which they have in common with the data, in front.

    Parameters
    ----------
    site : Site
        Of a call whose second argument is the index.
    index : str
    batch : int
        How many there are.
    """
    graph, ty = site.graph, site.call.args[1].ty
    *shape, _ = site.shape_of(1)
    coordinates = []
    for axis in range(batch):
        bounds = (graph.constant(0), graph.scalar(shape[axis]), graph.constant(1))
        numbers = graph.node("Cast", graph.node("Range", *bounds), to=elem_type(str(ty.dtype)))
        alone = [shape[axis] if a == axis else 1 for a in range(len(shape))]
        spread = graph.node("Expand", graph.reshape(numbers, [*alone, 1]), graph.shape([*shape, 1]))
        coordinates.append(spread)
    return str(graph.node("Concat", *coordinates, index, axis=-1)) if coordinates else index


@writes("graphgrad.scatter_add")
def _scatter_add(site: Site) -> Any:
    graph, (updates, index, _) = site.graph, site.names
    indexing = Indexing.of(site.call.attrs)
    zeros = graph.node("Expand", graph.constant(0.0, site.dtype), graph.shape(site.shape))
    if indexing.form == "elements":
        axis = indexing.axis
        return graph.node("ScatterElements", zeros, index, updates, axis=axis, reduction="add")
    if indexing.form == "nd":
        index = _with_batch(site, index, indexing.axis)
        return graph.node("ScatterND", zeros, index, updates, reduction="add")
    if indexing.form != "take":
        raise UnwritableError(f"a scatter of the form {indexing.form!r}")
    # The indexed axis in front, and the axes of the index in front of what each of them moves.
    index = _inside(site, index, indexing.mode, site.shape[indexing.axis])
    axis, rank, count = indexing.axis, len(site.shape), len(site.shape_of(1))
    front = [axis, *(a for a in range(rank) if a != axis)]
    moved = graph.permute(zeros, front)
    total = len(site.shape_of(0))
    of_index = list(range(axis, axis + count))
    updates = graph.permute(updates, [*of_index, *(a for a in range(total) if a not in of_index)])
    places = graph.node("Unsqueeze", index, graph.ints([count]))
    added = graph.node("ScatterND", moved, places, updates, reduction="add")
    return graph.permute(added, [front.index(a) for a in range(rank)])
