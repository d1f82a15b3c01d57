"""The plan of memory: which tensors use the same storage, one after the other."""

from __future__ import annotations

import tvm
from tvm import relax

from ..ir.passes import Phase, compiler_pass
from ..ir.rewrite import map_functions
from ..ir.visits import nodes_in


@compiler_pass(
    Phase.ALLOCATED,
    to=Phase.PLANNED,
    requires={"allocate_escaping": "it would reuse memory that somebody outside still holds"},
)
def plan_memory(mod: tvm.IRModule) -> tvm.IRModule:
    """Plan the memory of functions without branches, as ``StaticPlanBlockMemory`` does.

    TVM's plan gives what is allocated in one branch to another, where it does not exist.
    """
    planned = relax.transform.StaticPlanBlockMemory()(mod)
    return map_functions(planned, lambda v, func: mod[v] if _has_branches(mod[v]) else func)


def _has_branches(function: relax.Function) -> bool:
    return bool(nodes_in(function.body, relax.If))
