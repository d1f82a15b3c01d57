"""Additions at places that tensors tell, to several rows at a time.

    for row:                                  for rows of 8:
      for t:                                    for t:
        if place[t] >= 0:                         if place[t] >= 0:
          total[row, place[t]] += ...               for row of the 8:
                                                      total[row, place[t]] += ...

Places, conditions and weights are computed once for all of them, and additions to one element, each
of which waits for the last, take turns with those of other rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from ...ir.kernel_structure import Load, is_among, substitute_values, uses
from ...ir.loops import ForKind, loop, variable
from ...ir.visits import nodes_in
from ..kernels.blocked_sums import added_term
from .vector_values import under

_WIDTHS = (8, 7, 6, 5, 4)
"""Rows that are taken at a time: the first of these that divides their number."""


@dataclass(frozen=True)
class RowsAtATime:
    """A loop over rows, split.

    Attributes
    ----------
    rows : For
        As it was.
    outer : For
        In its place.
    inner : Stmt
        What is done in all loops, with the rows of a trip innermost.
    """

    rows: Any
    outer: Any
    inner: Any


def rows_at_a_time(loops: Sequence[Any], inner: Any) -> RowsAtATime | None:
    """The innermost loop over rows of which several may be taken at a time; None if none may.

    Parameters
    ----------
    loops : sequence of For
        Plain ones around additions.
    inner : Stmt
        What is done in them.
    """
    conditions = []
    store = inner
    while isinstance(store, tirx.IfThenElse) and store.else_case is None:
        conditions.append(store.condition)
        store = store.then_case
    if not isinstance(store, tirx.BufferStore) or added_term(store) is None:
        return None
    # Where it adds must be told by other tensors, not by what it has added.
    tables = [load.source for e in [*conditions, *store.indices] for load in nodes_in(e, Load)]
    if not tables or is_among(store.buffer, tables):
        return None
    for rows in reversed(loops[:-1]):
        width = next((w for w in _WIDTHS if int(rows.extent) % w == 0), None)
        if width is not None and _is_index_alone(rows.loop_var, store, conditions):
            dtype = str(rows.loop_var.ty)
            number, row = variable("rows", dtype), variable("row", dtype)
            values = {rows.loop_var: number * tirx.const(width, dtype) + row}
            additions = loop(row, width, substitute_values(store, values), ForKind.UNROLLED)
            inner = under(conditions, additions)
            return RowsAtATime(rows, loop(number, int(rows.extent) // width, inner), inner)
    return None


def _is_index_alone(var: Any, store: Any, conditions: Sequence[Any]) -> bool:
    """Whether a variable is one index of an element that is added to, and chooses nothing else."""
    others = [index for index in store.indices if not index.same_as(var)]
    return len(others) == len(store.indices) - 1 and not any(
        uses(expr, var) for expr in [*others, *conditions]
    )
