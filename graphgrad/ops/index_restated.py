"""Scatters as tensor expressions: what the kernels of `index` compute, to be differentiated.

Walks and products are recurrences by key (`fallback.keyed`). For the others, updates are numbered
in the order of the loops, and each is given its target: its row-major position in the flattened
data. All whose index points outside have as target one further element behind the data, which holds
a zero and is cut off in the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import te, tirx

from ..fallback.externs import register
from ..fallback.externs.writes import Writes, written
from ..fallback.indices.linear_system import element_axes
from ..fallback.indices.row_major import element_count, raveled, unraveled
from ..fallback.keyed import Keyed, keyed
from ..fallback.kinds import map_stage
from ..fallback.scatter import Scatter, scatter_add
from ..ir.tensor import Dimension
from .indexing import Indexing, within
from .opaque_kernel import KERNEL

_REDUCTIONS = ("update", "add", "mul", "min", "max")


def _restate_scatter(op: Any) -> list[te.Tensor]:
    """y = x, then y[position(t)] = f(y[position(t)], updates[t]) for each t."""
    indexing, reduction = Indexing.of(op.attrs), str(op.attrs["reduction"])
    # What a GPU orders its updates by says nothing new.
    index, updates, *initial = list(op.inputs)[: len(op.inputs) - int(op.attrs["orders"])]
    shape = list(op.output(0).shape)
    data = initial[0] if initial else _zeros(shape, str(updates.dtype))
    loop_shape = indexing.output_shape(shape, index.shape)
    if _is_empty([*shape, *loop_shape]):
        return [data]
    if reduction == "add":
        return [_added(indexing, data, index, updates, loop_shape)]
    if reduction == "mul":
        return [_keyed(indexing, data, index, (updates, None), loop_shape)[1]]
    targets = targets_of(indexing, shape, index, updates.shape, loop_shape)
    writes = Writes(_append_zero(data), targets, _flat(updates, targets, data, loop_shape))
    return [_in_shape(written(writes, reduction), shape)]


def _restate_walk(op: Any) -> list[te.Tensor]:
    """old[t] = y[position(t)], then y[position(t)] = a[t] · y[position(t)] + b[t], for each t."""
    indexing = Indexing.of(op.attrs)
    inputs = list(op.inputs)
    index = None if indexing.form == "line" else inputs.pop(0)
    data, *steps = inputs
    loop_shape = list(steps[0].shape)
    if _is_empty([*data.shape, *loop_shape]):
        return [_zeros(loop_shape, str(data.dtype)), data]
    factors, terms = steps if len(steps) == 2 else (None, steps[0])
    reverse = bool(op.attrs["reverse"])
    return _keyed(indexing, data, index, (factors, terms), loop_shape, reverse)


def _keyed(
    indexing: Indexing,
    data: te.Tensor,
    index: te.Tensor | None,
    steps: tuple[te.Tensor | None, te.Tensor | None],
    loop_shape: Sequence[Dimension],
    reverse: bool = False,
) -> list[te.Tensor]:
    """What each update of a position finds there, and what is left in the end.

    Parameters
    ----------
    steps : pair of Tensor or None
        The factors and terms of the updates.
    """
    available = next(tensor.shape for tensor in steps if tensor is not None)
    axes = element_axes(available, "t")
    at = [axis.var for axis in axes]
    position, inside, _ = indexing.position(data.shape, index, at)
    guards = [*within(at, loop_shape, available), inside]
    recurrence = Keyed(axes, position, [g for g in guards if not _holds(g)], data, *steps)
    return keyed(recurrence.reversed() if reverse else recurrence)


def _holds(condition: Any) -> bool:
    return isinstance(condition, tirx.IntImm) and bool(int(condition))


def _added(
    indexing: Indexing,
    data: te.Tensor,
    index: te.Tensor,
    updates: te.Tensor,
    loop_shape: Sequence[Dimension],
) -> te.Tensor:
    """The sum of the data and of the updates at each position."""
    axes = element_axes(loop_shape, "t")
    indices = [axis.var for axis in axes]
    position, inside, _ = indexing.position(data.shape, index, indices)
    guards = [inside, *within(indices, updates.shape, loop_shape)]
    scatter = Scatter(axes, position, updates(*indices), guards)
    total = scatter_add(data.shape, str(updates.dtype), [scatter], "added")
    return map_stage(data.shape, lambda *i: data(*i) + total(*i), name="scattered")


def targets_of(
    indexing: Indexing,
    shape: Sequence[Dimension],
    index: te.Tensor | None,
    available: Sequence[Dimension],
    loop_shape: Sequence[Dimension],
) -> te.Tensor:
    """The target of each update in the flat data; the element behind it for one left out."""

    def target(t: Any) -> Any:
        output = unraveled(t, loop_shape)
        position, inside, _ = indexing.position(shape, index, output)
        inside = tirx.all(inside, *within(output, available, loop_shape))
        behind = element_count(shape).astype("int64")
        return tirx.if_then_else(inside, raveled(position, shape).astype("int64"), behind)

    return map_stage((element_count(loop_shape),), target, name="targets")


def _flat(
    updates: te.Tensor, targets: te.Tensor, data: te.Tensor, loop_shape: Sequence[Dimension]
) -> te.Tensor:
    """The updates in their order, flat; zeros for those that are left out."""

    def update(t: Any) -> Any:
        inside = targets(t) < element_count(data.shape)
        zero = tirx.const(0.0, str(updates.dtype))
        return tirx.if_then_else(inside, updates(*unraveled(t, loop_shape)), zero)

    return map_stage(targets.shape, update, name="updates")


def _append_zero(data: te.Tensor) -> te.Tensor:
    """The flat data with a zero behind them, the target of all updates that are left out."""
    count = element_count(data.shape)

    def element(p: Any) -> Any:
        zero = tirx.const(0.0, str(data.dtype))
        return tirx.if_then_else(p < count, data(*unraveled(p, data.shape)), zero)

    return map_stage((count + 1,), element, name="flat")


def _in_shape(flat: te.Tensor, shape: Sequence[Dimension]) -> te.Tensor:
    return map_stage(shape, lambda *indices: flat(raveled(indices, shape)), name="in_shape")


def _zeros(shape: Sequence[Dimension], dtype: str) -> te.Tensor:
    return map_stage(shape, lambda *_: tirx.const(0.0, dtype), name="zeros")


def _is_empty(extents: Sequence[Dimension]) -> bool:
    return any(isinstance(extent, tirx.IntImm) and int(extent) == 0 for extent in extents)


def register_kernels() -> None:
    """Register the tensor expressions of the kernels of scatters and walks."""
    for reduction in _REDUCTIONS:
        register(f"{KERNEL}scatter_{reduction}", _restate_scatter)
    register(f"{KERNEL}walk", _restate_walk)
