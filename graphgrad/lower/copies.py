"""Copies stay copies.

TVM makes a view of what a kernel computes that moves no element, unless it leaves its dataflow
block. For a reshape that is wanted; a copy is asked for because it shares no memory.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from ..ops.copy import KERNEL_OF_COPY


def keep_copies(mod: tvm.IRModule) -> tvm.IRModule:
    """Return a module whose copies leave their dataflow blocks.

    Runs before ``RewriteDataflowReshape``.
    """
    changed = mod.clone()
    for name, function in mod.functions.items():
        if isinstance(function, relax.Function):
            changed.update_func(name, _kept(mod, function))
    return changed


def _kept(mod: tvm.IRModule, function: relax.Function) -> relax.Function:
    copies: dict[Any, Any] = {}

    def visit(binding: relax.VarBinding) -> None:
        if isinstance(binding.var, relax.DataflowVar) and _is_copy(mod, binding.value):
            copies[binding.var] = relax.Var(binding.var.name, binding.var.ty, binding.var.span)

    tvm_ffi.structural_walk(function.body, (relax.VarBinding, visit))
    if not copies:
        return function
    return tvm_ffi.structural_map(function, (relax.DataflowVar, lambda var: copies.get(var, var)))


def _is_copy(mod: tvm.IRModule, value: Any) -> bool:
    if not isinstance(value, tvm.ir.Call) or value.op != tvm.ir.Op.get("relax.call_tir"):
        return False
    return KERNEL_OF_COPY in (mod[value.args[0]].attrs or {})
