"""The decision whether TVM's fusion may run on a module."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from ...ir.passes import Phase, compiler_pass
from ...memory.effect_order import is_fusion_dropping


@compiler_pass(Phase.GRAPH, provides="fuses")
def decide_fusion(mod: tvm.IRModule) -> tuple[tvm.IRModule, bool]:
    """Leave TVM's fusion out of a module on which it aborts, or which it leaves wrong.

    It aborts or goes wrong where a function takes a tuple of tuples, where a dataflow block takes
    a tuple out of a tuple, or holds a cast (there it overlooks that the cast reads its source), and
    where it would drop a call that overwrites.

    Returns
    -------
    tuple of IRModule and bool
        The module, unchanged, and whether fusion may run.
    """
    # Functions inside functions count too: lifted out, they can be looked at one by one.
    lifted = relax.transform.LambdaLift()(mod)
    functions = [f for f in lifted.functions.values() if isinstance(f, relax.Function)]
    fails = any(_takes_nested_tuple(f) or _is_unfit_for_fusion(f) for f in functions)
    return mod, not fails and not is_fusion_dropping(mod)


def _takes_nested_tuple(function: relax.Function) -> bool:
    tuples = [p.ty.fields for p in function.params if isinstance(p.ty, relax.TupleType)]
    return any(isinstance(field, relax.TupleType) for fields in tuples for field in fields)


def _is_unfit_for_fusion(function: relax.Function) -> bool:
    return any(
        isinstance(binding, relax.MatchCast) or _takes_tuple_out(binding)
        for block in function.body.blocks
        if isinstance(block, relax.DataflowBlock)
        for binding in block.bindings
    )


def _takes_tuple_out(binding: Any) -> bool:
    is_item = isinstance(binding.value, relax.TupleGetItem)
    return is_item and isinstance(binding.var.ty, relax.TupleType)
