"""Shapes, orders of axes, joins and slices; reductions along axes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax

from ...ir.calls import RESHAPES, result_types
from ...ir.tensor import type_shape
from .graph import Site, UnwritableError, static_extent, writes

_FAR = 2**63 - 1
"""The end of a slice that goes to the last element."""


@writes(*RESHAPES)
def _reshape(site: Site) -> Any:
    return site.graph.reshape(site.names[0], site.shape)


@writes("relax.broadcast_to")
def _broadcast_to(site: Site) -> Any:
    return site.graph.node("Expand", site.names[0], site.graph.shape(site.shape))


@writes("relax.permute_dims")
def _permute_dims(site: Site) -> Any:
    rank, axes = len(site.shape), site.attributes.axes
    order = reversed(range(rank)) if axes is None else (axis % rank for axis in axes)
    if rank < 2:
        return site.names[0]
    return site.graph.permute(site.names[0], list(order))


@writes("relax.shape_of")
def _shape_of(site: Site) -> Any:
    return relax.ShapeExpr(list(site.ty.values))


@writes("relax.shape_to_tensor")
def _shape_to_tensor(site: Site) -> Any:
    return site.graph.shape(list(site.names[0].values))


@writes("relax.concat")
def _concat(site: Site) -> Any:
    axis = site.attributes.axis
    return site.graph.node("Concat", *site.names[0], axis=0 if axis is None else int(axis))


@writes("relax.split")
def _split(site: Site) -> Any:
    types = result_types(site.ty)
    axis = site.attributes.axis % len(type_shape(types[0]))
    sizes = [static_extent(type_shape(ty)[axis]) for ty in types]
    if len(sizes) == 1:  # which is no tuple
        return site.names[0]
    lengths = site.graph.ints(sizes)
    return site.graph.node("Split", site.names[0], lengths, outputs=len(sizes), axis=axis)


@writes("relax.flip")
def _flip(site: Site) -> Any:
    axis = site.attributes.axis % len(site.shape)
    bounds = (site.graph.ints([value]) for value in (-1, -_FAR, axis, -1))
    return site.graph.node("Slice", site.names[0], *bounds)


@writes("relax.tile")
def _tile(site: Site) -> Any:
    graph, repeats = site.graph, [int(count) for count in site.attributes.repeats]
    shape = site.shape_of(0)
    rank = max(len(shape), len(repeats))
    x = graph.reshape(site.names[0], [1] * (rank - len(shape)) + shape)
    return graph.node("Tile", x, graph.ints([1] * (rank - len(repeats)) + repeats))


@writes("relax.repeat")
def _repeat(site: Site) -> Any:
    """Each element several times in a row: an axis behind its own, which is joined to it."""
    graph, shape, count = site.graph, site.shape_of(0), int(site.attributes.repeats)
    axis = site.attributes.axis
    if axis is None:
        shape, axis = [math.prod(shape)], 0
    front, rest = shape[: axis % len(shape) + 1], shape[axis % len(shape) + 1 :]
    x = graph.reshape(site.names[0], [*front, 1, *rest])
    counts = [count if axis == len(front) else 1 for axis in range(len(front) + 1 + len(rest))]
    return graph.reshape(graph.node("Tile", x, graph.ints(counts)), site.shape)


def _numbers(value: Any) -> list[int]:
    """The numbers of a shape, or of a tuple of numbers, among a call's arguments.

    Raises
    ------
    UnwritableError
        One of them is known at run time only.
    """
    fields = value if isinstance(value, list) else list(getattr(value, "values", value))
    numbers = []
    for field in fields:
        number = field if isinstance(field, int) else getattr(field, "value", field)
        if not isinstance(number, int):
            raise UnwritableError(f"the bound {field} is not known")
        numbers.append(number)
    return numbers


@writes("relax.strided_slice")
def _strided_slice(site: Site) -> Any:
    x, axes, begin, end, *strides = site.names
    count = len(_numbers(axes))
    steps = _numbers(strides[0]) if strides else [1] * count
    bounds = map(site.graph.ints, (_numbers(begin), _numbers(end), _numbers(axes), steps))
    return site.graph.node("Slice", x, *bounds)


@writes("graphgrad.unslice")
def _unslice(site: Site) -> Any:
    """Along each axis: zeros between the elements, then before and behind them."""
    graph, x = site.graph, site.names[0]
    begins, shape = _numbers(site.names[1]), site.shape
    extents = site.shape_of(0)
    axes, strides = site.attributes.axes, site.attributes.strides
    for axis, begin, stride in zip(axes, begins, strides, strict=True):
        count, extent = static_extent(extents[axis]), static_extent(shape[axis])
        first, step = begin, stride
        if stride < 0:
            bounds = (graph.ints([value]) for value in (-1, -_FAR, axis, -1))
            x = graph.node("Slice", x, *bounds)
            first, step = begin + stride * (count - 1), -stride
        if step > 1:
            x = graph.node("Unsqueeze", x, graph.ints([axis + 1]))
            x = _padded(site, x, axis + 1, 0, step - 1, len(shape) + 1)
            count *= step
            extents[axis] = count
            x = graph.reshape(x, extents)
        behind = extent - first - count
        x = _padded(site, x, axis, first, max(behind, 0), len(shape))
        if behind < 0:  # zeros that were put behind the last element
            bounds = (graph.ints([value]) for value in (0, extent, axis))
            x = graph.node("Slice", x, *bounds)
        extents[axis] = extent
    return x


def _padded(site: Site, x: str, axis: int, before: int, behind: int, rank: int) -> str:
    """A tensor with zeros before and behind its elements along one axis."""
    if not before and not behind:
        return x
    pads = np.zeros((2, rank), "int64")
    pads[:, axis] = before, behind
    zero = site.graph.constant(0.0, site.dtype)
    return str(site.graph.node("Pad", x, site.graph.ints(pads.ravel().tolist()), zero))


@writes("relax.nn.pad")
def _pad(site: Site) -> Any:
    modes = {"constant": "constant", "reflect": "reflect", "replicate": "edge"}
    attributes = site.attributes
    if attributes.pad_mode not in modes:
        raise UnwritableError(f"pad_mode {attributes.pad_mode!r}")
    widths = np.array(attributes.pad_width, "int64").reshape(-1, 2)
    if attributes.pad_mode == "reflect":
        for extent, width in zip(site.shape_of(0), widths.max(1).tolist(), strict=True):
            if width and width >= static_extent(extent):
                raise UnwritableError(f"reflections of {width} elements at {extent}")
    value = [site.graph.constant(float(attributes.pad_value), site.dtype)]
    if modes[attributes.pad_mode] != "constant":
        value = []
    pads = site.graph.ints(widths.T.ravel().tolist())
    return site.graph.node("Pad", site.names[0], pads, *value, mode=modes[attributes.pad_mode])


_REDUCTIONS = {
    "relax.sum": "ReduceSum",
    "relax.mean": "ReduceMean",
    "relax.max": "ReduceMax",
    "relax.min": "ReduceMin",
    "relax.prod": "ReduceProd",
}


@writes(*_REDUCTIONS)
def _reduction(site: Site) -> Any:
    rank = len(site.shape_of(0))
    axes = site.axes(site.attributes.axis, rank)
    operator = _REDUCTIONS[site.call.op.name]
    return site.graph.reduce(operator, site.names[0], axes, bool(site.attributes.keepdims))


@writes("graphgrad.precise_sum")
def _precise_sum(site: Site) -> Any:
    return site.graph.reduce("ReduceSum", site.names[0], _kept_axes(site), True)


@writes("graphgrad.moments")
def _moments(site: Site) -> Any:
    """The mean, and the mean of the squares of what differs from it."""
    graph, (x,) = site.graph, site.names
    axes = _kept_axes(site)
    mean = graph.reduce("ReduceMean", x, axes, True)
    centered = graph.node("Sub", x, mean)
    return [mean, graph.reduce("ReduceMean", graph.node("Mul", centered, centered), axes, True)]


def _kept_axes(site: Site) -> list[int]:
    """The axes that an op of ours reduces, and keeps with extent 1."""
    return [int(axis) for axis in site.call.attrs["axes"]]
