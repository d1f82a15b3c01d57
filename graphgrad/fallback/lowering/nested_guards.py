"""Conditions that protect other conditions, kept so through TVM's simplifier.

TVM turns `a ? (b ? value : 0) : 0` into `(a and b) ? value : 0`, and evaluates both sides of an
`and`. If b loads what only a allows to load, that reads outside a tensor. Written as
`(a ? b : false) ? value : 0` it is left as it is.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import te, tirx
from tvm.ir import prim

from ...ir.visits import nodes_in
from ...tvm_fixes.hooks import extern_stage
from ..graph import Operation, map_expressions, outputs_of
from ..walk import Expr, called, is_load

_CHOICE = "prim.if_then_else"


def protect_guards(op: Operation) -> list[te.Tensor] | None:
    """The outputs of a stage with its conditions protected; None if all of them are.

    Parameters
    ----------
    op : Operation
        Made for `graph.rewritten`.
    """
    changed = False

    def change(node: Any) -> Any:
        nonlocal changed
        result = tvm_ffi.structural_map(node, (tvm.ir.Call, _protect))
        changed = changed or not result.same_as(node)
        return result

    if isinstance(op, te.ComputeOp):
        protected = map_expressions(op, change)
    elif isinstance(op, te.ExternOp):
        buffers = (op.input_placeholders, op.output_placeholders)
        protected = extern_stage(op.name, op.tag, op.attrs, op.inputs, *buffers, change(op.body))
    return outputs_of(protected) if changed else None


def protect_nested_guards(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """A function with its conditions protected.

    Taking bindings out of a choice's branch may bring two conditions together.
    """
    return func.with_body(tvm_ffi.structural_map(func.body, (tvm.ir.Call, _protect)))


def _protect(node: Expr) -> Expr:
    """A choice whose first branch is a choice as one choice, if TVM would join them."""
    if called(node) != _CHOICE or called(node.args[1]) != _CHOICE:
        return node
    outer, inner, otherwise = node.args
    condition, value, inner_otherwise = inner.args
    constants = isinstance(otherwise, prim.IntImm | prim.FloatImm)
    if not constants or not tvm_ffi.structural_equal(otherwise, inner_otherwise):
        return node
    return (
        tirx.if_then_else(_both(outer, condition), value, otherwise) if _loads(condition) else node
    )


def _both(outer: Expr, inner: Expr) -> Expr:
    """That two conditions hold; the second is evaluated only where the first does."""
    false = tirx.const(False)
    if called(inner) == _CHOICE and tvm_ffi.structural_equal(inner.args[2], false):
        return tirx.if_then_else(_both(outer, inner.args[0]), inner.args[1], false)
    return tirx.if_then_else(outer, inner, false)


def _loads(condition: Expr) -> bool:
    """Whether an expression reads a tensor or, in an extern's body, a buffer."""
    nodes = nodes_in(condition, (tvm.ir.Call, tvm.ir.TensorLoad))
    return any(isinstance(node, tvm.ir.TensorLoad) or is_load(node) for node in nodes)
