"""Bindings that TVM's simplifier does not see, because it fails on some.

It remembers what it learns of a variable under a condition, and aborts when a later round finds the
variable bound to something simpler: "Trying to update var with a different const bound". So what
variables of integers are bound to is an unknown function's result while a function is made.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import te, tirx
from tvm.ir import prim

from ..backprop import is_float
from ..graph import Operation, map_expressions, outputs_of
from ..walk import Expr

_HIDDEN = "graphgrad.hidden"


def reveal_bindings(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """A function that was made of stages of `hide_bindings`, with what they bind."""
    return func.with_body(tvm_ffi.structural_map(func.body, (prim.Let, _reveal)))


def hide_bindings(op: Operation) -> list[te.Tensor] | None:
    """The outputs of a stage with what it binds hidden; None if it binds no integers.

    Parameters
    ----------
    op : Operation
        Made for `graph.rewritten`.
    """
    changed = False

    def hide(let: Expr) -> Expr:
        nonlocal changed
        if is_float(let.value.ty):
            return let
        changed = True
        value = tirx.call_pure_extern(str(let.value.ty), _HIDDEN, let.value)
        return prim.Let(let.var, value, let.body)

    if not isinstance(op, te.ComputeOp):
        return None
    result = map_expressions(op, lambda node: tvm_ffi.structural_map(node, (prim.Let, hide)))
    return outputs_of(result) if changed else None


def _reveal(let: Expr) -> Expr:
    """A binding of what was hidden, in the dtype that its variable may have got."""
    value: Any = let.value.value if isinstance(let.value, prim.Cast) else let.value
    if not isinstance(value, tvm.ir.Call) or not isinstance(value.args[0], tvm.ir.StringImm):
        return let
    if str(value.args[0].value) != _HIDDEN:
        return let
    (_, shown) = value.args
    dtype = str(let.var.ty)
    return prim.Let(let.var, shown if str(shown.ty) == dtype else shown.astype(dtype), let.body)
