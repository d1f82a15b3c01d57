"""The pass that has a library compute contractions, by plans that are made at compile time.

A call of an op becomes a call of the library's function, with the text of the plan, whose second
result is the plan's workspace: memory that the program's own planner gives, and takes back.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from ....ir.passes import Phase, compiler_pass
from ....ir.rewrite import bindings_of, map_functions, rebuilt, replace_body
from ....memory.effect_order import may_write
from ....runtime.cudnn.engine import NAME, register
from ....runtime.cudnn.plans import NO_PLAN, Plan
from ....runtime.cudnn.problem import Problem
from ...graph.permuted_products import drop_unread_permutations, strip_permutations
from ..compiler import arch_of
from .cost import library_pays
from .devices import profile_of
from .offline import is_installed, plan_all
from .problems import View, plain, problem_of, tensors_of

LEAST_WORKSPACE = 1 << 20
"""Bytes of workspace that a call has in any case, for the plan of another device or version."""

SWITCH = "GRAPHGRAD_LIBRARIES"
"""The environment variable that, set to 0, leaves all to kernels of ours."""


def absence(target: tvm.target.Target) -> str | None:
    """Why no library computes anything on a target; None if one does."""
    if str(target.kind.name) != "cuda":
        return "the target is no GPU of NVIDIA"
    if os.environ.get(SWITCH) == "0":
        return f"{SWITCH}=0 is set"
    if profile_of(arch_of(target)) is None:
        return f"nothing is known of GPUs of {arch_of(target)}"
    if not is_installed():
        return "cuDNN is not installed: pip install 'graphgrad[cuda-libs]'"
    return None


@compiler_pass(
    Phase.GRAPH,
    targets=("cuda",),
    before={"decide_fusion": "what a library computes is fused with nothing"},
)
def call_libraries(
    mod: tvm.IRModule, target: tvm.target.Target, tf32: bool = False
) -> tvm.IRModule:
    """Have a library compute the contractions for which that is faster than a kernel of ours."""
    if absence(target) is not None:
        return mod
    sites = sites_of(mod, tf32)
    profile = profile_of(arch_of(target))
    assert profile is not None
    answers = plan_all([site.problem for site in sites.values()], profile)
    failures = [each for each in answers.values() if isinstance(each, str) and NO_PLAN not in each]
    if failures:
        warnings.warn(
            f"cuDNN is installed, but fails to plan {len(failures)} of {len(answers)} "
            f"contractions, which kernels of ours compute instead: {failures[0]}",
            stacklevel=2,
        )
    calls = {
        var: (answer, site.tensors)
        for var, site in sites.items()
        if isinstance(answer := answers[site.problem], Plan) and library_pays(answer)
    }
    if not calls:
        return mod
    register()
    return map_functions(mod, lambda _, func: _with_calls(func, calls))


@dataclass(frozen=True)
class Site:
    """A call that a library may compute, and the tensors in memory that its problem reads."""

    problem: Problem
    tensors: list[Any]


def sites_of(mod: tvm.IRModule, tf32: bool) -> dict[Any, Site]:
    """The calls of a module that a library may compute, by the variables that they are bound to."""
    sites: dict[Any, Site] = {}

    def find(bindings: Iterable[Any], bound: Mapping[Any, Any]) -> None:
        for binding in bindings:
            if not (tensors := tensors_of(binding.value)):
                continue
            stripped = [View(*strip_permutations(x, bound)) for x in tensors]
            for views in (stripped, [plain(x) for x in tensors]):
                problem = problem_of(binding.value, views, tf32)
                if problem is not None:
                    sites[binding.var] = Site(problem, [view.tensor for view in views])
                    break

    for func in mod.functions.values():
        if isinstance(func, relax.Function):
            find(bindings_of(func.body), {})
            if not may_write(func.body):  # what is permuted may change before it is read
                for block in func.body.blocks:  # a variable of another block is not visible
                    find(block.bindings, {each.var: each.value for each in block.bindings})
    return sites


def _with_calls(func: relax.Function, calls: Mapping[Any, Any]) -> relax.Function:
    """A function with calls of the library in place of some, by the variables of these."""

    def changed(binding: Any) -> list[Any]:
        if binding.var not in calls:
            return [binding]
        return _library_call(binding, *calls[binding.var])

    body = rebuilt(func.body, changed)
    blocks = drop_unread_permutations(list(body.blocks), func)
    return relax.BlockBuilder().normalize(
        replace_body(func, relax.SeqExpr(blocks, body.body, body.span))
    )


def _library_call(binding: Any, plan: Plan, tensors: list[Any]) -> list[Any]:
    """A call of the library, and the binding of its first result to the variable of a call."""
    call = binding.value
    workspace = relax.TensorType([max(plan.workspace, LEAST_WORKSPACE)], "uint8")
    value = relax.op.call_dps_packed(
        NAME, [*tensors, tvm.ir.StringImm(plan.to_json())], [call.ty, workspace]
    )
    value = relax.BlockBuilder().normalize(
        relax.Call(value.op, value.args, value.attrs, value.ty_args, call.span)
    )
    kind = relax.DataflowVar if isinstance(binding.var, relax.DataflowVar) else relax.Var
    both = kind(f"{binding.var.name}_and_workspace", value.ty)
    return [
        relax.VarBinding(both, value, call.span),
        relax.VarBinding(binding.var, relax.TupleGetItem(both, 0, call.span), binding.span),
    ]
