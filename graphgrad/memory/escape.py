"""Tensors that are used longer than TVM's memory planner can see.

The planner assumes that packed functions keep none of their arguments and return memory of their
own, and it loses track of a tensor behind a `match_cast`. Tensors that may be kept, returned or
cast are allocated here, outside of the plan, so that their memory is not reused while they live.
"""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import relax, tirx

from ..ir.calls import calls_op
from ..ir.kernel_calls import ALLOCATION
from ..ir.passes import Phase, compiler_pass
from ..ir.rewrite import bindings_of, map_functions, rebuilt, replace_body
from .alias import Aliases, Module
from .regions import OUTSIDE

_PACKED = ("relax.call_pure_packed", "relax.call_inplace_packed")


@compiler_pass(
    Phase.ALLOCATED,
    before={"RemovePurityChecking": "it looks for pure calls of packed functions by their op"},
    because="what is allocated here takes no part in the plan of memory",
)
def allocate_escaping(mod: tvm.IRModule) -> tvm.IRModule:
    """Allocate outside of the memory plan what is used longer than the planner can see."""
    analyzed = Module(mod.functions, views=True)
    return map_functions(
        mod, lambda variable, func: _allocate_outside_plan(func, analyzed.function(variable))
    )


def _allocate_outside_plan(func: relax.Function, aliases: Aliases) -> relax.Function:
    escaping = _escaping(func, aliases)

    def allocated(binding: Any) -> list[Any]:
        return _split_allocation(binding) if binding.var in escaping else [binding]

    return replace_body(func, rebuilt(func.body, allocated)) if escaping else func


def _escaping(func: relax.Function, aliases: Aliases) -> set[Any]:
    """The variables of allocations whose memory may be used where the planner does not see it."""
    bindings = bindings_of(func.body)
    allocations = [b.var for b in bindings if calls_op(b.value, ALLOCATION)]
    untracked = [b.var for b in bindings if isinstance(b, relax.MatchCast) or _is_packed(b.value)]
    regions = {OUTSIDE, *aliases.regions_of([aliases.values[var] for var in untracked])}
    return {var for var in allocations if aliases.region(aliases.values[var]) in regions}


def _is_packed(value: Any) -> bool:
    return isinstance(value, tvm.ir.Call) and (
        isinstance(value.op, relax.ExternFunc) or any(calls_op(value, op) for op in _PACKED)
    )


def _split_allocation(binding: Any) -> list[Any]:
    """An allocation as two bindings: the storage, and the tensor in it.

    It is the form that the planner itself produces, which it leaves alone.
    """
    shape, dtype, device, scope = binding.value.args
    # An element of less than a byte takes a whole one here: an upper bound, never too little.
    size = tirx.const(-(-tvm.DataType(str(binding.var.ty.dtype)).bits // 8), "int64")
    extents = list(binding.var.ty.shape.values)
    storage = _normalize(
        relax.op.memory.alloc_storage(
            relax.ShapeExpr([math.prod(extents, start=size)]), device, scope, "uint8"
        )
    )
    var = relax.Var("storage", storage.ty)
    tensor = _normalize(relax.op.memory.alloc_tensor(var, 0, shape, dtype, device))
    return [relax.VarBinding(var, storage), relax.VarBinding(binding.var, tensor, binding.span)]


def _normalize(expr: Any) -> Any:
    return relax.BlockBuilder().normalize(expr)
