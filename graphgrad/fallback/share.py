"""Shared subexpressions computed once: bindings by `Let`, each where it is safe to evaluate.

TVM compiles an expression as the tree that it prints as; what is shared must be bound to a
variable, or it is computed again for every use, and for uses of uses exponentially often. A
binding stands where all uses see it. If that is outside a condition that protected them, the
binding gets the condition under which one of the uses happens: a load stays guarded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce as fold

import tvm
from tvm import tirx
from tvm.ir import prim

from .walk import Expr, called, children, identity, is_load, postorder, rebuilt

_CHEAP = (
    prim.IntImm, prim.FloatImm, tvm.ir.Var, tvm.ir.StringImm,
    prim.EQ, prim.NE, prim.LT, prim.LE, prim.GT, prim.GE, prim.And, prim.Or, prim.Not,
)  # fmt: skip


@dataclass
class _Region:
    """A part of an expression that is evaluated as a whole or not at all.

    Attributes
    ----------
    parent : _Region or None
    condition : Expr or None
        When it is, given that the parent is; evaluated in the parent.
    wanted : bool
        Which way the condition must go.
    bound : list of Expr
        Shared nodes that are computed here, those that others need first.
    """

    parent: _Region | None = None
    condition: Expr | None = None
    wanted: bool = True
    depth: int = 0
    bound: list[Expr] = field(default_factory=list)

    def arm(self, condition: Expr, wanted: bool) -> _Region:
        """Return the part of this region that a condition decides on."""
        return _Region(self, condition, wanted, self.depth + 1)


def shared(root: Expr, known: Mapping[int, Expr] | None = None) -> Expr:
    """Return an expression whose tree is as small as the graph of `root`.

    Parameters
    ----------
    root : Expr
        Without `Let`.
    known : mapping, optional
        Variables that already hold the value of some nodes, by the nodes' identity.
    """
    return _Sharing(root, dict(known or {})).result()


class _Sharing:
    """The bindings of one expression."""

    def __init__(self, root: Expr, known: dict[int, Expr]):
        self.root = root
        self.variables = known
        self.nodes = [node for node in postorder(root) if identity(node) not in known]
        self.top = _Region()
        self.arms: dict[tuple[int, bool], _Region] = {}
        self.uses: dict[int, list[_Region]] = {identity(root): [self.top]}
        self.guarded: dict[int, _Region] = {}
        self.fragile = self._fragile()
        for node in reversed(self.nodes):
            self._place(node)

    def result(self) -> Expr:
        """Return the expression with its bindings."""
        return self._inside(self.top, self.root)

    def _fragile(self) -> set[int]:
        """Return the nodes that must not be evaluated where the expression does not do so."""
        fragile: set[int] = set()
        for node in self.nodes:
            integer_division = isinstance(
                node, prim.Div | prim.Mod | prim.FloorDiv | prim.FloorMod
            ) and not isinstance(node.b, prim.IntImm)
            if (
                is_load(node)
                or integer_division
                or any(identity(child) in fragile for child in children(node))
            ):
                fragile.add(identity(node))
        return fragile

    def _place(self, node: Expr) -> None:
        """Decide where a node is computed; all its users are decided on already."""
        uses = self.uses.pop(identity(node), None)
        if uses is None:
            return  # only below what is known
        if _is_cheap(node):
            for region in uses:
                self._use(children(node), [region] * len(children(node)))
            return
        region = fold(_common, uses)
        if len(uses) > 1:
            condition = self._condition(region, uses) if identity(node) in self.fragile else None
            region.bound.append(node)
            if condition is not None:
                region = region.arm(condition, True)
                self.guarded[identity(node)] = region
        parts = children(node)
        regions = [region] * len(parts)
        if called(node) == "prim.if_then_else":
            regions[1:] = [region.arm(parts[0], True), region.arm(parts[0], False)]
            self.arms[identity(node), True], self.arms[identity(node), False] = regions[1:]
        self._use(parts, regions)

    def _use(self, parts: Sequence[Expr], regions: Sequence[_Region]) -> None:
        for part, region in zip(parts, regions, strict=True):
            if identity(part) not in self.variables:
                self.uses.setdefault(identity(part), []).append(region)

    def _condition(self, region: _Region, uses: Iterable[_Region]) -> Expr | None:
        """Return when a use happens, given that `region` is evaluated; None if always."""
        happens = {id(use) for use in uses}
        below: dict[int, list[_Region]] = {}
        for use in uses:
            inner = use
            while inner is not region:
                assert inner.parent is not None
                siblings = below.setdefault(id(inner.parent), [])
                if not any(sibling is inner for sibling in siblings):
                    siblings.append(inner)
                inner = inner.parent
        return _when(region, below, happens)

    def _inside(self, region: _Region, node: Expr) -> Expr:
        """Return a node in terms of variables, with those of its region bound around it."""
        bindings = []
        for shared_node in reversed(region.bound):
            value = self._bound_value(shared_node)
            var = tirx.Var(f"v{len(self.variables)}", str(shared_node.ty))
            self.variables[identity(shared_node)] = var
            bindings.append((var, value))
        body = self._built(node)
        for var, value in reversed(bindings):
            body = prim.Let(var, value, body)
        return body

    def _bound_value(self, node: Expr) -> Expr:
        region = self.guarded.get(identity(node))
        if region is None:
            return self._built(node)
        # The condition is made of nodes that are bound further in: it gets its own bindings.
        condition = shared(region.condition, self.variables)
        return tirx.if_then_else(condition, self._inside(region, node), tirx.const(0, str(node.ty)))

    def _built(self, root: Expr) -> Expr:
        """Return a node in terms of the variables of what is bound below it."""
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
            parts = children(node)
            is_choice = called(node) == "prim.if_then_else"
            here = parts[:1] if is_choice else parts
            if not expanded:
                stack.append((node, True))
                stack.extend((part, False) for part in here)
                continue
            done = [results[identity(part)] for part in here]
            if is_choice:
                done += [
                    self._inside(self.arms[key, True], parts[1]),
                    self._inside(self.arms[key, False], parts[2]),
                ]
            results[key] = rebuilt(node, done)
        return results[identity(root)]


def _is_cheap(node: Expr) -> bool:
    """Return whether a node is not worth a variable.

    Comparisons are not: TVM's analysis contradicts itself on a boolean variable that it meets both
    in a condition and in what the condition decides.
    """
    return isinstance(node, _CHEAP)


def _common(a: _Region, b: _Region) -> _Region:
    """Return the innermost region that contains both."""
    while a is not b:
        if a.depth >= b.depth:
            assert a.parent is not None
            a = a.parent
        else:
            assert b.parent is not None
            b = b.parent
    return a


def _when(region: _Region, below: dict[int, list[_Region]], happens: set[int]) -> Expr | None:
    """Return when something happens in a region or in its parts; None if always."""
    if id(region) in happens:
        return None
    arms = [(arm, _when(arm, below, happens)) for arm in below[id(region)]]
    always = {(identity(arm.condition), arm.wanted) for arm, when in arms if when is None}
    if any((condition, not wanted) in always for condition, wanted in always):
        return None
    cases = []
    for arm, when in arms:
        if when is None and arm.wanted:
            cases.append(arm.condition)
            continue
        inside = tirx.const(True) if when is None else when
        outside = tirx.const(False)
        # Nested, not joined by `and`: the inner condition may read what the outer one protects.
        branches = (inside, outside) if arm.wanted else (outside, inside)
        cases.append(tirx.if_then_else(arm.condition, *branches))
    return fold(tirx.any, cases)
