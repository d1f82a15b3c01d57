"""Tensors that outlive what the memory planner knows of them.

TVM's plan takes every packed function to keep none of its arguments and to return memory of its
own, and loses sight of a tensor behind a cast. What may be kept, returned or cast is allocated
here, outside the plan, so that it is never reused under the feet of who holds it.
"""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import relax, tirx

from ..ir.calls import calls_op
from ..ir.passes import Phase, compiler_pass
from ..ir.rewrite import bindings_of, map_functions, rebuilt, replace_body
from .alias import Aliases, Module
from .regions import OUTSIDE, leaves

_PACKED = ("relax.call_pure_packed", "relax.call_inplace_packed")


@compiler_pass(
    Phase.ALLOCATED,
    before={"RemovePurityChecking": "it looks for pure calls of packed functions by their op"},
    because="what is allocated here takes no part in the plan of memory",
)
def allocate_escaping(mod: tvm.IRModule) -> tvm.IRModule:
    """Allocate tensors that outlive what the plan of memory knows of them."""
    analyzed = Module(mod.functions, views=True)
    return map_functions(
        mod, lambda variable, func: _allocate_outside_plan(func, analyzed.function(variable))
    )


def _allocate_outside_plan(func: relax.Function, aliases: Aliases) -> relax.Function:
    retained = _escaping(func, aliases)

    def allocated(binding: Any) -> list[Any]:
        return _split_allocation(binding) if binding.var in retained else [binding]

    return replace_body(func, rebuilt(func.body, allocated)) if retained else func


def _escaping(func: relax.Function, aliases: Aliases) -> set[Any]:
    """The variables of the allocations that may be held from where no plan sees it."""
    bindings = bindings_of(func.body)
    allocations = [b.var for b in bindings if calls_op(b.value, "relax.builtin.alloc_tensor")]
    unseen = [b.var for b in bindings if isinstance(b, relax.MatchCast) or _is_packed(b.value)]
    held = leaves([aliases.values[var] for var in unseen])
    regions = {OUTSIDE, *(aliases.region(leaf) for leaf in held)}
    return {var for var in allocations if aliases.region(aliases.values[var]) in regions}


def _is_packed(value: Any) -> bool:
    return isinstance(value, tvm.ir.Call) and (
        isinstance(value.op, relax.ExternFunc) or any(calls_op(value, op) for op in _PACKED)
    )


def _split_allocation(binding: Any) -> list[Any]:
    """An allocation as storage, and the tensor in it."""
    shape, dtype, device, scope = binding.value.args
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
