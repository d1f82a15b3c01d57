"""Calls of closures as calls of functions, where it is known what is called.

TVM forgets the type of what a closure returns, so that no kernel can take it, and takes every
closure to be free of effects. A lifted function that is called with what its closure captured has
neither fault.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from ...ir.passes import Phase, compiler_pass
from ...ir.rewrite import map_functions, rebuilt, replace_body
from ...tvm_fixes.hooks import set_type

_MAKE_CLOSURE = tvm.ir.Op.get("relax.make_closure")
_INVOKE_CLOSURE = [tvm.ir.Op.get(f"relax.invoke_{kind}closure") for kind in ("", "pure_")]


@compiler_pass(
    Phase.GRAPH, requires={"LambdaLift": "it makes the closures, and the functions that they call"}
)
def resolve_closures(mod: tvm.IRModule) -> tvm.IRModule:
    """Call closures directly that are made in the calling function."""
    return map_functions(mod, lambda _, func: _rewrite_closure_calls(func))


def _rewrite_closure_calls(func: relax.Function) -> relax.Function:
    made: dict[Any, Any] = {}

    def binding(old: Any) -> list[Any]:
        value = old.value
        if isinstance(value, tvm.ir.Var) and value in made:
            made[old.var] = made[value]
        if not isinstance(value, tvm.ir.Call):
            return [old]
        if value.op == _MAKE_CLOSURE:
            made[old.var] = value
        if value.op not in _INVOKE_CLOSURE or value.args[0] not in made:
            return [old]
        lifted, captured = made[value.args[0]].args
        call = relax.Call(lifted, [*value.args[1].fields, *captured.fields], span=value.span)
        set_type(call, value.ty)
        return [relax.VarBinding(old.var, call, old.span)]

    return replace_body(func, rebuilt(func.body, binding))
