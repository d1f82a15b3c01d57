"""Calls of kernels in a dataflow block, each with the bindings of its results.

What joins calls looks at a block as entries: the call of one kernel with all bindings of its
results, or one binding of anything else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from ...ir.kernel_calls import arguments_of, is_kernel_call, variables_of


@dataclass(frozen=True)
class Call:
    """A kernel call of a block, with the bindings of its results.

    Attributes
    ----------
    kernel : GlobalVar
    arguments : list
    results : list of Var
        One for each result, in order.
    span : Span
    """

    kernel: Any
    arguments: list[Any]
    results: list[Any]
    span: Any


@dataclass(frozen=True)
class Entry:
    """Bindings that stay together.

    Attributes
    ----------
    bindings : list
    call : Call or None
        The call of a kernel that these are.
    reads, makes : frozenset of Var
    """

    bindings: list[Any]
    call: Call | None
    reads: frozenset[Any]
    makes: frozenset[Any]

    @classmethod
    def of(cls, call: Call | None, bindings: list[Any]) -> Entry:
        """The entry of bindings that belong to a call, or of one binding of anything else."""
        makes = frozenset(binding.var for binding in bindings)
        reads = frozenset(v for binding in bindings for v in variables_of(binding.value))
        return cls(bindings, call, reads - makes, makes)


class Readers:
    """How many entries of a block read each variable, while entries are replaced."""

    def __init__(self, entries: Iterable[Entry]):
        self._counts = Counter(var for entry in entries for var in entry.reads)

    def is_read_beside(self, result: Any, reader: Entry) -> bool:
        """Whether anything but an entry reads a result: another entry, or what is outside."""
        others = self._counts[result] - (result in reader.reads)
        return not isinstance(result, relax.DataflowVar) or others > 0

    def replace(self, entries: Iterable[Entry], joint: Entry) -> None:
        """Count one entry in the place of others."""
        for entry in entries:
            self._counts.subtract(entry.reads)
        self._counts.update(joint.reads)


def bindings_of(call: Call, builder: relax.BlockBuilder) -> list[Any]:
    """The bindings of a call that was made of several."""
    types = [result.ty for result in call.results]
    value = relax.call_tir(
        call.kernel, relax.Tuple(call.arguments), types if len(types) > 1 else types[0]
    )
    value = builder.normalize(value)
    if len(types) == 1:
        return [relax.VarBinding(call.results[0], value, call.span)]
    results = relax.DataflowVar("rows", value.ty)
    items = [
        relax.VarBinding(result, relax.TupleGetItem(results, index), call.span)
        for index, result in enumerate(call.results)
    ]
    return [relax.VarBinding(results, value, call.span), *items]


def entries_of(bindings: Sequence[Any]) -> list[Entry]:
    """The bindings of a block as entries; items of tuples go with what makes the tuples."""
    # Items of a tuple move up to the call that makes it.
    items: dict[Any, list[Any]] = {}
    uses: dict[Any, int] = {}
    for binding in bindings:
        for var in variables_of(binding.value):
            uses[var] = uses.get(var, 0) + 1
        value = getattr(binding, "value", None)
        if isinstance(value, relax.TupleGetItem) and isinstance(value.tuple_value, tvm.ir.Var):
            items.setdefault(value.tuple_value, []).append(binding)
    entries = []
    moved: set[Any] = set()
    for binding in bindings:
        if binding.var in moved:
            continue
        call_items = items.get(binding.var, [])
        call = _call(binding, call_items, uses.get(binding.var, 0))
        if call is None or not isinstance(call.kernel, tvm.ir.GlobalVar):
            entries.append(Entry.of(None, [binding]))
            continue
        moved.update(item.var for item in call_items)
        entries.append(Entry.of(call, [binding, *call_items]))
    return entries


def _call(binding: Any, items: Sequence[Any], uses: int) -> Call | None:
    """The kernel call of a binding, with its results; None if it is something else.

    `items` are the bindings that take items of a tuple of results, and `uses` how often the tuple
    is read: a tuple that is read as a whole, or an item that is taken twice, is something else.
    """
    if not isinstance(binding, relax.VarBinding) or not is_kernel_call(binding.value):
        return None
    value = binding.value
    if isinstance(value.ty, relax.TensorType):
        return Call(value.args[0], arguments_of(value), [binding.var], binding.span)
    indices = [int(item.value.index) for item in items]
    if len(items) != uses or len(set(indices)) != len(indices):
        return None
    if not isinstance(binding.var, relax.DataflowVar):
        return None
    bound_results = dict(zip(indices, (item.var for item in items), strict=True))
    results = [
        bound_results[index] if index in bound_results else relax.DataflowVar("unread", ty)
        for index, ty in enumerate(value.ty.fields)
    ]
    return Call(value.args[0], arguments_of(value), results, binding.span)
