"""Scatters as tensor expressions: what the kernels of `index` compute, to be differentiated.

Updates are numbered in the order of the loops, and each is given its place in the flat data. Those
whose index points outside get a place of their own, behind the data, and leave zeros there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import te, tirx

from ..fallback.externs import register
from ..fallback.externs.writes import Writes, visited, written
from ..fallback.indices.linear_system import element_axes
from ..fallback.indices.row_major import element_count, raveled, unraveled
from ..fallback.kinds import map_stage
from ..fallback.scatter import Scatter, scatter_add
from ..ir.tensor import Dimension
from .indexing import Indexing, within
from .opaque_kernel import KERNEL

_REDUCTIONS = ("update", "add", "mul", "min", "max")


def _restate_scatter(op: Any) -> list[te.Tensor]:
    """y = x, then y[position(t)] = f(y[position(t)], updates[t]) for each t"""
    indexing, reduction = Indexing.of(op.attrs), str(op.attrs["reduction"])
    index, updates, *given = op.inputs
    shape = list(op.output(0).shape)
    data = given[0] if given else _zeros(shape, str(updates.dtype))
    over = indexing.output_shape(shape, index.shape)
    if _is_empty([*shape, *over]):
        return [data]
    if reduction == "add":
        return [_added(indexing, data, index, updates, over)]
    places = _places(indexing, shape, index, updates.shape, over)
    writes = Writes(_append_zero(data), places, _flat(updates, places, data, over))
    return [_in_shape(written(writes, reduction), shape)]


def _restate_walk(op: Any) -> list[te.Tensor]:
    """found[t] = y[position(t)], then y[position(t)] = a[t] · y[position(t)] + b[t], for each t"""
    indexing, reverse = Indexing.of(op.attrs), bool(op.attrs["reverse"])
    inputs = list(op.inputs)
    index = None if indexing.form == "line" else inputs.pop(0)
    data, *steps = inputs
    over, shape = list(steps[0].shape), list(data.shape)
    if _is_empty([*shape, *over]):
        return [_zeros(over, str(data.dtype)), data]
    places = _places(indexing, shape, index, over, over)
    parts = [_flat(step, places, data, over) for step in steps]
    if reverse:
        places, *parts = (_reversed(tensor) for tensor in (places, *parts))
    visits = visited(_append_zero(data), places, parts, _visit)
    found = _reversed(visits.found) if reverse else visits.found
    outside = element_count(shape)
    in_order = _reversed(places) if reverse else places

    def element(*at: Any) -> Any:
        t = raveled(at, over)
        return tirx.if_then_else(in_order(t) < outside, found(t), tirx.const(0.0, str(data.dtype)))

    return [map_stage(over, element, name="found_inside"), _in_shape(visits.left, shape)]


def _visit(held: Any, parts: Sequence[Any]) -> Any:
    """What a step leaves: a value, or a · held + b."""
    return parts[0] * held + parts[1] if len(parts) > 1 else parts[0]


def _added(
    indexing: Indexing,
    data: te.Tensor,
    index: te.Tensor,
    updates: te.Tensor,
    over: Sequence[Dimension],
) -> te.Tensor:
    """The sum of the data and of the updates at each position."""
    axes = element_axes(over, "t")
    at = [axis.var for axis in axes]
    position, inside, _ = indexing.position(data.shape, index, at)
    guards = [inside, *within(at, updates.shape, over)]
    scatter = Scatter(axes, position, updates(*at), guards)
    total = scatter_add(data.shape, str(updates.dtype), [scatter], "added")
    return map_stage(data.shape, lambda *i: data(*i) + total(*i), name="scattered")


def _places(
    indexing: Indexing,
    shape: Sequence[Dimension],
    index: te.Tensor | None,
    available: Sequence[Dimension],
    over: Sequence[Dimension],
) -> te.Tensor:
    """The place of each update in the flat data; behind it, of one that is left out."""

    def place(t: Any) -> Any:
        output = unraveled(t, over)
        position, inside, _ = indexing.position(shape, index, output)
        inside = tirx.all(inside, *within(output, available, over))
        behind = element_count(shape).astype("int64")
        return tirx.if_then_else(inside, raveled(position, shape).astype("int64"), behind)

    return map_stage((element_count(over),), place, name="places")


def _flat(
    updates: te.Tensor, places: te.Tensor, data: te.Tensor, over: Sequence[Dimension]
) -> te.Tensor:
    """Updates in their order; zeros for those that are left out."""

    def update(t: Any) -> Any:
        inside = places(t) < element_count(data.shape)
        zero = tirx.const(0.0, str(updates.dtype))
        return tirx.if_then_else(inside, updates(*unraveled(t, over)), zero)

    return map_stage(places.shape, update, name="updates")


def _append_zero(data: te.Tensor) -> te.Tensor:
    """Flat data with a zero behind them."""
    count = element_count(data.shape)

    def element(p: Any) -> Any:
        zero = tirx.const(0.0, str(data.dtype))
        return tirx.if_then_else(p < count, data(*unraveled(p, data.shape)), zero)

    return map_stage((count + 1,), element, name="flat")


def _in_shape(flat: te.Tensor, shape: Sequence[Dimension]) -> te.Tensor:
    return map_stage(shape, lambda *at: flat(raveled(at, shape)), name="in_shape")


def _reversed(tensor: te.Tensor) -> te.Tensor:
    (count,) = tensor.shape
    return map_stage((count,), lambda t: tensor(count - 1 - t), name="reversed")


def _zeros(shape: Sequence[Dimension], dtype: str) -> te.Tensor:
    return map_stage(shape, lambda *_: tirx.const(0.0, dtype), name="zeros")


def _is_empty(extents: Sequence[Dimension]) -> bool:
    return any(isinstance(extent, tirx.IntImm) and int(extent) == 0 for extent in extents)


def register_kernels() -> None:
    """Say what the kernels of scatters compute."""
    for reduction in _REDUCTIONS:
        register(f"{KERNEL}scatter_{reduction}", _restate_scatter)
    register(f"{KERNEL}walk", _restate_walk)
