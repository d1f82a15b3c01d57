"""Buffers that a loop uses anew in each iteration, and those that it hands on to the next one.

Inside such a loop a buffer becomes one with a dimension more, the iteration: then no two iterations
touch the same element, and the loop's statements can be taken one after the other for all
iterations (Feautrier, Array expansion, 1988). What is handed on is the state of a scan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm_ffi
from tvm import te, tirx

from ..constants import integer_value
from ..graph import listed
from ..indices.linear_system import Axis, analyzer_of
from ..walk import Expr, identity
from .disjoint import known_ranges
from .order import Rows
from .statements import Load, Loop, RefusedError, Statement, Store, changed, loads

_MAX_EXPANDED_ELEMENTS = 1 << 28
"""Elements that a buffer kept for all iterations may have."""

Held = Callable[[Any], te.Tensor]


@dataclass(frozen=True)
class Expansion:
    """A buffer as one loop uses it.

    Attributes
    ----------
    buffer : Var
    axis : Axis
    trips : Expr
        At most how many iterations there are; free of loops around.
    is_state : bool
        Iterations go on from what the ones before have left.
    rows : Rows or None
        Each iteration has one row of the buffer. If None, it has all of it.
    inside : Var
        The buffer inside: first the iteration, then what it has.
    past : Var or None
        What iterations before have left: `lag` rows from before the loop, then as `inside`.
    """

    buffer: Any
    axis: Axis
    trips: Expr
    is_state: bool
    rows: Rows | None
    inside: Any
    past: Any

    @staticmethod
    def of(
        buffer: Any, axis: Axis, around: Sequence[Axis], is_state: bool, rows: Rows | None
    ) -> Expansion:
        """How a loop uses a buffer.

        Raises
        ------
        RefusedError
            It cannot be told how large the buffer inside is.
        """
        trips = _most(axis, around)
        shape = list(buffer.shape)
        if rows is not None:
            del shape[rows.dimension]
        _check_size([trips, *shape], buffer, axis)
        if is_state:
            trips, *shape = map(_narrow, [trips, *shape])
        name, scope = f"{buffer.name}_{axis.var.name}", buffer.scope()
        inside = tirx.decl_buffer([trips, *shape], str(buffer.dtype), name, scope=scope)
        lag = 1 if rows is None else rows.lag
        past = None
        if is_state:
            past = tirx.decl_buffer([trips + lag, *shape], str(buffer.dtype), f"{name}_past")
        return Expansion(buffer, axis, trips, is_state, rows, inside, past)

    @property
    def lag(self) -> int:
        """How many iterations back a state is read."""
        return 1 if self.rows is None else self.rows.lag

    @property
    def time(self) -> Expr:
        """The number of the iteration, from 0."""
        return (self.axis.var - self.axis.low).astype(str(self.trips.ty))

    def load(self, load: Any) -> Any:
        """A load in terms of the buffer inside."""
        indices = list(load.indices)
        if self.rows is None:
            return tirx.BufferLoad(self.inside, [self.time, *indices])
        behind = self.rows.back(indices[self.rows.dimension], self.axis.var)
        del indices[self.rows.dimension]
        if behind == 0:
            return tirx.BufferLoad(self.inside, [self.time, *indices])
        # The past begins `lag` rows before the loop: iteration t - behind is row t - behind + lag.
        return tirx.BufferLoad(self.past, [self.time + (self.lag - behind), *indices])

    def store(self, store: Store) -> Store:
        """A store, of which everything else is done, to the buffer inside."""
        indices = list(store.indices)
        if self.rows is not None:
            del indices[self.rows.dimension]
        return replace(store, buffer=self.inside, indices=[self.time, *indices])

    def placeholder(self) -> te.Tensor:
        """The values that earlier iterations have left, as the state of a scan."""
        shape = list(self.past.shape)
        return te.placeholder(shape, str(self.buffer.dtype), name=f"{self.inside.name}_past")

    def beginning(self, state: te.Tensor | None, before: te.Tensor) -> te.Tensor:
        """The contents of the inner buffer when the iterations begin."""
        if self.rows is None:
            assert state is not None
            # Row t of the state is what iteration t - 1 has left.
            return self._staged(state, self.trips)
        return self._staged(lambda t, *indices: self._before(before, t, indices), self.trips)

    def first(self, before: te.Tensor) -> te.Tensor:
        """The state of the scan before the first iteration."""
        lag = tirx.const(self.lag, str(self.trips.ty))
        if self.rows is None:
            return self._staged(lambda _, *indices: before(*indices), lag)
        return self._staged(lambda t, *indices: self._before(before, t - lag, indices), lag)

    def update(self, inside: te.Tensor) -> te.Tensor:
        """The state of the scan at all times, from what the buffer inside holds at last."""
        return self._staged(lambda t, *indices: inside(t - self.lag, *indices), self.past.shape[0])

    def after(self, inside: te.Tensor, state: te.Tensor | None, before: te.Tensor) -> te.Tensor:
        """The contents of the buffer after the loop."""
        shape = tuple(self.buffer.shape)
        if self.rows is None:
            assert state is not None
            last = state
            return te.compute(shape, lambda *at: last(self.trips, *at), name=self.buffer.name)
        rows = self.rows
        low = self.axis.low.astype(str(self.trips.ty))

        def body(*at: Any) -> Expr:
            indices = [index for n, index in enumerate(at) if n != rows.dimension]
            # The iteration that writes a row; a row that none writes is what it was before.
            offset = at[rows.dimension] - rows.first.astype(str(self.trips.ty))
            time = (offset if rows.sign == 1 else 0 - offset) - low
            value = inside(time, *indices)
            for condition in (time < self.trips, time >= 0):
                value = tirx.if_then_else(condition, value, before(*at))
            return value

        return te.compute(shape, body, name=self.buffer.name)

    def _staged(self, body: Callable[..., Expr], rows: Expr) -> te.Tensor:
        return te.compute((rows, *self.inside.shape[1:]), body, name=self.inside.name)

    def _before(self, before: te.Tensor, time: Expr, rest: Sequence[Expr]) -> Expr:
        """An element of the row of an iteration, or of one before the first."""
        assert self.rows is not None
        dtype = str(self.trips.ty)
        value = time + self.axis.low.astype(dtype)
        row = analyzer_of([]).simplify(self.rows.row(value).astype(dtype))
        at = list(rest)
        at.insert(self.rows.dimension, row)
        result = before(*at)
        for condition in (row < before.shape[self.rows.dimension], row >= 0):
            # The row may be outside of the buffer, such as one before the first.
            zero = tirx.const(0, str(before.dtype))
            result = tirx.if_then_else(condition, result, zero)
        return result


def expanded(loop: Loop, expansions: Sequence[Expansion]) -> list[Statement]:
    """The body of a loop in which buffers are those inside."""
    table = {identity(expansion.buffer): expansion for expansion in expansions}

    def load(node: Any) -> Any:
        match = table.get(identity(node.source))
        return node if match is None else match.load(node)

    def expression(expr: Expr) -> Expr:
        return tvm_ffi.structural_map(expr, (Load, load))

    def store(node: Store) -> Store:
        changed_parts = Store(
            node.buffer, [expression(i) for i in node.indices], expression(node.value)
        )
        match = table.get(identity(node.buffer))
        return changed_parts if match is None else match.store(changed_parts)

    return changed(loop.body, expression, store)


def scanned(
    states: Sequence[Expansion],
    placeholders: Sequence[te.Tensor],
    firsts: Sequence[te.Tensor],
    inside: Sequence[te.Tensor],
) -> list[te.Tensor]:
    """The values that all iterations have left, each from those before."""
    updates = [state.update(tensor) for state, tensor in zip(states, inside, strict=True)]
    name = "_".join(str(state.buffer.name) for state in states[:2]) + "_scan"
    return listed(te.scan(list(firsts), updates, list(placeholders), name=name))


def _most(axis: Axis, around: Sequence[Axis]) -> Expr:
    """How many iterations a loop has at most."""
    if loads([axis.extent]):
        raise RefusedError(f"how often the loop {axis.var.name} runs is read from data")
    if not any(_contains(axis.extent, other.var) for other in around):
        return axis.extent
    bound = analyzer_of(known_ranges(around)).const_int_bound(axis.extent).max_value
    if int(bound) >= _MAX_EXPANDED_ELEMENTS:
        raise RefusedError(f"how often the loop {axis.var.name} runs depends on loops around it")
    return tirx.const(max(int(bound), 0), str(axis.extent.ty))


def _narrow(extent: Expr) -> Expr:
    """An extent as TVM's scans have it: they take no other dtype than int32."""
    value = integer_value(extent)
    return extent.astype("int32") if value is None else tirx.const(value, "int32")


def _contains(expr: Expr, var: Any) -> bool:
    return any(var.same_as(other) for other in tirx.analysis.undefined_vars(expr))


def _check_size(shape: Sequence[Expr], buffer: Any, axis: Axis) -> None:
    size = 1
    # Of a symbolic extent nothing is known; it counts as 1.
    for extent in shape:
        size *= integer_value(extent) or 1
    if size > _MAX_EXPANDED_ELEMENTS:
        raise RefusedError(
            f"iterations of the loop {axis.var.name} go on from all of {buffer.name}, which would "
            f"have to be kept for each of them: {size} elements"
        )
