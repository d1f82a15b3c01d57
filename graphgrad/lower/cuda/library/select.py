"""The pass that has a library compute contractions, by plans that are made at compile time.

A call of an op becomes a call of the library's function, with the text of the plan, whose second
result is the plan's workspace: memory that the program's own planner gives, and takes back.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import tvm
from tvm import relax

from ....ir.kernel_calls import variables_of
from ....ir.passes import Phase, compiler_pass
from ....ir.rewrite import bindings_of, map_functions, rebuilt, replace_body
from ....memory.effect_order import may_write
from ....runtime.cudnn.engine import NAME, register
from ....runtime.cudnn.plans import NO_PLAN, Plan
from ....runtime.cudnn.problem import Problem
from ...graph.permuted_products import PERMUTATION, drop_unread
from ..compiler import arch_of
from .cost import epilogue_pays, library_pays
from .devices import profile_of
from .epilogues import Block, fused
from .offline import is_installed, plan_all
from .pointwise import STEPS
from .problems import problem_of, tensors_of
from .views import RESHAPES, memory_of, plain, view_of

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
    profile = profile_of(arch_of(target))
    assert profile is not None
    alone = _planned(sites_of(mod, tf32), profile)
    if not alone:
        return mod
    calls = alone | _with_epilogues(mod, alone, profile)
    register()
    return map_functions(mod, lambda _, func: _with_calls(func, calls))


@dataclass(frozen=True)
class Site:
    """A call that a library may compute.

    Attributes
    ----------
    problem : Problem
    tensors : list of relax expression
        Those in memory that it reads.
    outputs : list of variable
        Those that its results are the values of.
    members : list of binding
        What its epilogue computes; it stands where the last of these is.
    plan : Plan, optional
    """

    problem: Problem
    tensors: list[Any]
    outputs: list[Any]
    members: list[Any] = field(default_factory=list)
    plan: Plan | None = None

    @property
    def place(self) -> Any:
        """The variable of the binding in whose place the library is called."""
        return self.members[-1].var if self.members else self.outputs[0]


Sites: TypeAlias = dict[Any, Site]
"""Contractions, by the variables that they are bound to."""


def sites_of(mod: tvm.IRModule, tf32: bool) -> Sites:
    """The calls of a module that a library may compute."""
    sites: Sites = {}

    def find(bindings: Iterable[Any], bound: Mapping[Any, Any]) -> None:
        for binding in bindings:
            if not (tensors := tensors_of(binding.value)):
                continue
            stripped = [view_of(x, bound, (PERMUTATION,)) for x in tensors]
            for views in (stripped, [plain(x) for x in tensors]):
                problem = problem_of(binding.value, views, tf32)
                if problem is not None:
                    operands = [memory_of(view.tensor, bound) for view in views]
                    sites[binding.var] = Site(problem, operands, [binding.var])
                    break

    for func in mod.functions.values():
        if isinstance(func, relax.Function):
            find(bindings_of(func.body), {})
            if not may_write(func.body):  # what is permuted may change before it is read
                for block in func.body.blocks:  # a variable of another block is not visible
                    find(block.bindings, {each.var: each.value for each in block.bindings})
    return sites


def _planned(sites: Sites, profile: Mapping[str, Any]) -> Sites:
    """The sites that have a plan that pays."""
    answers = plan_all([site.problem for site in sites.values()], profile)
    failures = [each for each in answers.values() if isinstance(each, str) and NO_PLAN not in each]
    if failures:
        warnings.warn(
            f"cuDNN is installed, but fails to plan {len(failures)} of {len(answers)} "
            f"contractions, which kernels of ours compute instead: {failures[0]}",
            stacklevel=4,
        )
    return {
        var: replace(site, plan=answer)
        for var, site in sites.items()
        if isinstance(answer := answers[site.problem], Plan) and library_pays(answer)
    }


def _with_epilogues(mod: tvm.IRModule, alone: Sites, profile: Mapping[str, Any]) -> Sites:
    """Those sites that are to be computed with an epilogue, with it."""
    sites: Sites = {}
    for func in mod.functions.values():
        if not isinstance(func, relax.Function) or may_write(func.body):
            continue
        for block in func.body.blocks:
            if isinstance(block, relax.DataflowBlock):
                maps = Block(block.bindings, read_outside(func, block))
                for binding in block.bindings:
                    if binding.var in alone:
                        _add_epilogue(sites, maps, binding, alone[binding.var])
    answers = plan_all([site.problem for site in sites.values()], profile)
    return {
        var: replace(site, plan=answer)
        for var, site in sites.items()
        if isinstance(answer := answers[site.problem], Plan)
        and (plan := alone[var].plan) is not None
        and epilogue_pays(answer, plan)
    }


def read_outside(func: relax.Function, block: Any) -> set[Any]:
    """What the other blocks of a function, and its result, read."""
    others = [each for each in func.body.blocks if not each.same_as(block)]
    values = [binding.value for each in others for binding in each.bindings]
    return {var for value in (*values, func.body.body) for var in variables_of(value)}


def _add_epilogue(sites: Sites, maps: Block, binding: Any, alone: Site) -> None:
    found = fused(maps, binding, alone.problem)
    if found is not None:
        bound = {each.var: each.value for each in maps.bindings}
        tensors = [*alone.tensors, *(memory_of(each, bound) for each in found.others)]
        sites[binding.var] = Site(found.problem, tensors, found.outputs, found.members)


def _with_calls(func: relax.Function, calls: Sites) -> relax.Function:
    """A function with calls of the library in place of some, by the variables of these."""
    at = {site.place: site for site in calls.values()}
    gone = {each.var for site in calls.values() for each in site.members} | set(calls)
    contractions: dict[Any, Any] = {}

    def changed(binding: Any) -> list[Any]:
        if binding.var in calls:
            contractions[calls[binding.var].place] = binding
        if binding.var in at:
            site = at[binding.var]
            # What else reads values on the way computes them again.
            again = [each for each in site.members if each.var not in site.outputs]
            assert site.plan is not None
            origin = contractions[binding.var]  # that of its epilogue says less
            return [*library_call(site.plan, site.tensors, site.outputs, origin), *again]
        return [] if binding.var in gone else [binding]

    body = rebuilt(func.body, changed)
    blocks = drop_unread(list(body.blocks), func, {PERMUTATION, *RESHAPES, *STEPS})
    return relax.BlockBuilder().normalize(
        replace_body(func, relax.SeqExpr(blocks, body.body, body.span))
    )


def library_call(plan: Plan, tensors: list[Any], outputs: list[Any], at: Any) -> list[Any]:
    """A call of the library that has the origin of a binding, and its results, as variables."""
    workspace = relax.TensorType([max(plan.workspace, LEAST_WORKSPACE)], "uint8")
    text = tvm.ir.StringImm(plan.to_json())
    types = [*(output.ty for output in outputs), workspace]
    value = relax.op.call_dps_packed(NAME, [*tensors, text], types)
    span = at.value.span
    value = relax.BlockBuilder().normalize(
        relax.Call(value.op, value.args, value.attrs, value.ty_args, span)
    )
    is_inner = all(isinstance(each, relax.DataflowVar) for each in outputs)
    kind = relax.DataflowVar if is_inner else relax.Var
    every = kind(f"{outputs[-1].name}_and_workspace", value.ty)
    return [
        relax.VarBinding(every, value, span),
        *(
            relax.VarBinding(output, relax.TupleGetItem(every, place, span), at.span)
            for place, output in enumerate(outputs)
        ),
    ]
