"""Stores in a loop nest, and what their iterations read of what they write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..guarded import Guard
from ..indices.linear_system import Axis
from .disjoint import Place, is_same_point, never_meet
from .statements import RefusedError, Store, equal, loads


class OrderError(RefusedError):
    """What an update computes depends on the order of its iterations.

    Attributes
    ----------
    buffer : Var
        The one through which they depend on one another.
    name : str
        What the kernel calls it; its reason has braces where that belongs.
    """

    def __init__(self, buffer: Any, reason: str):
        super().__init__(reason)
        self.buffer = buffer
        self.name = str(buffer.name)

    def __str__(self) -> str:
        return super().__str__().replace("{}", self.name)


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
                    "{} is computed from an element of it that another iteration writes",
                )


def _never_written(load: Any, store: Store, update: Update) -> bool:
    """Whether no other iteration writes the element that a load reads, provably."""
    axes, guards = tuple(update.axes), tuple(update.guards)
    reading = Place(list(load.indices), axes, guards)
    writing = Place(store.indices, axes, guards)
    return never_meet(reading, writing) or is_same_point(reading, writing)
