"""Loops that are independent: their trips may run in any order, or side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ...fallback.walk import UnknownNodeError, children
from ...ir.kernel_structure import Load, buffer_of, is_among, is_conditional, static
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


def carries(body: Any, local: Sequence[Any]) -> bool:
    """Whether a loop's body may read in local memory what another trip has left there.

    It does not if it sets each value before it reads it, under the same conditions. Only buffers of
    one element are looked into.

    Parameters
    ----------
    body : Stmt
    local : sequence of Buffer
    """
    values = _Values(local)
    return not values.are_set_before(body, [])


class _Values:
    """What a body has set so far in local memory: under which conditions, by buffer."""

    def __init__(self, local: Sequence[Any]):
        self._local = dict.fromkeys(local)
        self._set: dict[Any, list[Any]] = {}

    def are_set_before(self, statement: Any, holds: list[Any]) -> bool:
        """Whether a statement, under conditions that hold, reads only what is set; it is run."""
        if isinstance(statement, tirx.SeqStmt):
            return all(self.are_set_before(part, holds) for part in statement.seq)
        if isinstance(statement, tirx.AllocBuffer):
            return True
        if isinstance(statement, tirx.IfThenElse):
            condition, otherwise = statement.condition, statement.else_case
            return (
                self._may_be_read(condition, holds)
                and self.are_set_before(statement.then_case, [*holds, condition])
                and (
                    otherwise is None
                    or self.are_set_before(otherwise, [*holds, tirx.Not(condition)])
                )
            )
        if isinstance(statement, tirx.Bind):
            return self._may_be_read(statement.value, holds)
        if not isinstance(statement, tirx.BufferStore):
            mentioned = nodes_in(statement, tvm.ir.Var)
            return not any(var in self._local for var in mentioned)
        if not all(self._may_be_read(e, holds) for e in [statement.value, *statement.indices]):
            return False
        if statement.buffer in self._local:
            self._set.setdefault(statement.buffer, holds)
            return [static(extent) for extent in statement.buffer.shape] == [1]
        return True

    def _may_be_read(self, value: Any, holds: list[Any]) -> bool:
        """Whether an expression reads only what is set where certain conditions hold."""
        pending = [(value, holds)]
        while pending:
            node, conditions = pending.pop()
            if isinstance(node, Load):
                if node.source in self._local and not self._is_set(node.source, conditions):
                    return False
                pending += [(index, conditions) for index in node.indices]
            elif is_conditional(node):
                test, chosen, other = node.args
                pending.append((test, conditions))
                pending.append((chosen, [*conditions, test]))
                pending.append((other, [*conditions, tirx.Not(test)]))
            else:
                try:
                    pending += [(part, conditions) for part in children(node)]
                except UnknownNodeError:
                    return False
        return True

    def _is_set(self, buffer: Any, holds: Sequence[Any]) -> bool:
        needed = self._set.get(buffer)
        return needed is not None and all(
            any(tvm_ffi.structural_equal(condition, each) for each in holds) for condition in needed
        )
