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
    dtype_name,
    graph_of,
    identity,
    is_conditional,
    is_load,
    loaded_tensor,
    rebuilt,
    tensor_key,
)

_COMPARISONS = {
    prim.EQ: operator.eq, prim.NE: operator.ne,
    prim.LT: operator.lt, prim.LE: operator.le, prim.GT: operator.gt, prim.GE: operator.ge,
}  # fmt: skip
"""Comparisons, of numbers."""


def same(a: Expr, b: Expr) -> bool:
    """Whether two expressions, without `Let`, are equal node by node."""
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
        """The number of an expression."""
        number_of_root = self._numbers.get(identity(root))
        if number_of_root is not None:
            return number_of_root
        for node, below in graph_of([root], self._unknown_parts):
            if identity(node) not in self._numbers:
                parts = tuple(self._numbers[identity(part)] for part in below)
                key = (type(node), *_own(node), *parts)
                self._numbers[identity(node)] = self._table.setdefault(key, len(self._table))
                # The identity of a node that is freed may become that of another.
                self._alive.append(node)
        return self._numbers[identity(root)]

    def _unknown_parts(self, node: Expr) -> Sequence[Expr]:
        return [] if identity(node) in self._numbers else children(node)


class Merged:
    """An expression, without `Let`, in which equal nodes are one.

    Comparisons of constants are decided, and what they choose is chosen, as is what would be chosen
    either way; nodes that are not chosen may be left.

    Parameters
    ----------
    graph : Graph
        Of the expression.
    renamed : pairs of (Var, Var)
        Variables that are replaced.

    Attributes
    ----------
    nodes : list of Expr
        One of each that are equal, as they are in `graph`.
    before : list of sequence of Expr
        The `children` that each has there.
    parts : list of sequence of int
        Which of the nodes these are, all of them before it.
    root : int
        Which of the nodes the expression is.
    has_conditions : bool
        Whether a node is `if_then_else`.
    """

    def __init__(self, graph: Graph, renamed: Iterable[tuple[Any, Expr]] = ()):
        self.nodes: list[Expr] = []
        self.before: list[Sequence[Expr]] = []
        self.parts: list[Sequence[int]] = []
        self.has_conditions = False
        self._table: dict[tuple[Any, ...], int] = {}
        numbers: dict[int, int] = {}
        for old, new in renamed:
            numbers[identity(old)] = self._number(new, (), ())
        for node, before in graph:
            key = identity(node)
            if key not in numbers:
                parts = [numbers[identity(part)] for part in before]
                numbers[key] = self._number(node, before, parts)
        self.root = numbers[identity(graph[-1][0])]

    def graph(self) -> tuple[Expr, Graph]:
        """The expression and its nodes."""
        results: list[Expr] = []
        order: Graph = []
        for node, before, parts in zip(self.nodes, self.before, self.parts, strict=True):
            below = [results[part] for part in parts]
            results.append(rebuilt(node, below, before))
            order.append((results[-1], below))
        return results[self.root], order

    def _number(self, node: Expr, before: Sequence[Expr], parts: Sequence[int]) -> int:
        """The number of the node that one equals; it becomes a new one if there is none."""
        key = (type(node), *_own(node), *parts)
        number = self._table.get(key)
        if number is None:
            number = self._table[key] = self._fold_constant_choice(node, parts)
            # What was folded is among the nodes already.
            if number == len(self.nodes):
                self.nodes.append(node)
                self.before.append(before)
                self.parts.append(parts)
        return number

    def _fold_constant_choice(self, node: Expr, parts: Sequence[int]) -> int:
        """The number of what a comparison or choice of constants is; a new one for others."""
        kind = type(node)
        if kind in _COMPARISONS:
            a, b = (self.nodes[part] for part in parts)
            if _is_integer(a) and _is_integer(b):
                return self._number(
                    tirx.const(_COMPARISONS[kind](int(a.value), int(b.value))), (), ()
                )
        elif kind is prim.Select or is_conditional(node):
            if parts[1] == parts[2]:
                return parts[1]
            condition = self.nodes[parts[0]]
            if _is_integer(condition):
                return parts[1] if condition.value else parts[2]
            self.has_conditions |= kind is not prim.Select
        return len(self.nodes)


def _is_integer(node: Expr) -> bool:
    return type(node) is prim.IntImm


def _own(node: Expr) -> tuple[Any, ...]:
    """The key of a node among its kind, but for its children."""
    kind = type(node)
    if kind in BINARY:
        return ()
    if kind is tvm.ir.Call:
        if is_load(node):
            return tensor_key(loaded_tensor(node))
        return identity(node.op), dtype_name(node.ty)
    if kind is tvm.ir.StringImm:
        return (str(node.value),)
    if kind is prim.IntImm or kind is prim.FloatImm:
        # As text, 0.0 differs from -0.0, and NaN equals NaN.
        return repr(node.value), dtype_name(node.ty)
    if kind is prim.Cast:
        return (dtype_name(node.ty),)
    # Variables and bindings are equal to themselves alone.
    is_variable = isinstance(node, tvm.ir.Var | prim.Let)
    return (identity(node),) if is_variable else ()
