"""Expressions written with bindings: what `Placement` says is shared is bound where it says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm.ir import prim

from ..indices.linear_system import Axis
from ..value_numbering import Merged
from ..walk import (
    Expr,
    Graph,
    Recursion,
    children,
    graph_of,
    identity,
    is_tree,
    rebuilt,
    substituted,
    unrolled,
)
from .placement import Placement, Region, is_cheap


def shared(
    root: Expr, axes: Sequence[Axis] | None = None, values: Sequence[tuple[Any, Expr]] = ()
) -> Expr:
    """An expression whose tree is as small as the graph of `root`.

    Parameters
    ----------
    root : Expr
        Without `Let`.
    axes : sequence of Axis, optional
        The loops around the result: a load that is inside its tensor in all of them needs no
        condition.
    values : sequence of (Var, Expr)
        What variables of `root` are in the result.
    """
    # Only leaves can stand for variables while equal nodes are merged.
    if any(children(value) for _, value in values):
        root, values = substituted(root, values), ()
    graph = graph_of([root])
    if is_tree(graph):
        return substituted(root, values)
    merged = Merged(graph, values)
    if merged.has_conditions:
        return bind_in_regions(*merged.graph(), {}, axes)
    return bind_around(merged)


def bind_around(merged: Merged) -> Expr:
    """An expression without conditions with its bindings: all of them are around it."""
    cheap = [is_cheap(node) for node in merged.nodes]
    uses = [0] * len(cheap)
    uses[merged.root] = 1
    for number in reversed(range(len(cheap))):
        count = uses[number]
        # What a variable holds uses its parts once; what is cheap is written out for each use.
        passed = count if cheap[number] or not count else 1
        for part in merged.parts[number]:
            uses[part] += passed
    results: list[Expr] = []
    bindings: list[tuple[Any, Expr]] = []
    for number, node in enumerate(merged.nodes):
        parts = [results[part] for part in merged.parts[number]]
        value = rebuilt(node, parts, merged.before[number])
        if uses[number] > 1 and not cheap[number]:
            var = tirx.Var(f"v{len(bindings)}", node.ty)
            bindings.append((var, value))
            value = var
        results.append(value)
    body = results[merged.root]
    for var, value in reversed(bindings):
        body = prim.Let(var, value, body)
    return body


def bind_in_regions(
    root: Expr, graph: Graph, variables: dict[int, Expr], axes: Sequence[Axis] | None
) -> Expr:
    """An expression with its bindings, given variables that hold nodes of it already."""
    placement = Placement([root], graph, variables, axes)
    return unrolled(_Sharing(placement, dict(variables), axes).inside_top(root))


class _Sharing:
    """The bindings of one expression."""

    def __init__(
        self, placement: Placement, variables: dict[int, Expr], axes: Sequence[Axis] | None
    ):
        self.placement = placement
        self.variables = variables
        self.axes = axes

    def inside_top(self, root: Expr) -> Recursion:
        """The expression with its bindings."""
        return self._inside(self.placement.top, root)

    def _inside(self, region: Region, node: Expr) -> Recursion:
        """A node in terms of variables, with those of its region bound around it."""
        bindings = []
        # In reverse, what a binding uses is bound before it.
        for shared_node in reversed(region.bound):
            value = yield self._bound_value(shared_node)
            var = tirx.Var(f"v{len(self.variables)}", str(shared_node.ty))
            self.variables[identity(shared_node)] = var
            bindings.append((var, value))
        body = yield self._built(node)
        for var, value in reversed(bindings):
            body = prim.Let(var, value, body)
        return body

    def _bound_value(self, node: Expr) -> Recursion:
        region = self.placement.guarded.get(identity(node))
        if region is None:
            return (yield self._built(node))
        condition = self._bound_condition(self.placement.guards[identity(node)])
        value = yield self._inside(region, node)
        # Where no use happens, nobody reads the 0.
        return tirx.if_then_else(condition, value, tirx.const(0, str(node.ty)))

    def _bound_condition(self, condition: Expr) -> Expr:
        """A condition in terms of variables; what it has of its own gets its own bindings.

        These are the nodes bound further in, as its order must be (`order_conditions_first`).
        """
        bound = self.variables
        graph = graph_of([condition], lambda n: [] if identity(n) in bound else children(n))
        return bind_in_regions(condition, graph, bound, self.axes)

    def _built(self, root: Expr) -> Recursion:
        """A node in terms of the variables of what is bound below it."""
        results: dict[int, Expr] = {}
        stack = [(root, False)]
        while stack:
            node, expanded = stack.pop()
            key = identity(node)
            if key in results:
                continue
            if key in self.variables:
                results[key] = self.variables[key]
                continue
            parts = self.placement.parts[key]
            is_decided = key in self.placement.decided
            is_choice = (key, True) in self.placement.arms
            unconditional = parts[:1] if is_choice else parts
            if not expanded:
                stack.append((node, True))
                stack.extend((part, False) for part in unconditional)
                continue
            new_parts = [results[identity(part)] for part in unconditional]
            if is_decided:
                # It is what it chooses: its way is known.
                results[key] = new_parts[0]
                continue
            if is_choice:
                # Each arm is a region of its own: what it alone uses is bound inside it.
                for wanted, part in zip((True, False), parts[1:], strict=True):
                    new_parts.append((yield self._inside(self.placement.arms[key, wanted], part)))
            results[key] = rebuilt(node, new_parts, parts)
        return results[identity(root)]
