"""Tensor expressions as text that a reader can take for Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import te, tirx
from tvm.ir import prim

from graphgrad.fallback.graph import operations
from graphgrad.fallback.walk import called, children, is_load, loaded

_SIGNS = {
    prim.Add: "+", prim.Sub: "-", prim.Mul: "*", prim.Div: "/", prim.FloorDiv: "//",
    prim.FloorMod: "%", prim.EQ: "==", prim.NE: "!=", prim.LT: "<", prim.LE: "<=", prim.GT: ">",
    prim.GE: ">=", prim.And: "and", prim.Or: "or",
}  # fmt: skip


def source(tensors: Sequence[te.Tensor]) -> str:
    """Return the stages that some tensors depend on, one or a few lines each."""
    return "\n".join(_stage(op) for op in operations(*tensors))


def _stage(op: Any) -> str:
    shape = [text(extent) for extent in op.output(0).shape]
    head = f"{op.name}: {op.output(0).dtype}[{', '.join(shape)}]"
    if not isinstance(op, te.ComputeOp):
        return f"{head}  # {type(op).__name__}"
    at = ", ".join(axis.var.name for axis in op.axis)
    if not isinstance(op.body[0], tirx.Reduce):
        return "\n".join(f"{head}\n  [{at}] = {text(body)}" for body in op.body)
    body = op.body[0]
    loops = [
        f"{axis.var.name} from {text(axis.dom.min)} for {text(axis.dom.extent)}"
        for axis in op.reduce_axis
    ]
    lines = [head, f"  [{at}] = reduce over {', '.join(loops)} by"]
    combiner = body.combiner
    sides = [", ".join(var.name for var in side) for side in (combiner.lhs, combiner.rhs)]
    results = ", ".join(text(result) for result in combiner.result)
    lines.append(f"    ({sides[0]}), ({sides[1]}) -> {results}")
    lines += [f"    of {text(value)}" for value in body.source]
    lines.append(f"    where {text(body.condition)}")
    lines += [f"    init {text(value)}" for value in body.init]
    return "\n".join(lines)


def text(node: Any) -> str:
    """Return an expression as text."""
    if isinstance(node, int):
        return str(node)
    if isinstance(node, prim.IntImm | prim.FloatImm):
        return str(node.value)
    if isinstance(node, tvm.ir.Var):
        return str(node.name)
    if is_load(node):
        tensor, indices = loaded(node)
        number = f".{tensor.value_index}" if tensor.op.num_outputs > 1 else ""
        return f"{tensor.op.name}{number}[{', '.join(text(index) for index in indices)}]"
    if isinstance(node, prim.Let):
        return f"(let {node.var.name} = {text(node.value)} in {text(node.body)})"
    parts = [text(child) for child in children(node)]
    if isinstance(node, prim.Cast):
        return f"{node.ty}({parts[0]})"
    if type(node) in _SIGNS:
        return f"({parts[0]} {_SIGNS[type(node)]} {parts[1]})"
    name = called(node).split(".")[-1] or type(node).__name__
    return f"{name}({', '.join(parts)})"
