"""Loops that are independent: their trips may run in any order, or side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import tirx

from ...ir.kernel_structure import Load, buffer_of, is_among, static
from ...ir.loops import sequence
from ...ir.visits import nodes_in


def are_plain(loops: Sequence[Any]) -> bool:
    """Whether loops are serial, from 0, of known lengths, so that they may change places."""
    return bool(loops) and all(
        each.kind == tirx.ForKind.SERIAL
        and static(each.min) == 0
        and static(each.extent) is not None
        and not each.annotations
        for each in loops
    )


def trip_count(loops: Sequence[Any]) -> int:
    """The number of points of plain loops."""
    return math.prod(static(each.extent) or 1 for each in loops)


def writes_its_own(block: Any, var: Any) -> bool:
    """Whether each value of a variable has elements of its own in all that a block writes.

    TVM asks so of a spatial axis, but compiles a kernel in which it is not.
    """
    body = sequence(*([block.init] if block.init is not None else []), block.body)
    local = [node.buffer for node in nodes_in(body, tirx.AllocBuffer)]
    stores = [s for s in nodes_in(body, tirx.BufferStore) if not is_among(s.buffer, local)]
    if nodes_in(body, tirx.Evaluate):  # a call that may do anything
        return False
    for store in stores:
        accesses = [*stores, *nodes_in(body, Load)]
        of_same = [list(a.indices) for a in accesses if buffer_of(a).same_as(store.buffer)]
        own = [i for i, index in enumerate(store.indices) if index.same_as(var)]
        if not any(all(indices[i].same_as(var) for indices in of_same) for i in own):
            return False
    return bool(stores)
