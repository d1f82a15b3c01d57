"""Calls that overwrite their arguments keep their place among the other calls.

TVM takes every call in a dataflow block to be free of effects, also one that overwrites arguments,
and its fusion moves reads of the old values behind it. So a block with such a call becomes an
ordinary block here, whose bindings run in order. TVM's fusion also drops such a call where its
result is unused, although the memory that it has overwritten may be read later; whether that would
happen is found out by `is_fusion_dropping`.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from ..ir.calls import overwritten_by
from ..ir.kernel_structure import substitute_values
from ..ir.passes import Phase, compiler_pass
from ..ir.rewrite import bindings_of, map_functions, rebuilt, replace_body
from . import call_effects
from .alias import Module


@compiler_pass(
    Phase.GRAPH,
    after={"resolve_closures": "a call of a closure does not tell what it overwrites"},
    before={
        "replace_tuples": "it drops what nobody reads from dataflow blocks",
        "share_results": "it takes calls in dataflow blocks for free of effects",
        "FuseOps": "it moves reads of old values behind a call that overwrites them",
    },
)
def pin_effects(mod: tvm.IRModule) -> tvm.IRModule:
    """Turn dataflow blocks in which values are overwritten into ordinary blocks."""
    return map_functions(
        mod, lambda _, func: replace_body(func, rebuilt(func.body, block=_make_ordinary))
    )


def may_write(body: relax.SeqExpr) -> bool:
    """Whether anything in a body may write to memory that it has not allocated itself."""
    return any(call_effects.may_write(binding.value) for binding in bindings_of(body))


def is_fusion_dropping(mod: tvm.IRModule) -> bool:
    """Whether fusion would drop calls that overwrite memory, as dead code elimination does."""
    if not any(
        overwritten_by(binding.value)
        for func in mod.functions.values()
        if isinstance(func, relax.Function)
        for binding in bindings_of(func.body)
    ):
        return False
    mod = relax.transform.LambdaLift()(mod)
    writes_left = _writes(relax.transform.DeadCodeElimination()(mod))
    return any(writes_left.get(name, count) != count for name, count in _writes(mod).items())


def _writes(mod: tvm.IRModule) -> dict[str, int]:
    """The number of calls in each function that write to memory."""
    analyzed = Module(mod.functions)
    return {
        name.name_hint: len({use.binding for use in analyzed.function(name).uses if use.writes})
        for name, func in mod.functions.items()
        if isinstance(func, relax.Function)
    }


def _make_ordinary(block: Any) -> list[Any]:
    """A block in which nothing moves; itself where it overwrites nothing."""
    if not isinstance(block, relax.DataflowBlock) or not any(
        overwritten_by(binding.value) for binding in block.bindings
    ):
        return [block]
    # Relax allows dataflow variables in dataflow blocks alone.
    names = {
        binding.var: relax.Var(binding.var.name, binding.var.ty)
        for binding in block.bindings
        if isinstance(binding.var, relax.DataflowVar)
    }
    return [substitute_values(relax.BindingBlock(block.bindings, block.span), names)]
