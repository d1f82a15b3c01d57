"""The plan of memory: which tensors use the same storage, one after the other."""

from __future__ import annotations

import tvm
from tvm import relax

from ..ir.passes import Phase, compiler_pass
from ..ir.rewrite import map_functions
from ..ir.visits import nodes_in
from .budget import FunctionBudget


@compiler_pass(
    Phase.ALLOCATED,
    to=Phase.PLANNED,
    requires={"allocate_escaping": "it would reuse memory that somebody outside still holds"},
)
def plan_memory(
    mod: tvm.IRModule, target: tvm.target.Target, budget: FunctionBudget | None = None
) -> tvm.IRModule:
    """Plan the memory of functions without branches, as ``StaticPlanBlockMemory`` does.

    TVM's plan gives what is allocated in one branch to another, where it does not exist. A function
    that has a budget gets a plan of ours.

    Raises
    ------
    ArgumentError
        As `FunctionBudget.apply`.
    """
    if budget is not None:
        is_host = str(target.kind.name) == "llvm"
        mod = budget.apply(mod, int(target.attrs.get("num-cores", 1)) if is_host else 0)
    planned = relax.transform.StaticPlanBlockMemory()(mod)
    return map_functions(planned, lambda v, func: mod[v] if has_branches(mod[v]) else func)


def has_branches(function: relax.Function) -> bool:
    """Whether which calls a function makes depends on values."""
    return bool(nodes_in(function.body, relax.If))
