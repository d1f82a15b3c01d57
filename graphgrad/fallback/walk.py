"""Tensor expressions as graphs: the only place that knows TVM's expression nodes.

TVM walks expressions as trees: a node that is used twice is visited twice, and one nested n deep
costs 2ⁿ or overflows the stack. Here each node is visited once, without recursion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tvm
from tvm import te
from tvm.ir import prim

from ..errors import MissingGradientError

Expr = Any
"""A scalar expression of TVM."""

_BINARY = (
    prim.Add, prim.Sub, prim.Mul, prim.Div, prim.Mod, prim.FloorDiv, prim.FloorMod,
    prim.Min, prim.Max,
    prim.EQ, prim.NE, prim.LT, prim.LE, prim.GT, prim.GE,
    prim.And, prim.Or,
    prim.BitwiseAnd, prim.BitwiseOr, prim.BitwiseXor, prim.LShift, prim.RShift,
)  # fmt: skip
_UNARY = (prim.Not, prim.BitwiseNot)
_LEAF = (prim.IntImm, prim.FloatImm, tvm.ir.Var, tvm.ir.StringImm)

_LOAD = "te.tensor_load"


def identity(node: Any) -> int:
    """Return a number that two wrappers of one node share, while either is alive."""
    return int(node.__chandle__())


def tensor_key(tensor: te.Tensor) -> tuple[int, int]:
    """Return what identifies a tensor; as dictionary keys, tensors compare elementwise."""
    return identity(tensor.op), int(tensor.value_index)


def called(node: Expr) -> str:
    """Return the name of the operator that a node calls; empty if it is no call."""
    return str(getattr(node.op, "name", "")) if isinstance(node, tvm.ir.Call) else ""


def is_load(node: Expr) -> bool:
    """Return whether a node reads an element of a tensor."""
    return called(node) == _LOAD


def loaded(node: Expr) -> tuple[te.Tensor, list[Expr]]:
    """Return the tensor and the indices of a load."""
    return node.args[0], list(node.args[1:])


def children(node: Expr) -> list[Expr]:
    """Return the expressions that a node is made of; for a `Let`, its value and its body.

    Raises
    ------
    MissingGradientError
        The node is of a kind that is not known here.
    """
    if isinstance(node, _BINARY):
        return [node.a, node.b]
    if isinstance(node, _UNARY):
        return [node.a]
    if isinstance(node, prim.Cast):
        return [node.value]
    if isinstance(node, prim.Select):
        return [node.condition, node.true_value, node.false_value]
    if isinstance(node, prim.Let):
        return [node.value, node.body]
    if isinstance(node, tvm.ir.Call):
        return list(node.args[1:] if is_load(node) else node.args)
    if isinstance(node, _LEAF):
        return []
    raise MissingGradientError(
        f"the expression node {type(node).__name__} is not known, in {_excerpt(node)}; write the "
        "tensor expression without it, or give the op a gradient by gg.register_gradient"
    )


def rebuilt(node: Expr, parts: Sequence[Expr]) -> Expr:
    """Return a node with other `children`; the node itself if they are the same."""
    before = children(node)
    if all(a.same_as(b) for a, b in zip(before, parts, strict=True)):
        return node
    if isinstance(node, _BINARY + _UNARY + (prim.Select,)):
        return type(node)(*parts)
    if isinstance(node, prim.Cast):
        return prim.Cast(node.ty, parts[0])
    if isinstance(node, prim.Let):
        return prim.Let(node.var, *parts)
    arguments = [node.args[0], *parts] if is_load(node) else list(parts)
    return tvm.ir.Call(node.op, arguments, attrs=node.attrs, span=node.span, ret_ty=node.ty)


def postorder(*roots: Any, parts: Callable[[Any], Sequence[Any]] = children) -> list[Any]:
    """Return all nodes under some roots, each once, its parts before it."""
    order: list[Any] = []
    seen: set[int] = set()
    stack = [(root, False) for root in reversed(roots)]
    while stack:
        node, expanded = stack.pop()
        if expanded:
            order.append(node)
        elif identity(node) not in seen:
            seen.add(identity(node))
            stack.append((node, True))
            stack.extend((part, False) for part in reversed(parts(node)))
    return order


def transformed(root: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """Return `root` with `change` applied to every node, its children first, each node once.

    What is shared in `root` is shared in the result.
    """
    nodes = postorder(root)
    results: dict[int, Expr] = {}
    for node in nodes:
        parts = [results[identity(child)] for child in children(node)]
        results[identity(node)] = change(rebuilt(node, parts))
    return results[identity(root)]


def substituted(root: Expr, values: Mapping[Any, Expr] | Iterable[tuple[Any, Expr]]) -> Expr:
    """Return `root` with variables replaced, all at once.

    Parameters
    ----------
    root : Expr
    values : pairs of (Var, Expr)
    """
    pairs = values.items() if isinstance(values, Mapping) else values
    table = {identity(var): value for var, value in pairs}
    if not table:
        return root
    return transformed(root, lambda node: table.get(identity(node), node))


def without_lets(root: Expr) -> Expr:
    """Return `root` with each `Let` variable replaced by its value, as a shared node."""
    nodes = postorder(root)
    bound = {identity(n.var): n.value for n in nodes if isinstance(n, prim.Let)}
    if not bound:
        return root
    results: dict[int, Expr] = {}
    # A value may use variables that are bound outside it, so what a variable stands for is worked
    # out when it is first met, values before the variables.
    stack = [(root, False)]
    while stack:
        node, expanded = stack.pop()
        if identity(node) in results:
            continue
        parts = [bound[identity(node)]] if identity(node) in bound else children(node)
        if not expanded:
            stack.append((node, True))
            stack.extend((part, False) for part in parts)
            continue
        done = [results[identity(part)] for part in parts]
        if identity(node) in bound:
            results[identity(node)] = done[0]
        elif isinstance(node, prim.Let):
            results[identity(node)] = done[1]
        else:
            results[identity(node)] = rebuilt(node, done)
    return results[identity(root)]


def _excerpt(node: Expr) -> str:
    text = str(node)
    return text if len(text) <= 120 else f"{text[:117]}..."
