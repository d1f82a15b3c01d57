"""Where each part of an expression is evaluated, and under which condition."""

from __future__ import annotations

from collections.abc import Container, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce as fold
from typing import Any

import tvm
from tvm.ir import prim

from ..guarded import all_of
from ..indices.linear_system import Axis
from ..walk import Expr, Graph, children, identity, is_conditional, unrolled
from .conditions import Conditions
from .exposure import fragile
from .order import order_conditions_first

Building = Generator[Any, Any, Expr | None]
"""A recursion without Python's stack (see `walk.unrolled`)."""

_CHEAP = (
    prim.IntImm, prim.FloatImm, tvm.ir.Var, tvm.ir.StringImm,
    prim.EQ, prim.NE, prim.LT, prim.LE, prim.GT, prim.GE, prim.And, prim.Or, prim.Not,
)  # fmt: skip


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
    cases : frozenset of int
        The condition as numbers of conditions of which one must hold.
    bound : list of Expr
        Nodes used more than once that are evaluated here, each after those that use it.
    """

    parent: Region | None = None
    condition: Expr | None = None
    wanted: bool = True
    depth: int = 0
    cases: frozenset[int] = frozenset()
    bound: list[Expr] = field(default_factory=list)

    def arm(self, condition: Expr, wanted: bool, cases: frozenset[int]) -> Region:
        """The part of this region that a condition decides on; itself if it is all of it."""
        around: Region | None = self
        while around is not None:
            # Where one of fewer cases holds, one of these does; where all of more fail, these do.
            implied = around.cases <= cases if wanted else cases <= around.cases
            if around.condition is not None and around.wanted == wanted and implied:
                return self
            around = around.parent
        return Region(self, condition, wanted, self.depth + 1, cases)


class Placement:
    """The region in which each node of an expression is evaluated.

    Parameters
    ----------
    roots : sequence of Expr
    graph : Graph
        Of them.
    evaluated : container of int
        The identities of nodes that are evaluated already, elsewhere.
    axes : sequence of Axis, optional
        The loops around the roots.

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
    decided : set of int
        The identities of conditionals whose way is known in their region. Their only part is what
        they choose.
    guarded : dict
        The same for the nodes that are protected by more than the region in which they are bound:
        the region under the condition that one of their uses happens.
    guards : dict
        That condition, by the identities of the same nodes.
    shared : set of int
        The identities of nodes that are worth a variable: used more than once, and not cheap.
    fragile : set of int
        The identities of nodes that must not be evaluated where the expression does not do so.
    """

    def __init__(
        self,
        roots: Sequence[Expr],
        graph: Graph,
        evaluated: Container[int] = (),
        axes: Sequence[Axis] | None = None,
    ):
        self.evaluated = evaluated
        self._conditions = Conditions()
        self.nodes = self._unevaluated(graph)
        self.parts = {identity(node): parts for node, parts in graph}
        self.top = Region()
        self.arms: dict[tuple[int, bool], Region] = {}
        self.regions: dict[int, Region] = {}
        self.decided: set[int] = set()
        self.guarded: dict[int, Region] = {}
        self.guards: dict[int, Expr] = {}
        self.shared: set[int] = set()
        self.fragile = fragile(roots, self.nodes, self.parts, axes)
        if self.fragile:
            self.nodes = self._unevaluated(order_conditions_first(graph, self.fragile))
        self._used_in: dict[int, list[Region]] = {}
        self._use(roots, [self.top] * len(roots))
        # What uses a node comes before it here: all its uses are known when it is placed.
        for node in reversed(self.nodes):
            self._place(node)

    def _unevaluated(self, graph: Graph) -> list[Expr]:
        return [node for node, _ in graph if identity(node) not in self.evaluated]

    def _place(self, node: Expr) -> None:
        """Decide where a node is evaluated; all its users are decided on already."""
        key = identity(node)
        uses = self._used_in.pop(key, None)
        if uses is None:
            return  # only below what is known
        parts = self.parts[key]
        region = self.regions[key] = uses[0] if len(uses) == 1 else fold(_common, uses)
        if is_cheap(node):
            # It is written out in each use, and there its parts are used.
            for use in uses:
                self._use(parts, [use] * len(parts))
            return
        if len(uses) > 1:
            self.shared.add(key)
            region.bound.append(node)
            condition = self._happening(region, uses) if key in self.fragile else None
            if condition is not None:
                # What protects its uses is not around it here: it asks for one of them to happen.
                inner = self._arm(region, condition, True)
                if inner is not region:
                    self._use_condition(condition, region)
                    self.guards[key] = condition
                    region = self.guarded[key] = inner
        if is_conditional(node):
            self._place_choice(key, region)
        else:
            self._use(parts, [region] * len(parts))

    def _place_choice(self, key: int, region: Region) -> None:
        """Decide where the parts of a conditional are evaluated, given where itself is."""
        condition, *branches = self.parts[key]
        arms = [self._arm(region, condition, wanted) for wanted in (True, False)]
        for branch, arm in zip(branches, arms, strict=True):
            if arm is region:
                # The way is known here: neither the condition nor the other branch is evaluated.
                self.decided.add(key)
                self.parts[key] = [branch]
                self._use([branch], [region])
                return
        self.arms[key, True], self.arms[key, False] = arms
        self._use(self.parts[key], [region, *arms])

    def _use_condition(self, root: Expr, region: Region) -> None:
        """Note that what a condition is made of is evaluated in a region, too."""
        stack = [(root, region)]
        seen: dict[tuple[int, int], Region] = {}  # with the region: alone, its id may be reused
        while stack:
            node, around = stack.pop()
            if (identity(node), id(around)) in seen:
                continue
            seen[identity(node), id(around)] = around
            if identity(node) in self.parts:
                self._use([node], [around])
                continue
            parts = children(node)
            regions = [around] * len(parts)
            if is_conditional(node):
                regions[1:] = [self._arm(around, parts[0], wanted) for wanted in (True, False)]
            stack.extend(zip(parts, regions, strict=True))

    def _arm(self, region: Region, condition: Expr, wanted: bool) -> Region:
        """The innermost of the regions in which all holds that a condition consists of."""
        for step, way in all_of(condition, wanted):
            region = region.arm(step, way, self._conditions.cases(step))
        return region

    def _happening(self, region: Region, uses: Sequence[Region]) -> Expr | None:
        """The condition that a use happens, given that `region` is evaluated; None if always."""
        happens = {id(use) for use in uses}
        arms: dict[int, list[Region]] = {}
        seen = {id(region)}
        # The regions on the way to the uses, by the regions that they are arms of.
        for use in uses:
            inner = use
            while id(inner) not in seen:
                seen.add(id(inner))
                assert inner.parent is not None
                arms.setdefault(id(inner.parent), []).append(inner)
                inner = inner.parent
        return unrolled(self._when([region], arms, happens))

    def _when(
        self, same: Sequence[Region], arms: Mapping[int, Sequence[Region]], happens: set[int]
    ) -> Building:
        """The condition that something happens in regions evaluated together, or in their arms.

        None stands for always.
        """
        if any(id(region) in happens for region in same):
            return None
        choices: dict[frozenset[int], dict[bool, list[Region]]] = {}
        for region in same:
            for arm in arms[id(region)]:
                choices.setdefault(arm.cases, {True: [], False: []})[arm.wanted].append(arm)
        cases = []
        for ways in choices.values():
            holds: list[Expr | bool] = []
            for regions in ways.values():
                when = (yield self._when(regions, arms, happens)) if regions else False
                holds.append(True if when is None else when)
            condition = (ways[True] or ways[False])[0].condition
            cases.append(self._conditions.chosen(condition, holds))
        return None if any(case is None for case in cases) else self._conditions.either(cases)

    def _use(self, parts: Sequence[Expr], regions: Sequence[Region]) -> None:
        for key, region in zip(map(identity, parts), regions, strict=True):
            if key not in self.evaluated:
                self._used_in.setdefault(key, []).append(region)


def is_cheap(node: Expr) -> bool:
    """Whether a node is better evaluated for each use than kept in a variable."""
    return type(node) in _CHEAP


def _common(a: Region, b: Region) -> Region:
    """The innermost region that contains both."""
    while a is not b:
        if a.depth >= b.depth:
            assert a.parent is not None
            a = a.parent
        else:
            assert b.parent is not None
            b = b.parent
    return a
