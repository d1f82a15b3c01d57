"""Stores in a loop nest as stages: what each element of the buffers holds afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import te, tirx
from tvm.ir import prim

from ..guarded import Guard
from ..indices.index_system import Inversion, invert
from ..indices.linear_system import Axis, NotAffineError, analyzer_of, element_axes
from ..walk import Expr, identity, substituted
from .combination import Combination

Load = tvm.ir.TensorLoad
Held = Callable[[Any], te.Tensor]
"""The tensor that a buffer holds before."""


@dataclass(frozen=True)
class Store:
    """`buffer[indices] = value`, in terms of loops and of loads from buffers."""

    buffer: Any
    indices: list[Expr]
    value: Expr


@dataclass(frozen=True)
class Update:
    """Stores that happen at once, at every point of some loops.

    Attributes
    ----------
    stores : list of Store
    axes : list of Axis
    guards : list of Guard
        They happen only where all of these hold, outermost first.
    initial : bool
        They happen once per element, however often the loops reach it.
    in_any_order : bool
        The block says that its iterations may happen in any order.
    """

    stores: list[Store]
    axes: list[Axis]
    guards: list[Guard]
    initial: bool
    in_any_order: bool


def updated(update: Update, held: Held) -> list[te.Tensor]:
    """Return what the buffers of an update's stores hold after it.

    Parameters
    ----------
    update : Update
    held : callable

    Raises
    ------
    NotAffineError
        It is not a map, nor a reduction; the text says why.
    """
    first, *others = update.stores
    element = element_axes(first.buffer.shape)
    for other in others:
        if not (
            _equal(first.indices, other.indices) and _equal(first.buffer.shape, other.buffer.shape)
        ):
            raise NotAffineError("it stores to several buffers at different elements")
    inversion = invert(first.indices, update.axes, element)
    _check_own_reads(update)
    nest = _Nest(update, held, element, inversion)
    if update.initial or not inversion.loops:
        return [nest.stored(store) for store in update.stores]
    return nest.reduced()


def depends(expr: Expr, variables: Sequence[Any]) -> bool:
    """Return whether an expression contains one of some variables."""
    wanted = {identity(var) for var in variables}
    return any(identity(var) in wanted for var in tirx.analysis.undefined_vars(expr))


def _check_own_reads(update: Update) -> None:
    """Raise if an iteration reads, from a buffer that it writes, what another one writes."""
    for load in _loads([store.value for store in update.stores] + [g for g, _ in update.guards]):
        for store in update.stores:
            if load.source.same_as(store.buffer) and not (
                _equal(load.indices, store.indices) or _never_written(load, store, update)
            ):
                raise NotAffineError(
                    f"{store.buffer.name}[{_text(store.indices)}] is computed from "
                    f"{store.buffer.name}[{_text(load.indices)}], which another iteration writes"
                )


def _never_written(load: Any, store: Store, update: Update) -> bool:
    """Return whether no iteration writes the element that a load reads, provably."""
    inversion = invert(store.indices, update.axes, update.axes, position=list(load.indices))
    analyzer = analyzer_of([*update.axes, *inversion.loops])
    return any(analyzer.can_prove(tirx.Not(guard)) for guard in inversion.guards)


def _equal(a: Sequence[Expr], b: Sequence[Expr]) -> bool:
    return len(a) == len(b) and all(map(tvm_ffi.structural_equal, a, b))


def _loads(exprs: Sequence[Expr]) -> list[Any]:
    found: list[Any] = []
    for expr in exprs:
        tvm_ffi.structural_walk(expr, (Load, found.append))
    return found


def _text(indices: Sequence[Expr]) -> str:
    return ", ".join(map(str, indices))


@dataclass
class _Nest:
    """An update seen from an element: the iterations that reach it."""

    update: Update
    held: Held
    element: list[Axis]
    inversion: Inversion

    def stored(self, store: Store) -> te.Tensor:
        """Return the buffer after a store that reaches each element at most once."""
        # What comes before a reduction happens in the first iteration of its loops.
        first = [(axis.var, axis.low) for axis in self.inversion.loops]
        guards = [(substituted(guard, first), wanted) for guard, wanted in self._guards()]
        value = substituted(self._seen(store.value), first)
        before = self.held(store.buffer) if guards else None

        def body(*position: Any) -> Expr:
            at = list(zip([axis.var for axis in self.element], position, strict=True))
            result = substituted(value, at)
            for condition, wanted in reversed(guards):
                assert before is not None
                other = before(*position)
                branches = (result, other) if wanted else (other, result)
                result = tirx.if_then_else(substituted(condition, at), *branches)
            return result

        return te.compute(tuple(store.buffer.shape), body, name=store.buffer.name)

    def reduced(self) -> list[te.Tensor]:
        """Return the buffers after stores that combine each element with several values."""
        stores = self.update.stores
        before = [self.held(store.buffer) for store in stores]
        combination = Combination.of(stores, self.update.in_any_order)
        guards = self._guards()
        sources = [self._seen(source) for source in combination.sources]
        starts = _constants(before)
        identities = combination.identities(starts)
        first = stores[0].buffer
        loops = [
            te.reduce_axis((a.low, a.low + a.extent), a.var.name) for a in self.inversion.loops
        ]

        def body(*position: Any) -> Any:
            at = [
                *zip([axis.var for axis in self.element], position, strict=True),
                *zip([a.var for a in self.inversion.loops], [r.var for r in loops], strict=True),
            ]
            values = [
                _guarded(value, guards, start)
                for value, start in zip(sources, identities, strict=True)
            ]
            values = [substituted(value, at) for value in values]
            return combination.reduce(values, identities, loops)

        result = te.compute(tuple(first.shape), body, name=f"{first.name}_{combination.name}")
        tensors = [result] if isinstance(result, te.Tensor) else list(result)
        if starts is not None and all(map(tvm_ffi.structural_equal, starts, identities)):
            return tensors
        return _combined(combination, before, tensors)

    def _guards(self) -> list[Guard]:
        """Return the conditions in terms of the element: to be an iteration, then the update's."""
        seen = [(self._seen(condition), wanted) for condition, wanted in self.update.guards]
        return [*((guard, True) for guard in self.inversion.guards), *seen]

    def _seen(self, expr: Expr) -> Expr:
        """Return an expression at the iteration that reaches an element, loading from tensors."""
        values = zip([axis.var for axis in self.update.axes], self.inversion.values, strict=True)
        table = {identity(var): value for var, value in values}

        def change(load: Any) -> Any:
            return self.held(load.source)(*load.indices)

        loaded = tvm_ffi.structural_map(expr, (Load, change))
        return substituted(loaded, [(a.var, table[identity(a.var)]) for a in self.update.axes])


def _guarded(value: Expr, guards: Sequence[Guard], otherwise: Expr) -> Expr:
    for condition, wanted in reversed(guards):
        branches = (value, otherwise) if wanted else (otherwise, value)
        value = tirx.if_then_else(condition, *branches)
    return value


def _constants(tensors: Sequence[te.Tensor]) -> list[Expr] | None:
    """Return the one value that each tensor is filled with; None unless all are."""
    values = []
    for tensor in tensors:
        body = tensor.op.body[0] if isinstance(tensor.op, te.ComputeOp) else None
        if not isinstance(body, prim.IntImm | prim.FloatImm):
            return None
        values.append(body)
    return values


def _combined(
    combination: Combination, before: Sequence[te.Tensor], tensors: Sequence[te.Tensor]
) -> list[te.Tensor]:
    """Return the buffers' old values combined with what was reduced."""

    def body(*position: Any) -> Any:
        return combination.apply(
            [tensor(*position) for tensor in before], [tensor(*position) for tensor in tensors]
        )

    name = tensors[0].op.name
    result = te.compute(tuple(tensors[0].shape), body, name=f"{name}_total")
    return [result] if isinstance(result, te.Tensor) else list(result)
