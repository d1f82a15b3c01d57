"""Shared subexpressions computed once: bindings by `Let`, each where it is safe to evaluate.

TVM compiles an expression as the tree that it prints as; what is shared must be bound to a
variable, or it is computed again for every use, and for uses of uses exponentially often.

A conditional evaluates one of its arms, so what is used in an arm alone is protected by its
condition: a load there may be outside its tensor otherwise, and a division by zero. A binding
stands where all uses see it (`Placement`). If that is outside a condition that protected them, and
what is bound is `fragile`, it gets the condition under which one of the uses happens: a load stays
guarded.

Conditions come before what they protect (`order_conditions_first`): a part that several arms share
can then use what the conditions were computed from. If they came later, that would be computed
twice, with all the conditions in it, and theirs.

Comparisons are not bound: TVM's analysis contradicts itself on a boolean variable that it meets
both in a condition and in what the condition decides.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Container, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import reduce as fold
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import prim

from .backprop import is_float
from .guarded import all_of, chosen, either
from .indices.linear_system import Axis, analyzer_of
from .value_numbering import Classes, Merged
from .walk import (
    Expr,
    Graph,
    Recursion,
    children,
    choice_of,
    contain,
    graph_of,
    identity,
    is_conditional,
    is_load,
    is_tree,
    loaded,
    reads,
    rebuilt,
    substituted,
    transformed,
    unrolled,
)

Building = Generator[Any, Any, Expr | None]
"""A recursion without Python's stack (see `walk.unrolled`)."""

_CHEAP = (
    prim.IntImm, prim.FloatImm, tvm.ir.Var, tvm.ir.StringImm,
    prim.EQ, prim.NE, prim.LT, prim.LE, prim.GT, prim.GE, prim.And, prim.Or, prim.Not,
)  # fmt: skip

_NONE: frozenset[int] = frozenset()

_MAX_RECHECKED_LOADS = 8
"""More loads are not looked at again for each condition that may protect them."""

_CONSTANT = prim.IntImm | prim.FloatImm
_DIVISIONS = prim.Div | prim.Mod | prim.FloorDiv | prim.FloorMod


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


# --- where each part is evaluated ---


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


class Conditions:
    """Conditions known by the cases of which one must hold: equal ones are one."""

    def __init__(self) -> None:
        self._classes = Classes()
        self._known: dict[frozenset[int], Expr] = {}

    def cases(self, condition: Expr) -> frozenset[int]:
        """The numbers of a condition's cases."""
        return frozenset(self._numbered([condition]))

    def chosen(self, condition: Expr, holds: Sequence[Expr | bool]) -> Expr | None:
        """When what a condition chooses of two holds, as a condition; None for always."""
        first, second = holds
        if isinstance(first, bool) or isinstance(second, bool):
            return chosen(condition, holds)
        return first if self.cases(first) == self.cases(second) else chosen(condition, holds)

    def either(self, conditions: Sequence[Expr]) -> Expr:
        """The condition that any of some holds."""
        cases = self._numbered(conditions)
        return self._known.setdefault(frozenset(cases), either(list(cases.values())))

    def _numbered(self, conditions: Sequence[Expr]) -> dict[int, Expr]:
        cases: dict[int, Expr] = {}
        stack = list(reversed(conditions))
        while stack:
            condition = stack.pop()
            if isinstance(condition, prim.Or):
                stack += [condition.b, condition.a]
            else:
                cases.setdefault(self._classes.number(condition), condition)
        return cases


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


# --- conditions before what they protect ---


def order_conditions_first(graph: Graph, fragile: Container[int]) -> Graph:
    """A graph such that nodes come behind the conditions that protect them.

    Where a condition and what it protects need one another, by way of other conditions, some come
    later all the same. Otherwise the order stays.

    Parameters
    ----------
    graph : Graph
    fragile : container of int
        The identities of nodes that are protected; of these, the ones used more than once matter.
    """
    positions = {identity(node): position for position, (node, _) in enumerate(graph)}
    behind = {
        position: set(deciding) for position, deciding in _deciding(graph, positions, fragile)
    }
    if all(max(deciding) < position for position, deciding in behind.items()):
        return graph
    needed = [{positions[identity(part)] for part in parts} for _, parts in graph]
    return [graph[position] for position in _topological_order(needed, behind)]


def _deciding(
    graph: Graph, positions: dict[int, int], fragile: Container[int]
) -> Iterator[tuple[int, list[int]]]:
    """Yield the places of protected nodes, with those of the conditions around any of their uses.

    Conditions that are made of the node itself are left out. Sets of conditions are integers, of
    one bit each.
    """
    uses = Counter(identity(part) for _, parts in graph for part in parts)
    numbers: dict[int, int] = {}
    # The conditions around any use of each node, and those that it is a part of.
    around, inside = [0] * len(graph), [0] * len(graph)
    for position in reversed(range(len(graph))):
        node, parts = graph[position]
        below = [around[position]] * len(parts)
        if parts and is_conditional(node):
            for arm, wanted in ((1, True), (2, False)):
                for condition, _ in all_of(parts[0], wanted):
                    # Below what a variable holds already, the graph ends: that is evaluated.
                    if identity(condition) in positions:
                        number = numbers.setdefault(positions[identity(condition)], len(numbers))
                        below[arm] |= 1 << number
        within = inside[position] | (1 << numbers[position] if position in numbers else 0)
        for part, outer in zip(parts, below, strict=True):
            around[positions[identity(part)]] |= outer
            inside[positions[identity(part)]] |= within
        key = identity(node)
        protecting = around[position] & ~within
        if protecting and uses[key] > 1 and key in fragile:
            yield position, [c for c, number in numbers.items() if protecting >> number & 1]


def _topological_order(needed: list[set[int]], behind: dict[int, set[int]]) -> Iterator[int]:
    """Yield places, each behind those needed, and behind others if that can be; else in order."""
    missing_parts = [len(parts) for parts in needed]
    missing_conditions = [len(behind.get(position, ())) for position in range(len(needed))]
    users: list[list[int]] = [[] for _ in needed]
    waiting: list[list[int]] = [[] for _ in needed]
    for position, parts in enumerate(needed):
        for part in parts:
            users[part].append(position)
        for condition in behind.get(position, ()):
            waiting[condition].append(position)
    # Heaps: of several positions, the first in the old order goes ahead.
    possible = [position for position, count in enumerate(missing_parts) if not count]
    ready = [position for position in possible if not missing_conditions[position]]
    done: set[int] = set()
    while possible:
        # Where conditions need what they protect, the first node that can go ahead does.
        position = heapq.heappop(ready or possible)
        # What is ready is among the possible ones, too, and comes out twice.
        if position in done:
            continue
        done.add(position)
        yield position
        for user in users[position]:
            missing_parts[user] -= 1
            if not missing_parts[user]:
                heapq.heappush(possible, user)
        for follower in waiting[position]:
            missing_conditions[follower] -= 1
        for follower in (*users[position], *waiting[position]):
            if not missing_parts[follower] and not missing_conditions[follower]:
                heapq.heappush(ready, follower)


# --- what must not be evaluated elsewhere ---


def fragile(
    roots: Sequence[Expr],
    nodes: Sequence[Expr],
    parts: Mapping[int, Sequence[Expr]],
    axes: Sequence[Axis] | None = None,
) -> set[int]:
    """The identities of nodes with something dangerous in them, not protected there.

    Parameters
    ----------
    roots : sequence of Expr
    nodes : sequence of Expr
        All nodes, each once, its parts before it.
    parts : mapping
        The parts of each node, by its identity.
    axes : sequence of Axis, optional
        The loops around the roots; without them nothing is proved to be harmless.
    """
    if not any(map(is_conditional, nodes)):
        return set()  # nothing is protected
    if axes is None:
        exposed = _Exposure(None).of(nodes, parts)
    else:
        analyzer = analyzer_of(axes)
        _bind_indices(analyzer, nodes)
        with ExitStack() as constraints:
            for condition in _outermost(roots):
                constraints.enter_context(analyzer.constraint_scope(condition))
            exposed = _Exposure(analyzer).of(nodes, parts)
    return {key for key, dangers in exposed.items() if dangers}


def _bind_indices(analyzer: tvm.sym.Analyzer, nodes: Sequence[Expr]) -> None:
    """Tell an analyzer what indices are bound to; `nodes` are in postorder."""
    # Outer bindings first: an inner one may be of their variables.
    for node in reversed(nodes):
        if isinstance(node, prim.Let) and not is_float(node.value.ty) and not reads(node.value):
            analyzer.bind(node.var, node.value)


class _Exposure:
    """What is dangerous in the nodes of an expression, where `analyzer` knows about its loops."""

    def __init__(self, analyzer: tvm.sym.Analyzer | None):
        self.analyzer = analyzer

    def of(
        self, nodes: Sequence[Expr], parts: Mapping[int, Sequence[Expr]]
    ) -> dict[int, frozenset[int]]:
        """What is dangerous in each node and not protected there, by the identity of the node."""
        exposed: dict[int, frozenset[int]] = {}
        dangers: dict[int, Expr] = {}
        for node in nodes:
            key = identity(node)
            below = [exposed.get(identity(part), _NONE) for part in parts[key]]
            if is_conditional(node):
                condition = parts[key][0]
                below[1] = self._unproven(below[1], dangers, condition)
                below[2] = self._unproven(below[2], dangers, tirx.Not(condition))
            if _is_dangerous(node) and not self._always_inside(node):
                dangers[key] = node
                below.append(frozenset((key,)))
            exposed[key] = _union(below)
        return exposed

    def _unproven(
        self, exposed: frozenset[int], dangers: Mapping[int, Expr], condition: Expr
    ) -> frozenset[int]:
        """The parts that are still fragile where a condition holds."""
        if not exposed or self.analyzer is None or len(exposed) > _MAX_RECHECKED_LOADS:
            return exposed
        # TVM's analyzer fails on loads, and floats bound no index.
        if contain([condition], lambda node: is_load(node) or is_float(node.ty)):
            return exposed
        with self.analyzer.constraint_scope(condition):
            return frozenset(k for k in exposed if not self._always_inside(dangers[k]))

    def _always_inside(self, node: Expr) -> bool:
        """Whether a load is inside its tensor wherever what the analyzer knows holds."""
        if self.analyzer is None or not is_load(node):
            return False
        tensor, indices = loaded(node)
        if reads(*indices):
            return False  # TVM's analysis fails on loads, which it cannot hash
        return all(
            self._within(index, extent) for index, extent in zip(indices, tensor.shape, strict=True)
        )

    def _within(self, index: Expr, extent: Expr) -> bool:
        """Whether an index is inside; of one that is chosen, where each value is chosen."""
        assert self.analyzer is not None
        if choice_of(index) is None:
            proven = (self.analyzer.can_prove(bound) for bound in (index >= 0, index < extent))
            return all(proven)
        condition, *values = children(transformed(index, self._remainder))
        for holds, value in zip((condition, tirx.Not(condition)), values, strict=True):
            with self.analyzer.constraint_scope(self.analyzer.simplify(holds)):
                if not self._within(value, extent):
                    return False
        return True

    def _remainder(self, node: Expr) -> Expr:
        """A variable in the range of a remainder, in its place; any other node as it is.

        The analyzer writes a remainder in many ways, and does not know them for the same.
        """
        if not isinstance(node, prim.FloorMod) or not isinstance(node.b, prim.IntImm):
            return node
        if node.b.value <= 0:
            return node
        assert self.analyzer is not None
        remainder = tirx.Var("remainder", str(node.ty))
        self.analyzer.bind(remainder, tvm.ir.Range(tirx.const(0, str(node.ty)), node.b))
        return remainder


def _is_dangerous(node: Expr) -> bool:
    """Whether a node may fail: loads, and divisions of integers but by constants."""
    if isinstance(node, _DIVISIONS):
        return not is_float(node.ty) and not isinstance(node.b, prim.IntImm)
    return is_load(node)


def _union(sets: Sequence[frozenset[int]]) -> frozenset[int]:
    """The union of some sets; one of them if it contains the others."""
    largest = max(sets, key=len, default=_NONE)
    return largest if all(each <= largest for each in sets) else largest.union(*sets)


def _outermost(roots: Sequence[Expr]) -> list[Expr]:
    """The conditions on loops alone inside which all of an expression is, else a constant.

    No load inside is ever moved out of them.
    """
    conditions: list[Expr] = []
    (node, *others) = roots
    # Conditions of one of several roots do not protect the others.
    while not others and is_conditional(node):
        condition, node, otherwise = node.args
        if not isinstance(otherwise, _CONSTANT) or reads(condition):
            break
        conditions.append(condition)
    return conditions
