"""Where the nodes of an expression are evaluated, and under which conditions.

A conditional evaluates one of its arms, so what is only used in an arm is protected by its
condition: a load there may be outside its tensor otherwise. What is used in several arms is
evaluated where all of them see it, under the condition that one of them is taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import reduce as fold

import tvm
from tvm import tirx
from tvm.ir import prim

from .linear_system import Axis
from .walk import Expr, called, children, identity, is_load, loaded, postorder

_CHEAP = (
    prim.IntImm, prim.FloatImm, tvm.ir.Var, tvm.ir.StringImm,
    prim.EQ, prim.NE, prim.LT, prim.LE, prim.GT, prim.GE, prim.And, prim.Or, prim.Not,
)  # fmt: skip

_CONSTANT = prim.IntImm | prim.FloatImm
_DIVISIONS = prim.Div | prim.Mod | prim.FloorDiv | prim.FloorMod


@dataclass(eq=False)
class Region:
    """A part of an expression that is evaluated as a whole or not at all.

    Attributes
    ----------
    parent : Region or None
    condition : Expr or None
        When it is, given that the parent is; evaluated in the parent.
    wanted : bool
        Which way the condition must go.
    depth : int
        Number of regions around it.
    bound : list of Expr
        Nodes used more than once that are evaluated here, each after those that use it.
    """

    parent: Region | None = None
    condition: Expr | None = None
    wanted: bool = True
    depth: int = 0
    bound: list[Expr] = field(default_factory=list)

    def arm(self, condition: Expr, wanted: bool) -> Region:
        """Return the part of this region that a condition decides on."""
        return Region(self, condition, wanted, self.depth + 1)


class Placement:
    """The region in which each node of an expression is evaluated.

    Attributes
    ----------
    nodes : list of Expr
        All nodes, each once, its parts before it.
    parts : dict
        The `children` of each node, by its identity.
    top : Region
        What is evaluated whenever the roots are.
    arms : dict
        The two regions of a conditional, by its identity and the way its condition goes.
    regions : dict
        By the identity of a node.
    guarded : dict
        The same for the nodes that are protected by more than the region in which they are bound:
        the region under the condition that one of their uses happens.
    uses : dict
        How often each node is used, by its identity.
    shared : set of int
        The identities of nodes that are worth a variable: used more than once, and not cheap.
    fragile : set of int
        The identities of nodes that must not be evaluated where the expression does not do so.
    """

    def __init__(
        self,
        roots: Sequence[Expr],
        known: Mapping[int, Expr] | None = None,
        axes: Sequence[Axis] = (),
    ):
        known = known or {}
        self.known = known
        self.axes = axes
        self.analyzer = tvm.sym.Analyzer()
        for axis in axes:
            self.analyzer.bind(axis.var, tvm.ir.Range.from_min_extent(axis.low, axis.extent))
        self.parts: dict[int, list[Expr]] = {}
        self.nodes = [n for n in postorder(*roots, parts=self._parts) if identity(n) not in known]
        self.top = Region()
        self.arms: dict[tuple[int, bool], Region] = {}
        self.regions: dict[int, Region] = {}
        self.guarded: dict[int, Region] = {}
        self.uses: dict[int, int] = {}
        self.shared: set[int] = set()
        with ExitStack() as around:
            for condition in _outermost(roots) if axes else []:
                around.enter_context(self.analyzer.constraint_scope(condition))
            self.fragile = self._fragile()
        self._used_in: dict[int, list[Region]] = {}
        self._use(roots, [self.top] * len(roots))
        for node in reversed(self.nodes):
            self._place(node)

    def _parts(self, node: Expr) -> list[Expr]:
        parts = self.parts[identity(node)] = children(node)
        return parts

    def _fragile(self) -> set[int]:
        fragile: set[int] = set()
        for node in self.nodes:
            if (
                (is_load(node) and not self._always_inside(node))
                or (isinstance(node, _DIVISIONS) and not isinstance(node.b, prim.IntImm))
                or any(identity(part) in fragile for part in self.parts[identity(node)])
            ):
                fragile.add(identity(node))
        return fragile

    def _always_inside(self, load: Expr) -> bool:
        """Return whether a load is inside its tensor wherever the roots' own guards hold."""
        tensor, indices = loaded(load)
        if any(map(is_load, postorder(*indices))):
            return False  # TVM's analysis fails on loads, which it cannot hash
        return bool(self.axes) and all(
            self.analyzer.can_prove(index >= 0) and self.analyzer.can_prove(index < extent)
            for index, extent in zip(indices, tensor.shape, strict=True)
        )

    def _place(self, node: Expr) -> None:
        """Decide where a node is evaluated; all its users are decided on already."""
        key = identity(node)
        uses = self._used_in.pop(key, None)
        if uses is None:
            return  # only below what is known
        parts = self.parts[key]
        self.uses[key] = len(uses)
        region = self.regions[key] = fold(_common, uses)
        if isinstance(node, _CHEAP):
            for use in uses:
                self._use(parts, [use] * len(parts))
            return
        if len(uses) > 1:
            self.shared.add(key)
            region.bound.append(node)
            condition = _happening(region, uses) if key in self.fragile else None
            if condition is not None:
                region = self.guarded[key] = region.arm(condition, True)
        regions = [region] * len(parts)
        if called(node) == "prim.if_then_else":
            regions[1:] = [region.arm(parts[0], True), region.arm(parts[0], False)]
            self.arms[key, True], self.arms[key, False] = regions[1:]
        self._use(parts, regions)

    def _use(self, parts: Sequence[Expr], regions: Sequence[Region]) -> None:
        for part, region in zip(parts, regions, strict=True):
            if identity(part) not in self.known:
                self._used_in.setdefault(identity(part), []).append(region)


def _outermost(roots: Sequence[Expr]) -> list[Expr]:
    """Return the conditions on loops alone inside which all of an expression is, else a constant.

    No load inside is ever moved out of them.
    """
    conditions: list[Expr] = []
    (node, *more) = roots
    while not more and called(node) == "prim.if_then_else":
        condition, node, otherwise = node.args
        if not isinstance(otherwise, _CONSTANT) or any(map(is_load, postorder(condition))):
            break
        conditions.append(condition)
    return conditions


def _common(a: Region, b: Region) -> Region:
    """Return the innermost region that contains both."""
    while a is not b:
        if a.depth >= b.depth:
            assert a.parent is not None
            a = a.parent
        else:
            assert b.parent is not None
            b = b.parent
    return a


def _happening(region: Region, uses: Sequence[Region]) -> Expr | None:
    """Return when a use happens, given that `region` is evaluated; None if always."""
    happens = {id(use) for use in uses}
    arms: dict[int, list[Region]] = {}
    for use in uses:
        inner = use
        while inner is not region:
            assert inner.parent is not None
            siblings = arms.setdefault(id(inner.parent), [])
            if any(sibling is inner for sibling in siblings):
                break
            siblings.append(inner)
            inner = inner.parent
    return _when(region, arms, happens)


def _when(region: Region, arms: Mapping[int, Sequence[Region]], happens: set[int]) -> Expr | None:
    """Return when something happens in a region or in its arms; None if always."""
    inside: dict[int, Expr | None] = {}
    for part in _inner_first(region, arms, happens):
        inside[id(part)] = None if id(part) in happens else _any_arm(arms[id(part)], inside)
    return inside[id(region)]


def _inner_first(
    region: Region, arms: Mapping[int, Sequence[Region]], happens: set[int]
) -> list[Region]:
    """Return a region and the arms in it on which something depends, the inner ones first."""
    order, stack = [], [region]
    while stack:
        part = stack.pop()
        order.append(part)
        if id(part) not in happens:
            stack.extend(arms[id(part)])
    return order[::-1]


def _any_arm(arms: Sequence[Region], inside: Mapping[int, Expr | None]) -> Expr | None:
    """Return when one of some arms is taken and something happens inside it; None if always."""
    always = {(identity(arm.condition), arm.wanted) for arm in arms if inside[id(arm)] is None}
    if any((condition, not wanted) in always for condition, wanted in always):
        return None
    cases = []
    for arm in arms:
        when = inside[id(arm)]
        if when is None and arm.wanted:
            cases.append(arm.condition)
            continue
        holds = tirx.const(True) if when is None else when
        fails = tirx.const(False)
        # Nested, not joined by `and`: the inner condition may read what the outer one protects.
        branches = (holds, fails) if arm.wanted else (fails, holds)
        cases.append(tirx.if_then_else(arm.condition, *branches))
    return _any(cases)


def _any(cases: Sequence[Expr]) -> Expr:
    """Return whether any of some conditions holds, as a shallow tree."""
    if len(cases) == 1:
        return cases[0]
    middle = len(cases) // 2
    return tirx.any(_any(cases[:middle]), _any(cases[middle:]))
