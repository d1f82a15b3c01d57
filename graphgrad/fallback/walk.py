"""Tensor expressions as graphs: the only place that knows their parts.

TVM walks expressions as trees: a node that is used twice is visited twice, and one nested n deep
costs 2ⁿ or overflows the stack. Here each node is visited once, without recursion.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Generator, Iterable, Mapping, Sequence
from typing import Any

import tvm
from tvm import te
from tvm.ir import prim

from ..errors import MissingGradientError
from ..tvm_fixes.hooks import array_item, array_size, identity

Expr = Any
"""A scalar expression of TVM."""

Graph = list[tuple[Expr, Sequence[Expr]]]
"""The nodes of an expression, each once, with the nodes that it is made of, which come before."""

Recursion = Generator[Any, Any, Any]
"""A recursion without Python's stack (see `unrolled`)."""

BINARY = {
    prim.Add: "+", prim.Sub: "-", prim.Mul: "*", prim.Div: "/", prim.Mod: "%",
    prim.FloorDiv: "//", prim.FloorMod: "%", prim.Min: "min", prim.Max: "max",
    prim.EQ: "==", prim.NE: "!=", prim.LT: "<", prim.LE: "<=", prim.GT: ">", prim.GE: ">=",
    prim.And: "and", prim.Or: "or",
    prim.BitwiseAnd: "&", prim.BitwiseOr: "|", prim.BitwiseXor: "^",
    prim.LShift: "<<", prim.RShift: ">>",
}  # fmt: skip

_LOAD = tvm.ir.Op.get("te.tensor_load")
_CONDITIONAL = tvm.ir.Op.get("prim.if_then_else")


def _arguments(call: Expr) -> list[Expr]:
    """The expressions that a call is made of: of a load, the indices."""
    # The first argument of a load is its tensor, which is no expression.
    arguments = call.args
    return [array_item(arguments, i) for i in range(call.op.same_as(_LOAD), array_size(arguments))]


_NODE_PARTS: dict[type, Callable[[Any], Sequence[Expr]]] = {
    **dict.fromkeys(BINARY, operator.attrgetter("a", "b")),
    **dict.fromkeys((prim.Not, prim.BitwiseNot), lambda node: (node.a,)),
    **dict.fromkeys((prim.IntImm, prim.FloatImm, tvm.ir.Var, tvm.ir.StringImm), lambda node: ()),
    prim.Cast: lambda node: (node.value,),
    prim.Select: operator.attrgetter("condition", "true_value", "false_value"),
    prim.Let: operator.attrgetter("value", "body"),
    tvm.ir.Call: _arguments,
}
"""The expressions that each kind of node is made of."""

_DTYPE_NAMES: dict[int, tuple[str, Any]] = {}
"""The names of dtypes, with these, whose identities they stay as long as they are alive."""


class UnknownNodeError(MissingGradientError):
    """An expression has a node of a kind that is not known here."""


def tensor_key(tensor: te.Tensor) -> tuple[int, int]:
    """The identity of a tensor; as dictionary keys, tensors compare elementwise."""
    return identity(tensor.op), int(tensor.value_index)


def dtype_name(dtype: Any) -> str:
    """A dtype as text; TVM keeps one object of each, and takes long to make it a text."""
    if type(dtype) is not tvm.ir.PrimType:
        return str(dtype)
    name_and_dtype = _DTYPE_NAMES.get(identity(dtype))
    if name_and_dtype is None:
        name_and_dtype = _DTYPE_NAMES[identity(dtype)] = str(dtype), dtype
    return name_and_dtype[0]


def called(node: Expr) -> str:
    """The name of the operator that a node calls; empty if it is no call."""
    return str(getattr(node.op, "name", "")) if type(node) is tvm.ir.Call else ""


def is_load(node: Expr) -> bool:
    """Whether a node reads an element of a tensor."""
    return type(node) is tvm.ir.Call and bool(node.op.same_as(_LOAD))


def is_conditional(node: Expr) -> bool:
    """Whether a node is `if_then_else`, which evaluates one of its branches."""
    return type(node) is tvm.ir.Call and bool(node.op.same_as(_CONDITIONAL))


def loaded(node: Expr) -> tuple[te.Tensor, list[Expr]]:
    """The tensor and the indices of a load."""
    tensor, *indices = items(node.args)
    return tensor, indices


def loaded_tensor(load: Expr) -> te.Tensor:
    """The tensor that a load reads."""
    return array_item(load.args, 0)


def items(array: Any) -> list[Any]:
    """An array of TVM's as a list."""
    return [array_item(array, i) for i in range(array_size(array))]


def children(node: Expr) -> Sequence[Expr]:
    """The expressions that a node is made of; for a `Let`, its value and its body.

    Raises
    ------
    UnknownNodeError
        The node is of a kind that is not known here.
    """
    parts = _NODE_PARTS.get(type(node))
    if parts is not None:
        return parts(node)
    raise UnknownNodeError(
        f"the expression node {type(node).__name__} is not known; write the tensor "
        "expression without it, or give the op a gradient by gg.register_gradient"
    )


def rebuilt(node: Expr, parts: Sequence[Expr], before: Sequence[Expr] | None = None) -> Expr:
    """A node with other `children`; the node itself if they are the same.

    `before` are its children, for callers that have them.
    """
    before = children(node) if before is None else before
    # By identity: `==` between expressions makes an expression.
    if not before or [*map(identity, before)] == [*map(identity, parts)]:
        return node
    kind = type(node)
    if kind is prim.Cast:
        return prim.Cast(node.ty, parts[0])
    if kind is prim.Let:
        return prim.Let(node.var, *parts)
    if kind is not tvm.ir.Call:
        return kind(*parts)
    # The parts of a load are its indices; its tensor stays.
    if is_load(node):
        return array_item(node.args, 0)(*parts)
    return tvm.ir.Call(node.op, parts, attrs=node.attrs, span=node.span, ret_ty=node.ty)


def choice_of(node: Expr) -> tuple[Expr, Expr, Expr] | None:
    """The condition and both values of a choice, None for any other node."""
    return tuple(children(node)) if type(node) is prim.Select or is_conditional(node) else None


def postorder(*roots: Any, parts: Callable[[Any], Sequence[Any]] = children) -> list[Any]:
    """All nodes under some roots, each once, its parts before it."""
    return [node for node, _ in graph_of(roots, parts)]


def graph_of(roots: Iterable[Any], parts: Callable[[Any], Sequence[Any]] = children) -> Graph:
    """The nodes of a `postorder`, each with its parts."""
    order: Graph = []
    seen: set[int] = set()
    # Of a node whose parts are on top of it, with these; else the node alone.
    stack: list[Any] = [*roots][::-1]
    while stack:
        node = stack.pop()
        if type(node) is tuple:
            order.append(node)
        elif (key := identity(node)) not in seen:
            seen.add(key)
            below = parts(node)
            if below:
                stack.append((node, below))
                stack += below[::-1]
            else:
                order.append((node, below))
    return order


def contain(roots: Iterable[Expr], test: Callable[[Expr], bool]) -> bool:
    """Whether a node under some roots passes a test."""
    stack = list(roots)
    seen: set[int] = set()
    while stack:
        node = stack.pop()
        if test(node):
            return True
        if (key := identity(node)) not in seen:
            seen.add(key)
            stack.extend(children(node))
    return False


def has_more(roots: Iterable[Expr], count: int) -> bool:
    """Whether there are more nodes under some roots than `count`."""
    stack = list(roots)
    seen: set[int] = set()
    while stack and len(seen) <= count:
        node = stack.pop()
        if (key := identity(node)) not in seen:
            seen.add(key)
            stack += children(node)
    return len(seen) > count


def reads(*roots: Expr) -> bool:
    """Whether some expressions read an element of any tensor."""
    return contain(roots, is_load)


def depend(roots: Sequence[Expr], variables: Container[int]) -> bool:
    """Whether any of some expressions depends on variables, given by their identities."""
    return contain(roots, lambda node: identity(node) in variables)


def is_tree(graph: Graph) -> bool:
    """Whether each node of an expression, but for the leaves, is used once."""
    leaves = {identity(node) for node, parts in graph if not parts}
    used = [key for _, parts in graph for key in map(identity, parts) if key not in leaves]
    return len(used) == len(set(used))


def unrolled(recursion: Recursion) -> Any:
    """The result of a recursion, without Python's stack.

    Parameters
    ----------
    recursion : generator
        It yields a generator of the same kind for each call of itself, and is sent its result.
    """
    stack, result = [recursion], None
    while stack:
        try:
            # A generator that has not begun can be sent None alone.
            stack.append(stack[-1].send(result))
            result = None
        except StopIteration as finished:
            stack.pop()
            result = finished.value
    return result


def transformed(root: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """`root` with `change` applied to every node, its children first, each node once.

    What is shared in `root` is shared in the result.
    """
    (result,) = map_all_nodes([root], change)
    return result


def map_all_nodes(roots: Sequence[Expr], change: Callable[[Expr], Expr]) -> list[Expr]:
    """`roots`, each `transformed`; what they share with one another stays shared, too."""
    results: dict[int, Expr] = {}
    for node, before in graph_of(roots):
        parts = [results[identity(child)] for child in before]
        results[identity(node)] = change(rebuilt(node, parts, before))
    return [results[identity(root)] for root in roots]


def substituted(root: Expr, values: Mapping[Any, Expr] | Iterable[tuple[Any, Expr]]) -> Expr:
    """`root` with variables replaced, all at once.

    Parameters
    ----------
    root : Expr
    values : pairs of (Var, Expr)
    """
    (result,) = substitute_expressions([root], values)
    return result


def substitute_expressions(
    roots: Sequence[Expr], values: Mapping[Any, Expr] | Iterable[tuple[Any, Expr]]
) -> list[Expr]:
    """`roots`, each `substituted`; what they share with one another stays shared, too."""
    pairs = values.items() if isinstance(values, Mapping) else values
    table = {identity(var): value for var, value in pairs}
    if not table:
        return list(roots)
    return map_all_nodes(roots, lambda node: table.get(identity(node), node))


def inline_lets(root: Expr) -> Expr:
    """`root` with each `Let` variable replaced by its value, as a shared node.

    Raises
    ------
    UnknownNodeError
        A variable is bound twice, to different values.
    """
    if not contain([root], lambda node: type(node) is prim.Let):
        return root
    bound: dict[int, Expr] = {}
    for node in postorder(root):
        if isinstance(node, prim.Let):
            value = bound.setdefault(identity(node.var), node.value)
            if not value.same_as(node.value):
                raise UnknownNodeError(
                    f"the variable {node.var.name} is bound twice, to {excerpt(value)} and to "
                    f"{excerpt(node.value)}; use two variables"
                )
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
        new_parts = [results[identity(part)] for part in parts]
        if identity(node) in bound:
            # A variable: its only part is its value.
            results[identity(node)] = new_parts[0]
        elif isinstance(node, prim.Let):
            # A `Let` is its body: the variable stands for its value there.
            results[identity(node)] = new_parts[1]
        else:
            results[identity(node)] = rebuilt(node, new_parts)
    return results[identity(root)]


def excerpt(node: Expr, depth: int = 4) -> str:
    """The top of an expression as text; TVM's own printing would write out all of it."""
    if isinstance(node, prim.IntImm | prim.FloatImm):
        return str(node.value)
    if isinstance(node, tvm.ir.Var | tvm.ir.StringImm):
        return str(getattr(node, "name", None) or node.value)
    if depth == 0:
        return "..."
    parts = [excerpt(child, depth - 1) for child in children(node)]
    if is_load(node):
        return f"{loaded(node)[0].op.name}[{', '.join(parts)}]"
    symbol = BINARY.get(type(node))
    if symbol is None or symbol in ("min", "max"):
        name = symbol or called(node).split(".")[-1] or type(node).__name__.lower()
        return f"{name}({', '.join(parts)})"
    return f"({parts[0]} {symbol} {parts[1]})"
