"""Stores in a loop nest, and what their iterations read of what they write."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import prim

from ..guarded import Guard
from ..indices.linear_system import Axis, NotAffineError, analyzer_of
from ..walk import Expr, identity
from .order import inverted
from .statements import RefusedError, Store, equal, integral, loads


class OrderError(RefusedError):
    """What an update computes depends on the order of its iterations.

    Attributes
    ----------
    buffer : Var
        The one through which they depend on one another.
    """

    def __init__(self, buffer: Any, reason: str):
        super().__init__(reason)
        self.buffer = buffer


@dataclass(frozen=True)
class Update:
    """Stores that happen at once, at every point of some loops.

    Attributes
    ----------
    stores : list of Store
    axes : list of Axis
    guards : list of Guard
        They happen only where all of these hold, outermost first.
    in_any_order : bool
        The block says that its iterations may happen in any order.
    """

    stores: list[Store]
    axes: list[Axis]
    guards: list[Guard]
    in_any_order: bool


def is_own(load: Any, update: Update) -> bool:
    """Whether an iteration reads the very element that it writes."""
    return any(
        load.source.same_as(store.buffer) and equal(list(load.indices), store.indices)
        for store in update.stores
    )


def all_loads(update: Update) -> list[Any]:
    """The loads in what an update stores, where, and when."""
    values = [expr for store in update.stores for expr in (store.value, *store.indices)]
    return loads([*values, *(guard for guard, _ in update.guards)])


def check_own_reads(update: Update) -> None:
    """Raise if an iteration reads, from a buffer that it writes, what another one writes."""
    for load in all_loads(update):
        for store in update.stores:
            if load.source.same_as(store.buffer) and not (
                equal(list(load.indices), store.indices) or _never_written(load, store, update)
            ):
                raise OrderError(
                    store.buffer,
                    f"{store.buffer.name}[{_text(store.indices)}] is computed from "
                    f"{store.buffer.name}[{_text(load.indices)}], which another iteration writes",
                )


def _never_written(load: Any, store: Store, update: Update) -> bool:
    """Whether no iteration writes the element that a load reads, provably."""
    try:
        inversion = inverted(store.indices, update.axes, update.axes, position=list(load.indices))
    except NotAffineError:
        return False
    analyzer = analyzer_of([*update.axes, *inversion.loops])
    # The iteration that would write the element, in terms of the one that reads it.
    pairs = zip([axis.var for axis in update.axes], inversion.values, strict=True)
    writer_values = {identity(var): value for var, value in pairs}
    conditions = integral(update.guards)
    elsewhere = [
        tvm_ffi.structural_map(
            guard, (tvm.ir.Var, lambda var: writer_values.get(identity(var), var))
        )
        for guard in conditions
    ]
    # The reading iteration meets its conditions; if the writing one cannot, there is none.
    with ExitStack() as scopes:
        for guard in conditions:
            scopes.enter_context(analyzer.constraint_scope(guard))
        return any(_never_holds(guard, analyzer) for guard in [*inversion.guards, *elsewhere])


def _never_holds(guard: Expr, analyzer: tvm.sym.Analyzer) -> bool:
    if analyzer.can_prove(tirx.Not(guard)):
        return True
    # TVM sees that j < i for a loop j up to i, but not that j - i is not 0.
    difference = analyzer.simplify(guard.a - guard.b) if isinstance(guard, prim.EQ) else None
    return isinstance(difference, prim.Sub) and any(
        analyzer.can_prove(order)
        for order in (difference.a < difference.b, difference.a > difference.b)
    )


def _text(indices: Sequence[Expr]) -> str:
    return ", ".join(map(str, indices))
