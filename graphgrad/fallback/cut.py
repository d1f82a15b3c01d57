"""Deep stages cut into shallow ones, which TVM can compile.

TVM's passes recurse over expressions: a body nested some thousand levels deep overflows the stack
of the process, and the cost of compiling nested bindings grows with the square of their number.
Here parts of such a body become stages of their own, and the body reads their results.

A part is a stage over those loops only that it depends on. If it depends on the loops of a
reduction, these are among them, and what the reduction summed on the fly is saved: that takes
memory, but only a body that is too deep to be compiled at all is cut. What conditions protect in
the body they protect in the stage too; where they do not hold, the stage is 0 and is not read.

One kind of depth is left as it is: of some 20 remainders, one of the other, TVM's simplifier makes
exponentially much, however few levels that are.

What is cut off is kept small as a whole: a part that several others need is computed again by
those that it is small for, and saved once if it is not, so the work grows as the body does.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import te, tirx

from .bindings import Placement, Region, shared
from .constants import is_true
from .graph import (
    Key,
    Operation,
    all_operations,
    outputs_of,
    rebuild_reduction,
    replace_bodies,
    rewritten,
)
from .indices.linear_system import Axis
from .kinds import map_stage
from .reductions.reduce import stage_axes
from .walk import (
    Expr,
    children,
    contain,
    graph_of,
    has_more,
    identity,
    inline_lets,
    is_load,
    items,
    postorder,
    rebuilt,
)

MAX_LEVELS = 600
"""Levels of nesting that a stage may have; TVM's stack ends at some 1,400 of the costliest kind."""

_MAX_PART_LEVELS = 400
"""Levels of nesting of what is saved; the rest is for the condition under which it is needed."""

_MAX_RECOMPUTED_LEVELS = 100
"""Levels, and a sixth of the nodes, of what is computed again for each stage that needs it."""


def cut(
    tensors: Sequence[te.Tensor], kept: Mapping[Key, te.Tensor] | None = None
) -> list[te.Tensor]:
    """The same tensors from stages none of which is deeper than TVM can compile.

    Parameters
    ----------
    tensors : sequence of Tensor
    kept : mapping, optional
        Tensors that stay as they are, to themselves, by their keys.
    """
    if not any(_may_be_deep(op) for op in all_operations(tensors, kept or {})):
        return list(tensors)
    return rewritten(tensors, cut_stage, kept)


def cut_stage(op: Operation) -> list[te.Tensor] | None:
    """The outputs of a stage that is too deep, from several; None for any other stage."""
    if not _may_be_deep(op) or _has_ragged_loops(op):
        return None
    roots = [inline_lets(root) for root in _roots(op)]
    condition = roots[0] if isinstance(op.body[0], tirx.Reduce) else tirx.const(True)
    if not is_true(condition):
        # What a reduction leaves out is protected by its condition.
        roots[1:] = [tirx.if_then_else(condition, root, _zero(root)) for root in roots[1:]]
    placement = Placement(roots, graph_of(roots), axes=stage_axes(op))
    # Many nodes need not be deep.
    if _nesting(placement) <= MAX_LEVELS:
        return None
    roots = _StageParts(op, roots, placement).rest()
    if not isinstance(op.body[0], tirx.Reduce):
        return outputs_of(replace_bodies(op, roots))
    components = rebuild_reduction(op.body[0], roots[1:], roots[0])
    return outputs_of(replace_bodies(op, [components[int(b.value_index)] for b in op.body]))


def _may_be_deep(op: Operation) -> bool:
    """Whether a stage has so many nodes that it may be too deep."""
    return isinstance(op, te.ComputeOp) and has_more(_roots(op), MAX_LEVELS)


def _nesting(placement: Placement) -> int:
    """The depth of expressions at most, when what is shared is bound around them."""
    depths: dict[int, int] = {}
    for node in placement.nodes:
        below = [depths[identity(part)] for part in placement.parts[identity(node)]]
        depths[identity(node)] = 1 + max(below, default=0)
    # Each binding nests what it is around one level deeper.
    return max(depths.values(), default=0) + len(placement.shared)


def _roots(op: Any) -> list[Expr]:
    """The expressions of a compute stage; of a reduction its condition and its sources."""
    first = op.body[0]
    return [first.condition, *first.source] if isinstance(first, tirx.Reduce) else items(op.body)


def _has_ragged_loops(op: Any) -> bool:
    """Whether a loop's bounds depend on other loops, or on what a tensor holds.

    No stage has such a shape, so nothing that depends on the loop could be saved.
    """
    loops = {identity(axis.var) for axis in [*op.axis, *op.reduce_axis]}
    bounds = [bound for axis in op.reduce_axis for bound in (axis.dom.min, axis.dom.extent)]
    return contain(bounds, lambda node: is_load(node) or identity(node) in loops)


@dataclass(frozen=True)
class _Cone:
    """What must be evaluated for a node, given what is saved.

    Attributes
    ----------
    depth : int
        Of the nodes, one below another.
    exclusive : int
        Number of the nodes that only it needs.
    bound : dict
        The shared nodes below it, each with the number of nodes that only that one needs.
    """

    depth: int
    exclusive: int
    bound: dict[int, int]

    @property
    def levels(self) -> int:
        """How deep it is nested when each shared node is bound around the rest."""
        return self.depth + len(self.bound)

    @property
    def size(self) -> int:
        """Number of nodes."""
        return self.exclusive + sum(self.bound.values())


class _StageParts:
    """The parts of a stage that become stages of their own.

    Attributes
    ----------
    cuts : dict
        The nodes whose values are saved, by their identities.
    """

    def __init__(self, op: Any, roots: Sequence[Expr], placement: Placement):
        self.op = op
        self.roots = roots
        self.placement = placement
        self.axes = {identity(axis.var): axis for axis in [*op.axis, *op.reduce_axis]}
        self.cuts: dict[int, Expr] = {}
        self.cones: dict[int, _Cone] = {}
        self.taken: dict[int, Expr | None] = {id(self.placement.top): None}
        self.guarded: dict[int, Expr] = {}
        self.bare: set[int] = set()
        self.saved: dict[int, tuple[te.Tensor, list[Any]]] = {}
        self._choose()

    def rest(self) -> list[Expr]:
        """The roots once all parts are saved."""
        for node in postorder(*self.cuts.values(), parts=self._needed):
            self._save(node)
        variables = {key: axis.var for key, axis in self.axes.items()}
        return [
            shared(
                self._reading(self._inside(root, self.saved), variables), axes=stage_axes(self.op)
            )
            for root in self.roots
        ]

    def _choose(self) -> None:
        """Decide what is cut: from the leaves up, whenever a part gets too deep."""
        for node in self.placement.nodes:
            self._visit(node)
        count = 0
        while count < len(self.cuts):
            # A part is saved under the condition in which it is needed: it must be shallow too.
            pending = list(self.cuts.values())[count:]
            count = len(self.cuts)
            for node in pending:
                self.guarded[identity(node)] = self._guard_part(node)

    def _visit(self, node: Expr) -> None:
        """Cut below a node, the deepest part first, until it is shallow; or at the node."""
        parts = self._parts(node)
        cone = self._cone(node, parts)
        while cone.levels > _MAX_PART_LEVELS:
            # To cut off a leaf, of one level, would gain nothing.
            uncut = [part for part in parts if self._levels(part) > 1]
            if not uncut:
                break
            deepest = max(uncut, key=self._levels)
            self.cuts[identity(deepest)] = deepest
            cone = self._cone(node, parts)
        self.cones[identity(node)] = cone
        key = identity(node)
        if key in self.placement.shared and (
            cone.levels > _MAX_RECOMPUTED_LEVELS or cone.size > 6 * _MAX_RECOMPUTED_LEVELS
        ):
            self.cuts[key] = node

    def _levels(self, node: Expr) -> int:
        """The levels of a node that can be cut; 0 if it is cut, or cannot be."""
        key = identity(node)
        return 0 if key in self.cuts or key in self.bare else self.cones[key].levels

    def _cone(self, node: Expr, parts: Sequence[Expr]) -> _Cone:
        depth, exclusive = 1, 1
        bound: dict[int, int] = {}
        for part in parts:
            key = identity(part)
            # Any part is one level at least: what is cut is read by a load.
            depth = max(depth, 2)
            if key in self.cuts:
                continue
            cone = self.cones[key]
            depth = max(depth, 1 + cone.depth)
            # Never changed in place: along a chain all nodes share one dictionary.
            bound = {**bound, **cone.bound} if bound else cone.bound
            if key in self.placement.shared:
                bound = {**bound, key: cone.exclusive}
            else:
                exclusive += cone.exclusive
        return _Cone(depth, exclusive, bound)

    def _guard_part(self, node: Expr) -> Expr:
        """A part as it is saved: 0 where it is not needed, if it reads what may not be."""
        key = identity(node)
        if key not in self.placement.fragile:
            return node
        region = self.placement.guarded.get(key, self.placement.regions[key])
        taken = self._taken(region)
        return node if taken is None else tirx.if_then_else(taken, node, _zero(node))

    def _taken(self, region: Region) -> Expr | None:
        """The condition under which a region is evaluated, None if it always is."""
        around: list[Region] = []
        inner: Region | None = region
        while inner is not None and id(inner) not in self.taken:
            around.append(inner)
            inner = inner.parent
        for inner in reversed(around):
            holds: Expr = inner.condition
            if not inner.wanted:
                # Not by `Not`: TVM writes `not a < b` as `b <= a`, wrongly for NaN.
                holds = tirx.if_then_else(holds, tirx.const(False), tirx.const(True))
            outer = self.taken[id(inner.parent)]
            if outer is not None:
                # Not joined by `and`: the inner condition may read what the outer one protects.
                holds = tirx.if_then_else(outer, holds, tirx.const(False))
            self.taken[id(inner)] = holds
            self._visit_condition(holds)
        return self.taken[id(region)]

    def _visit_condition(self, root: Expr) -> None:
        """Cut below a condition that is not part of the expression; not in its midst.

        There, what is outside protects what is inside.
        """

        def unvisited(node: Expr) -> Sequence[Expr]:
            return [part for part in children(node) if identity(part) not in self.cones]

        new = postorder(root, parts=unvisited) if identity(root) not in self.cones else []
        self.bare |= {identity(node) for node in new if not node.same_as(root)}
        for node in new:
            self._visit(node)

    def _parts(self, node: Expr) -> Sequence[Expr]:
        parts = self.placement.parts.get(identity(node))
        return children(node) if parts is None else parts

    def _inside(self, root: Expr, ends: Container[int], top: int | None = None) -> list[Expr]:
        """The nodes under a root down to some, by identity; `top` is not one of these."""

        def parts(node: Expr) -> Sequence[Expr]:
            key = identity(node)
            return self._parts(node) if key == top or key not in ends else []

        return postorder(root, parts=parts)

    def _needed(self, node: Expr) -> list[Expr]:
        """The parts that are saved before one, because it reads them."""
        top = identity(node)
        inside = self._inside(self.guarded[top], self.cuts, top)
        return [part for part in inside if identity(part) in self.cuts and identity(part) != top]

    def _reading(self, inside: Sequence[Expr], variables: Mapping[int, Expr]) -> Expr:
        """An expression, given by its nodes, that reads what is saved.

        Parameters
        ----------
        inside : sequence of Expr
            See `_inside`.
        variables : mapping
            What the stage's loop variables become, by their identities.
        """
        results: dict[int, Expr] = {}
        for node in inside:
            key = identity(node)
            if key in variables:
                results[key] = variables[key]
            elif key in self.saved:
                stage, axes = self.saved[key]
                results[key] = stage(*(variables[identity(a.var)] - a.dom.min for a in axes))
            else:
                before = self._parts(node)
                parts = [results[identity(part)] for part in before]
                is_decided = key in self.placement.decided
                results[key] = parts[0] if is_decided else rebuilt(node, parts, before)
        return results[identity(inside[-1])]

    def _save(self, node: Expr) -> None:
        """Make a part a stage of its own, over the loops that it depends on."""
        top = identity(node)
        # Of two parts that need one another, as a condition may need what it protects elsewhere,
        # the one saved first contains the other.
        inside = self._inside(self.guarded[top], self.saved, top)
        used = {identity(part) for part in inside}
        for key in used & self.saved.keys():
            # What is read there is read at the loops of its own stage: they are needed, too.
            used |= {identity(axis.var) for axis in self.saved[key][1]}
        axes = [axis for key, axis in self.axes.items() if key in used]

        def body(*position: Any) -> Expr:
            # A dimension counts from 0, its loop from the minimum.
            variables = {
                identity(axis.var): at + axis.dom.min
                for axis, at in zip(axes, position, strict=True)
            }
            loops = [
                Axis(at, tirx.const(0, str(at.ty)), axis.dom.extent)
                for axis, at in zip(axes, position, strict=True)
            ]
            return shared(self._reading(inside, variables), axes=loops)

        shape = tuple(axis.dom.extent for axis in axes)
        stage = map_stage(shape, body, f"{self.op.name}_part{len(self.saved)}")
        self.saved[top] = stage, axes


def _zero(node: Expr) -> Expr:
    return tirx.const(0, str(node.ty))
