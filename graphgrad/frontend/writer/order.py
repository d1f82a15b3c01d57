"""Running sums and products, and what compares elements along an axis."""

from __future__ import annotations

from typing import Any

from .graph import Site, UnwritableError, elem_type, writes
from .walk import running_product


def _along(site: Site, x: str) -> tuple[str, int]:
    """A tensor and the axis that the attributes name, flattened if they name none."""
    axis = site.attributes.axis
    if axis is None:
        return str(site.graph.node("Reshape", x, site.graph.ints([-1]))), 0
    return x, int(axis) % max(len(site.shape_of(0)), 1)


@writes("relax.cumsum", "graphgrad.reverse_cumsum")
def _running_sum(site: Site) -> Any:
    graph = site.graph
    x, axis = _along(site, graph.node("Cast", site.names[0], to=elem_type(site.dtype)))
    reverse = int(site.call.op.name == "graphgrad.reverse_cumsum")
    exclusive = int(site.attributes.exclusive)
    return graph.node("CumSum", x, graph.constant(axis), exclusive=exclusive, reverse=reverse)


@writes("relax.cumprod")
def _running_product(site: Site) -> Any:
    x, axis = _along(site, site.names[0])
    return running_product(site, x, axis, bool(site.attributes.exclusive))


@writes("relax.sort", "relax.argsort")
def _sort(site: Site) -> Any:
    """Stable, as there; where NaN goes is open in ONNX."""
    graph, attributes = site.graph, site.attributes
    axis = int(attributes.axis) % len(site.shape)
    count, largest = graph.extent(site.shape[axis]), int(attributes.descending)
    values, places = graph.node("TopK", site.names[0], count, outputs=2, axis=axis, largest=largest)
    is_sort = site.call.op.name == "relax.sort"
    return values if is_sort else graph.node("Cast", places, to=elem_type(site.dtype))


@writes("relax.argmax", "relax.argmin")
def _extreme_place(site: Site) -> Any:
    """Of equal elements the first, in both."""
    operator = "ArgMax" if site.call.op.name == "relax.argmax" else "ArgMin"
    x, axis = _along(site, site.names[0])
    place = site.graph.node(operator, x, axis=axis, keepdims=1)
    return site.graph.reshape(site.graph.node("Cast", place, to=elem_type(site.dtype)), site.shape)


@writes("relax.topk")
def _top_k(site: Site) -> Any:
    """The first k, or all where k is below 1, in order."""
    attributes, graph = site.attributes, site.graph
    axis, k = int(attributes.axis), int(attributes.k)
    count = graph.extent(k if k > 0 else site.shape_of(0)[axis])
    settings = {"axis": axis, "largest": int(attributes.largest)}
    values, places = graph.node("TopK", site.names[0], count, outputs=2, **settings)
    places = graph.node("Cast", places, to=elem_type(str(attributes.dtype)))
    return {"values": values, "indices": places}.get(str(attributes.ret_type), [values, places])


@writes("relax.reverse_sequence")
def _reverse_sequence(site: Site) -> Any:
    graph, (x, lengths) = site.graph, site.names
    axes = site.attributes.seq_axis, site.attributes.batch_axis
    time, batch = (int(axis) % len(site.shape) for axis in axes)
    if {time, batch} != {0, 1}:
        raise UnwritableError(f"sequences along axis {time}, in a batch along axis {batch}")
    lengths = graph.node("Cast", lengths, to=elem_type("int64"))
    wide = "float32" if site.dtype == "bfloat16" else site.dtype  # of which there is none
    x = graph.node("Cast", x, to=elem_type(wide))
    x = graph.node("ReverseSequence", x, lengths, time_axis=time, batch_axis=batch)
    return graph.node("Cast", x, to=elem_type(site.dtype))


@writes("relax.nonzero")
def _nonzero(site: Site) -> Any:
    return site.graph.node("NonZero", site.names[0])
