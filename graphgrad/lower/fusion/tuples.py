"""Reads of a tuple's items become reads of the items themselves, and dead results are dropped.

A lowering of several results leaves a tuple of them, and its readers take items. Stock fusion takes
the tuple for a reader, and so leaves what is in it in memory. A result that has no reader, such as
running statistics in a gradient, would be computed all the same.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from ...ir.kernel_calls import map_dataflow_blocks, variables_of
from ...ir.kernel_structure import substitute_values
from ...ir.passes import Phase, compiler_pass


@compiler_pass(
    Phase.GRAPH, before={"decide_fusion": "fusion aborts on a tuple that is taken out of a tuple"}
)
def name_inner_tuples(mod: tvm.IRModule) -> tvm.IRModule:
    """Bind inner tuples as tuples, not as items of tuples, where a dataflow block builds both.

    Stock fusion aborts on an item that is a tuple of which an item is taken.
    """
    return map_dataflow_blocks(mod, _name_tuples)


@compiler_pass(
    Phase.KERNELS,
    before={"FuseOps": "it takes a tuple for a reader, and leaves what is in it in memory"},
)
def replace_tuples(mod: tvm.IRModule) -> tvm.IRModule:
    """Read values, not items of tuples, in dataflow blocks, and compute no dead ones there.

    Nothing in a dataflow block has an effect but its value.
    """
    return map_dataflow_blocks(mod, _drop_items)


def _name_tuples(bindings: list[Any]) -> list[Any]:
    """The bindings of a block with each item that is a tuple replaced by that tuple."""
    tuples: dict[Any, Any] = {}
    changed = []
    for binding in bindings:
        new_binding, new_value = binding, binding.value
        if isinstance(new_value, relax.TupleGetItem) and new_value.tuple_value in tuples:
            item = tuples[new_value.tuple_value].fields[int(new_value.index)]
            new_value = tuples.get(item, item)
            if isinstance(new_value, relax.Tuple):
                new_binding = relax.VarBinding(binding.var, new_value, binding.span)
        # An inner tuple that was named just now may be taken apart further.
        if isinstance(new_value, relax.Tuple):
            tuples[new_binding.var] = new_value
        changed.append(new_binding)
    return changed


def _drop_items(bindings: list[Any]) -> list[Any]:
    """The bindings of a block without items of its tuples, and without dead ones."""
    tuples: dict[Any, list[Any]] = {}
    replacements: dict[Any, Any] = {}
    remaining = []
    for binding in bindings:
        new_binding = substitute_values(binding, replacements) if replacements else binding
        remaining.append(new_binding)
        if not isinstance(new_binding, relax.VarBinding):
            continue
        if isinstance(new_binding.value, relax.Tuple):
            tuples[new_binding.var] = list(new_binding.value.fields)
        elif (
            isinstance(new_binding.value, relax.TupleGetItem)
            and new_binding.value.tuple_value in tuples
        ):
            item = tuples[new_binding.value.tuple_value][int(new_binding.value.index)]
            # Only a variable can take another's place; and a result of the block stays bound.
            if isinstance(item, tvm.ir.Var) and isinstance(binding.var, relax.DataflowVar):
                replacements[binding.var] = item
                remaining.pop()
    return _drop_dead(remaining)


def _drop_dead(bindings: list[Any]) -> list[Any]:
    """The bindings that something reads; casts remain, because they check."""
    used: set[Any] = set()
    alive = []
    for binding in reversed(bindings):
        is_result = not isinstance(binding.var, relax.DataflowVar)
        if is_result or binding.var in used or not isinstance(binding, relax.VarBinding):
            used.update(variables_of(binding.value))
            alive.append(binding)
    return alive[::-1]
