"""Writes at indices that are read from tensors: into a copy of the data, one after another.

All of them are stated over flat tensors: write t combines `updates[t]` with what is held at place
`targets[t]`, in ascending order of t wherever two writes meet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import te, tirx, topi

from ..backprop import widened
from ..constants import integer_value
from ..indices.linear_system import element_axes
from ..indices.row_major import element_count, raveled, reshaped, unraveled
from ..keyed import Keyed, keyed, keyed_of
from ..kinds import map_stage
from ..reductions.recurrence import partial_results
from ..scatter import Scatter, scatter_add
from ..walk import Expr, substitute_expressions
from .match import same_stage

_INDEX = "int64"

_EXTREMES = ("min", "max")


@dataclass(frozen=True)
class Writes:
    """What is written into a tensor, one update after another.

    Attributes
    ----------
    data : Tensor
        The values before.
    targets : Tensor of shape (n,)
        Places in the data, in row-major order.
    updates : Tensor of shape (n,)
    """

    data: te.Tensor
    targets: te.Tensor
    updates: te.Tensor


def scatter_elements(op: Any) -> list[te.Tensor] | None:
    """y = x, then y[.., indices[t], ..] = f(y[.., indices[t], ..], updates[t]) for each t"""
    data, indices, updates = op.inputs
    for axis in range(len(data.shape)):
        for mode in ("update", "add", *_EXTREMES, "mul", "mean"):
            if same_stage(op, topi.scatter_elements(data, indices, updates, axis, mode)):
                return [written(_along_axis(data, indices, updates, axis), mode)]
    return None


def written_extreme(op: Any) -> str | None:
    """Which of minima and maxima a stage scatters into a vector; None for other stages."""
    if str(op.tag) != "scatter_elements.generic" or len(op.output(0).shape) != 1:
        return None
    modes = (m for m in _EXTREMES if same_stage(op, topi.scatter_elements(*op.inputs, 0, m)))
    return next(modes, None)


def scatter_nd(op: Any) -> list[te.Tensor] | None:
    """y = x, then y[indices[:, t]] = f(y[indices[:, t]], updates[t]) for each t"""
    data, indices, updates = op.inputs
    for mode in ("update", "add", "mul", "min", "max"):
        if same_stage(op, topi.scatter_nd(data, indices, updates, mode)):
            return [written(_at_points(data, indices, updates), mode)]
    return None


def index_put(op: Any) -> list[te.Tensor] | None:
    """y = x, then y[indices₀[t], indices₁[t], ..] = values[t], or += values[t], for each t"""
    data, *indices, values = op.inputs
    for mode, accumulate in (("update", False), ("add", True)):
        if same_stage(op, topi.index_put(data, indices, values, accumulate)):
            return [written(_at_tuples(data, indices, values), mode)]
    return None


def _along_axis(data: te.Tensor, indices: te.Tensor, updates: te.Tensor, axis: int) -> Writes:
    # Dimensions before the axis, and those after it, are counted together, as the loops do: the
    # indices may have fewer elements there than the data.
    shape, index_shape = data.shape, indices.shape
    parts = [
        element_count(index_shape[:axis]),
        index_shape[axis],
        element_count(index_shape[axis + 1 :]),
    ]
    after = element_count(shape[axis + 1 :])

    def target(write: Expr) -> Expr:
        before, _, behind = unraveled(write, parts)
        index = _wrap_negative_index(indices(*unraveled(write, index_shape)), shape[axis])
        return (before * shape[axis] + index) * after + behind

    return _flat(data, element_count(index_shape), target, updates)


def _at_points(data: te.Tensor, indices: te.Tensor, updates: te.Tensor) -> Writes:
    points = indices.shape[1:]
    parts = [element_count(points), element_count(updates.shape[len(points) :])]

    def target(write: Expr) -> Expr:
        point, position = unraveled(write, parts)
        # A point stands for a slice, whose size is the stride of the last indexed dimension.
        stride = parts[1]
        for dimension in reversed(range(int(indices.shape[0]))):
            position = position + stride * indices(dimension, *unraveled(point, points))
            stride = stride * data.shape[dimension]
        return position

    return _flat(data, element_count(parts), target, updates)


def _at_tuples(data: te.Tensor, indices: Sequence[te.Tensor], values: te.Tensor) -> Writes:
    rank = max(len(index.shape) for index in indices)
    shape = [
        _broadcast([t.shape[d - rank] for t in indices if len(t.shape) >= rank - d])
        for d in range(rank)
    ]

    def target(write: Expr) -> Expr:
        position = unraveled(write, shape)
        point = []
        for index, extent in zip(indices, data.shape, strict=True):
            # Broadcasting as in NumPy: aligned at the last dimension, an extent of 1 repeated.
            aligned = position[rank - len(index.shape) :]
            at = [
                0 if integer_value(e) == 1 else p for p, e in zip(aligned, index.shape, strict=True)
            ]
            point.append(_wrap_negative_index(index(*at), extent))
        return raveled(point, data.shape)

    return _flat(data, element_count(shape), target, values)


def _broadcast(extents: Sequence[Expr]) -> Expr:
    return next((extent for extent in extents if integer_value(extent) != 1), extents[0])


def _wrap_negative_index(index: Expr, extent: Expr) -> Expr:
    return tirx.Select(index < 0, index + extent.astype(str(index.ty)), index)


def _flat(
    data: te.Tensor, count: Expr, target: Callable[[Expr], Expr], updates: te.Tensor
) -> Writes:
    targets = map_stage((count,), lambda t: target(t).astype(_INDEX), name="targets")
    return Writes(data, targets, reshaped(updates, [count]))


def written(writes: Writes, mode: str) -> te.Tensor:
    """The data after all writes.

    Parameters
    ----------
    writes : Writes
    mode : "update", "add", "mul", "mean", "min" or "max"
        How an update is combined with what is there.
    """
    if mode == "add":
        return _added(writes)
    if mode == "update":
        return _replaced(writes, writes.updates, _last_writes(writes.data, writes.targets))
    if mode in _EXTREMES:
        return _replaced(writes, writes.updates, _first_extremes(writes, mode))
    return _combined(writes, mode)


def _added(writes: Writes) -> te.Tensor:
    data, (count,) = writes.data, writes.targets.shape
    (axis,) = element_axes([count], "t")
    term = widened(writes.updates(axis.var))
    target = writes.targets(axis.var)
    shape = [element_count(data.shape)]
    total = scatter_add(shape, str(term.ty), [Scatter([axis], [target], term, [])], "added")

    def body(*at: Any) -> Expr:
        return data(*at) + total(raveled(at, data.shape)).astype(str(data.dtype))

    return map_stage(data.shape, body, name=f"{data.op.name}_added")


def _replaced(writes: Writes, values: te.Tensor, choice: te.Tensor) -> te.Tensor:
    """The data with `values[choice[p]]` at the places p whose choice is not negative."""
    data = writes.data

    def body(*at: Any) -> Expr:
        chosen = choice(raveled(at, data.shape))
        return tirx.if_then_else(chosen >= 0, values(chosen), data(*at))

    return map_stage(data.shape, body, name=f"{data.op.name}_written")


def _last_writes(data: te.Tensor, targets: te.Tensor) -> te.Tensor:
    """The number of the last write to each place, -1 where there is none."""
    unwritten = map_stage(
        (element_count(data.shape),), lambda _: tirx.const(-1, _INDEX), name="none"
    )
    numbers = map_stage(targets.shape, lambda t: t.astype(_INDEX), name="numbers")
    return topi.scatter_elements(unwritten, targets, numbers, 0, "max")


def _first_extremes(writes: Writes, mode: str) -> te.Tensor:
    """The number of the write that a place's value is from, -1 if it is from the data.

    Of equal values the first counts, that of the data before all updates.
    """
    (count,) = writes.targets.shape
    data = reshaped(writes.data, [element_count(writes.data.shape)])
    targets, updates = writes.targets, writes.updates
    result = topi.scatter_elements(data, targets, updates, 0, mode)
    # The count stands for no write: as a minimum it gives way to every number.
    no_write = map_stage(data.shape, lambda _: count.astype(_INDEX), name="none")

    def number(t: Expr) -> Expr:
        matches = _same_value(updates(t), result(targets(t)))
        return tirx.Select(matches, t.astype(_INDEX), count.astype(_INDEX))

    numbers = map_stage(targets.shape, number, name="numbers")
    first = topi.scatter_elements(no_write, targets, numbers, 0, "min")

    def chosen(position: Expr) -> Expr:
        from_data = tirx.any(
            _same_value(data(position), result(position)), first(position) >= count
        )
        return tirx.Select(from_data, tirx.const(-1, _INDEX), first(position))

    return map_stage(data.shape, chosen, name="chosen")


def _same_value(a: Expr, b: Expr) -> Expr:
    # A NaN that was written stays, and equals no number, itself included.
    both_nan = tirx.all(tirx.isnan(widened(a)), tirx.isnan(widened(b)))
    return tirx.any(tirx.EQ(a, b), both_nan)


def _combined(writes: Writes, mode: str) -> te.Tensor:
    """The data after writes that depend on what is there: h ← h · u, or h ← (h + u) / 2."""
    wide = str(widened(writes.updates(0)).ty)
    data, updates = (_cast(tensor, wide) for tensor in (writes.data, writes.updates))
    factors, terms = updates, None
    if mode == "mean":
        half = tirx.const(0.5, wide)
        factors = map_stage(updates.shape, lambda _: half, name="half")
        terms = map_stage(updates.shape, lambda t: updates(t) * half, name="halves")
    (axis,) = element_axes(writes.targets.shape, "t")
    target = writes.targets(axis.var)
    guards = [target >= 0, target < element_count(data.shape)]
    key = unraveled(target, data.shape)
    _, left = keyed(Keyed([axis], key, guards, data, factors, terms))
    return _cast(left, str(writes.data.dtype))


def _cast(tensor: te.Tensor, dtype: str) -> te.Tensor:
    if str(tensor.dtype) == dtype:
        return tensor
    return map_stage(tensor.shape, lambda *at: tensor(*at).astype(dtype), name=tensor.op.name)


def by_sorting(op: Any) -> list[te.Tensor] | None:
    """A recurrence by key as one over its points sorted by key; None for any other stage.

    Points of one key follow each other once they are sorted by it, which keeps their order: a
    recurrence along them, that starts anew from the data at each key.
    """
    recurrence = keyed_of(op)
    if recurrence is None:
        return None
    data, dtype = recurrence.data, str(recurrence.data.dtype)
    shape, count = [axis.extent for axis in recurrence.axes], element_count(data.shape)
    variables = [axis.var for axis in recurrence.axes]
    rank, zero = len(recurrence.indices), tirx.const(0.0, dtype)

    def target(t: Expr) -> Expr:
        """The place of a point's key in the flat data; the one behind them for no key."""
        values = zip(variables, unraveled(t, shape), strict=True)
        exprs = substitute_expressions([*recurrence.indices, *recurrence.guards], [*values])
        key = raveled(exprs[:rank], data.shape).astype(_INDEX)
        for guard in reversed(exprs[rank:]):
            key = tirx.if_then_else(guard, key, count.astype(_INDEX))
        return key

    def in_order(operand: te.Tensor | None) -> te.Tensor:
        def value(t: Expr) -> Expr:
            if operand is None:
                return zero
            point = recurrence.coordinates(unraveled(order(t), shape))
            return tirx.if_then_else(keys(t) < count, operand(*point), zero)

        return map_stage(keys.shape, value, name="in_order")

    targets = map_stage((element_count(shape),), target, name="targets")
    order = topi.argsort(targets, None, 0, True, _INDEX)
    keys = map_stage(targets.shape, lambda t: targets(order(t)), name="keys")
    # Points without a key have the one behind the data, where there is a zero.
    flat = map_stage(
        (count + 1,),
        lambda p: tirx.if_then_else(p < count, data(*unraveled(p, data.shape)), zero),
        name="flat",
    )
    start = map_stage(keys.shape, lambda t: flat(keys(t)), name="start")

    def is_first(t: Expr) -> Expr:
        # A branch and no Select: at the first point there is none before it to be read.
        return tirx.if_then_else(t > 0, tirx.NE(keys(t), keys(t - 1)), tirx.const(True))

    first = map_stage(keys.shape, is_first, name="first")
    factors, terms = in_order(recurrence.factors), in_order(recurrence.terms)

    def step(state: Sequence[Expr], element: Sequence[Expr]) -> list[Expr]:
        starts_anew, at_first, factor, term = element
        held = tirx.if_then_else(starts_anew, at_first, state[0])
        return [factor * held + term if recurrence.factors is not None else term]

    # The initial state is never used: the first point of a key starts from the data.
    elements = [first, start, factors, terms]
    (states,) = partial_results(elements, [dtype], lambda: [zero], step, "visits")
    after = map_stage(keys.shape, lambda t: states(t + 1), name="after")
    sorted_found = map_stage(
        keys.shape,
        lambda t: tirx.if_then_else(first(t), start(t), states(t)),
        name="sorted_found",
    )
    # Sorting a permutation inverts it: where each point stands in the sorted order.
    ranks = topi.argsort(order, None, 0, True, _INDEX)

    def found(*point: Any) -> Expr:
        t = raveled(recurrence.coordinates(point), shape)
        return tirx.if_then_else(targets(t) < count, sorted_found(ranks(t)), zero)

    # Of one key the last in sorted order is visited last, so its state is what is left.
    left = _replaced(Writes(flat, keys, after), after, _last_writes(flat, keys))
    return [map_stage(op.output(0).shape, found, name="found"), reshaped(left, data.shape)]
