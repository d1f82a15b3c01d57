"""What must not be evaluated where an expression does not do so: it may fail there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import tvm
from tvm import tirx
from tvm.ir import prim

from ..backprop import is_float
from ..indices.linear_system import Axis, analyzer_of
from ..walk import (
    Expr,
    children,
    choice_of,
    contain,
    identity,
    is_conditional,
    is_load,
    loaded,
    reads,
    transformed,
)

_NONE: frozenset[int] = frozenset()

_MAX_RECHECKED_LOADS = 8
"""More loads are not looked at again for each condition that may protect them."""

_CONSTANT = prim.IntImm | prim.FloatImm
_DIVISIONS = prim.Div | prim.Mod | prim.FloorDiv | prim.FloorMod


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
