"""What every step of a loop would compute alike, computed once in front of the loop.

A contraction copies a factor into panels, in the order in which it reads them. Where the factor is
a weight, the panels are the same in each step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize

from ...ir.kernel_rewrite import replace_realized
from ...ir.kernel_structure import Load, is_among, statements_of, static
from ...ir.loops import sequence
from ...ir.visits import nodes_in


@dataclass
class Hoisted:
    """What was taken out of a loop: statements in order, and the buffers that they fill."""

    statements: list[Any] = field(default_factory=list)
    buffers: list[Any] = field(default_factory=list)


def hoist_invariants(statements: Sequence[Any], time: Any) -> tuple[list[Any], Hoisted]:
    """The statements of a loop's body without those that compute the same in each step.

    Parameters
    ----------
    statements : sequence of Stmt
        They mention the time by its variable. Different buffers do not overlap.
    time : Var

    Returns
    -------
    (list of Stmt, Hoisted)
    """
    stores = [s.buffer for body in statements for s in nodes_in(body, tirx.BufferStore)]
    bound = [b.var for body in statements for b in nodes_in(body, tirx.Bind)]
    hoisting = _Hoisting(Counter(stores), [time, *bound])
    return [hoisting.rest(statement) for statement in statements], hoisting.hoisted


class _Hoisting:
    """The search through a loop's body.

    Parameters
    ----------
    stores : Counter of Buffer
        How many statements of the loop store to each buffer.
    variables : list of Var
        The variables that have another value in each step.
    """

    def __init__(self, stores: Counter[Any], variables: list[Any]):
        self._stores = stores
        self._variables = variables
        self.hoisted = Hoisted()

    def rest(self, statement: Any) -> Any:
        """A statement without what is taken out of it."""
        if not _is_sequence(statement):
            return statement
        outer = statement.block
        left, body = list(outer.alloc_buffers), []
        for inner in statements_of(outer.body):
            filled = self._filled(inner, left)
            if filled is None:
                body.append(self.rest(inner))
                continue
            left = [buffer for buffer in left if not buffer.same_as(filled)]
            self.hoisted.buffers.append(filled)
            self.hoisted.statements.append(inner)
            del self._stores[filled]
        return replace_realized(statement, body=sequence(*body), alloc_buffers=left)

    def _filled(self, statement: Any, buffers: Sequence[Any]) -> Any | None:
        """The one of some buffers that a statement fills, with the same in each step; or None."""
        scratch = _scratch(statement)
        stores = [store.buffer for store in nodes_in(statement, tirx.BufferStore)]
        own = Counter(buffer for buffer in stores if not is_among(buffer, scratch))
        if len(own) != 1 or nodes_in(statement, tirx.Evaluate):
            return None
        ((filled, count),) = own.items()
        if not is_among(filled, buffers) or self._stores[filled] != count:
            return None
        loaded = [load.source for load in nodes_in(statement, Load)]
        if any(self._stores[b] for b in loaded if not is_among(b, scratch)):
            return None
        bound = [binding.var for binding in nodes_in(statement, tirx.Bind)]
        varying = [var for var in self._variables if not is_among(var, bound)]
        mentioned = nodes_in(statement, tvm.ir.Var)
        return None if any(is_among(var, mentioned) for var in varying) else filled


def _scratch(statement: Any) -> list[Any]:
    """The buffers that exist inside of a statement alone."""
    buffers: list[Any] = []
    for node in nodes_in(statement, (SBlock, tirx.AllocBuffer, tirx.DeclBuffer)):
        buffers += node.alloc_buffers if isinstance(node, SBlock) else [node.buffer]
    return buffers


def _is_sequence(statement: Any) -> bool:
    """Whether a statement is a block that does nothing but to hold others."""
    if not isinstance(statement, SBlockRealize) or static(statement.predicate) != 1:
        return False
    outer: SBlock = statement.block
    return not outer.iter_vars and not outer.match_buffers and outer.init is None
