"""Equal expressions: numbered alike, or merged into one.

Unlike TVM's own comparison, this visits what is shared once, and knows which tensor is read.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import prim

from .walk import (
    BINARY,
    Expr,
    Graph,
    children,
    choice_of,
    dtype_name,
    identity,
    is_load,
    rebuilt,
    tensor_key,
    with_parts,
)

_COMPARISONS = {
    prim.EQ: operator.eq, prim.NE: operator.ne,
    prim.LT: operator.lt, prim.LE: operator.le, prim.GT: operator.gt, prim.GE: operator.ge,
}  # fmt: skip
"""Comparisons, of numbers."""


def same(a: Expr, b: Expr) -> bool:
    """Return whether two expressions, without `Let`, are equal node by node."""
    classes = Classes()
    return classes.number(a) == classes.number(b)


class Classes:
    """Numbers of expressions, without `Let`: two have the same if they are equal node by node.

    Reads are of the same tensor, which TVM's own comparison does not know how to tell.
    """

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._table: dict[tuple[Any, ...], int] = {}
        self._alive: list[Expr] = []

    def number(self, root: Expr) -> int:
        """Return the number of an expression."""
        for node, below in with_parts([root], self._unknown_parts):
            if identity(node) not in self._numbers:
                parts = tuple(self._numbers[identity(part)] for part in below)
                key = (type(node), *_own(node), *parts)
                self._numbers[identity(node)] = self._table.setdefault(key, len(self._table))
                self._alive.append(node)
        return self._numbers[identity(root)]

    def _unknown_parts(self, node: Expr) -> Sequence[Expr]:
        return [] if identity(node) in self._numbers else children(node)


def merged(graph: Graph, renamed: Iterable[tuple[Any, Expr]] = ()) -> tuple[Expr, Graph]:
    """Return an expression, without `Let`, in which equal nodes are one.

    Comparisons of constants are decided, and what they choose is chosen.

    Parameters
    ----------
    graph : Graph
        Of the expression.
    renamed : pairs of (Var, Var)
        Variables that are replaced.

    Returns
    -------
    Expr
    Graph
        Of it; nodes that are not chosen may be left.
    """
    results = {identity(old): new for old, new in renamed}
    order: Graph = [(new, ()) for new in results.values()]
    placed = {identity(new) for new in results.values()}
    first: dict[tuple[Any, ...], Expr] = {}
    for node, before in graph:
        if identity(node) in results:
            continue
        parts = [results[identity(part)] for part in before]
        key = (type(node), *_own(node), *map(identity, parts))
        if key not in first:
            whole = rebuilt(node, parts, before)
            first[key] = _decided(whole)
            if identity(first[key]) not in placed:
                placed.add(identity(first[key]))
                order.append((first[key], parts if first[key] is whole else ()))
        results[identity(node)] = first[key]
    return results[identity(graph[-1][0])], order


def _decided(node: Expr) -> Expr:
    """Return a constant for a comparison of constants, and the way that a constant chooses."""
    if type(node) in _COMPARISONS and _is_integer(node.a) and _is_integer(node.b):
        return tirx.const(_COMPARISONS[type(node)](int(node.a.value), int(node.b.value)))
    choice = choice_of(node)
    if choice is not None and _is_integer(choice[0]):
        return choice[1] if choice[0].value else choice[2]
    return node


def _is_integer(node: Expr) -> bool:
    return isinstance(node, prim.IntImm)


def _own(node: Expr) -> tuple[Any, ...]:
    """Return what sets a node apart from others of its kind, but for its children."""
    kind = type(node)
    if kind in BINARY:
        return ()
    if kind is tvm.ir.Call:
        if is_load(node):
            return tensor_key(node.args[0])
        return identity(node.op), dtype_name(node.ty)
    if kind is tvm.ir.StringImm:
        return (str(node.value),)
    if kind is prim.IntImm or kind is prim.FloatImm:
        return repr(node.value), dtype_name(node.ty)
    if kind is prim.Cast:
        return (dtype_name(node.ty),)
    is_variable = isinstance(node, tvm.ir.Var | prim.Let)
    return (identity(node),) if is_variable else ()
