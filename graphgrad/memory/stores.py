"""Which of its parameters a kernel stores to: by name, or through a table of their addresses."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import tvm
from tvm import tirx

from ..ir.calls import calls_op
from ..ir.kernel_structure import linear_coefficient, static, substitute_values
from ..ir.loops import index
from ..ir.visits import nodes_in

_ADDRESS = "tirx.buffer_data"
_REINTERPRET = "tirx.reinterpret"
_PUT = "tirx.tvm_struct_set"
_GET = "tirx.tvm_struct_get"


# One analysis after the other asks for those of each kernel that a function calls.
@lru_cache(maxsize=512)
def stored_parameters(kernel: tirx.PrimFunc) -> frozenset[int]:
    """The positions of the parameters that a kernel stores to.

    What is stored through an address goes to the parameters that have it: to those of a column, if
    it is taken from a table of addresses (`ops/tensor_table.py`) at a multiple of the row. Where
    that cannot be seen, a kernel may store to each parameter whose address it takes.
    """
    stored = {store.buffer for store in nodes_in(kernel.body, tirx.BufferStore)}
    views = [view for view in nodes_in(kernel.body, tirx.DeclBuffer) if view.buffer in stored]
    if views:
        stored |= _behind(views, list(nodes_in(kernel.body, tvm.ir.Call)))
    return frozenset(index for index, param in enumerate(kernel.params) if param in stored)


def _behind(views: Iterable[Any], calls: list[Any]) -> set[Any]:
    """The buffers that some views may lie in, given all calls of their kernel."""
    tables: dict[Any, dict[int | None, Any]] = {}
    for call in calls:
        if calls_op(call, _PUT):
            table, entry, _, value = call.args
            tables.setdefault(table, {})[static(entry)] = value
    found: set[Any] = set()
    for view in views:
        addresses = _addresses(view.data, tables)
        if addresses is None:
            return {call.args[0] for call in calls if calls_op(call, _ADDRESS)}
        found.update(addresses)
    return found


def _addresses(pointer: Any, tables: dict[Any, dict[int | None, Any]]) -> list[Any] | None:
    """The buffers whose addresses a pointer may be; None if that cannot be seen."""
    while calls_op(pointer, _REINTERPRET):
        (pointer,) = pointer.args
    if calls_op(pointer, _ADDRESS):
        return [pointer.args[0]]
    if not calls_op(pointer, _GET):
        return None
    entries, column = tables.get(pointer.args[0], {}), _column(pointer.args[1])
    # A value may also have been put at a place that is not known.
    if column is None or None in entries:
        return None
    first, step = column
    values = [value for place, value in entries.items() if _is_in(place or 0, first, step)]
    # Behind the last row there are numbers.
    values = [value for value in values if not isinstance(value, tirx.IntImm)]
    if not all(calls_op(value, _ADDRESS) for value in values):
        return None
    return [value.args[0] for value in values]


def _column(entry: Any) -> tuple[int, int] | None:
    """The least entry and the step of those that an index counts, 0 of one; None if it does not."""
    while isinstance(entry, tirx.Cast):
        entry = entry.value
    rows = set(nodes_in(entry, tvm.ir.Var))
    if len(rows) > 1:
        return None
    step = 0
    for row in rows:
        coefficient = linear_coefficient(entry, row)
        if coefficient is None:
            return None
        step, entry = abs(coefficient), substitute_values(entry, {row: index(0, str(row.ty))})
    first = static(tvm.sym.Analyzer().simplify(entry))
    return None if first is None else (first, step)


def _is_in(place: int, first: int, step: int) -> bool:
    return (place - first) % step == 0 if step else place == first
