"""Calls of closures become calls of functions, where the closure is made in the same function.

TVM forgets the type of what a closure returns, so that no kernel can take it, and assumes that
every closure is free of effects. A direct call of the lifted function, with what its closure
captured as further arguments, has neither fault.
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
    """Call the functions of closures that are made in the calling function directly."""
    return map_functions(mod, lambda _, func: _rewrite_closure_calls(func))


def _rewrite_closure_calls(func: relax.Function) -> relax.Function:
    """A function in which calls of closures that it makes are direct calls."""
    closures: dict[Any, Any] = {}

    def binding(old: Any) -> list[Any]:
        value = old.value
        if isinstance(value, tvm.ir.Var) and value in closures:
            closures[old.var] = closures[value]  # a second name of the closure
        if not isinstance(value, tvm.ir.Call):
            return [old]
        if value.op == _MAKE_CLOSURE:
            closures[old.var] = value
        if value.op not in _INVOKE_CLOSURE or value.args[0] not in closures:
            return [old]
        # The lifted function has the captured values as its last parameters.
        lifted, captured = closures[value.args[0]].args
        call = relax.Call(lifted, [*value.args[1].fields, *captured.fields], span=value.span)
        set_type(call, value.ty)
        return [relax.VarBinding(old.var, call, old.span)]

    return replace_body(func, rebuilt(func.body, binding))
