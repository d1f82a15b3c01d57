"""Items of tuples that are written out, in the place of the tuples; and nothing that nobody reads.

A lowering of several results leaves a tuple of them, and its readers take items. Stock fusion takes
the tuple for a reader, and so leaves what is in it in memory. A result that has no reader, such as
running statistics in a gradient, would be computed all the same.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from ...ir.kernel_calls import map_dataflow_blocks, variables_of
from ...ir.passes import Phase, compiler_pass
from ...ir.rewrite import renamed


@compiler_pass(
    Phase.GRAPH, before={"decide_fusion": "fusion aborts on a tuple that is taken out of a tuple"}
)
def name_inner_tuples(mod: tvm.IRModule) -> tvm.IRModule:
    """Name tuples that dataflow blocks take out of tuples which they write out.

    Stock fusion aborts on such an item, of which another item is taken.
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
    tuples: dict[Any, Any] = {}
    changed = []
    for binding in bindings:
        new, value = binding, binding.value
        if isinstance(value, relax.TupleGetItem) and value.tuple_value in tuples:
            item = tuples[value.tuple_value].fields[int(value.index)]
            value = tuples.get(item, item)
            if isinstance(value, relax.Tuple):
                new = relax.VarBinding(binding.var, value, binding.span)
        if isinstance(value, relax.Tuple):
            tuples[new.var] = value
        changed.append(new)
    return changed


def _drop_items(bindings: list[Any]) -> list[Any]:
    tuples: dict[Any, list[Any]] = {}
    names: dict[Any, Any] = {}
    kept = []
    for binding in bindings:
        new = renamed(binding, names) if names else binding
        kept.append(new)
        if not isinstance(new, relax.VarBinding):
            continue
        if isinstance(new.value, relax.Tuple):
            tuples[new.var] = list(new.value.fields)
        elif isinstance(new.value, relax.TupleGetItem) and new.value.tuple_value in tuples:
            item = tuples[new.value.tuple_value][int(new.value.index)]
            if isinstance(item, tvm.ir.Var) and isinstance(binding.var, relax.DataflowVar):
                names[binding.var] = item
                kept.pop()
    return _drop_dead(kept)


def _drop_dead(bindings: list[Any]) -> list[Any]:
    used: set[Any] = set()
    alive = []
    for binding in reversed(bindings):
        is_result = not isinstance(binding.var, relax.DataflowVar)
        if is_result or binding.var in used or not isinstance(binding, relax.VarBinding):
            used.update(variables_of(binding.value))
            alive.append(binding)
    return alive[::-1]
