"""The two operands of a contraction: what is multiplied besides goes into map stages in front.

A sum of products of two loads is what schedules are good at. A third factor, such as the mask of an
activation or a scale, belongs to one of the two operands if it varies with that one's loops only:
then the product of both is a stage of its own, computed once and not at every point of the sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import te, tirx
from tvm.ir import prim

from ..backprop import is_float
from ..bindings import shared
from ..guarded import Guard, Guarded
from ..indices.index_system import Axis
from ..indices.linear_system import analyzer_of
from ..kinds import Kind, marked
from ..walk import Expr, identity, is_load, loaded, postorder, reads, substituted
from .cost import loop_points
from .terms import factors, product


@dataclass(frozen=True)
class _Factor:
    """A factor of a term or one of its guards, and the loops that it varies with.

    Attributes
    ----------
    value : Expr or None
    guard : Guard or None
    needs : frozenset of int
        Numbers of loops.
    """

    value: Expr | None
    guard: Guard | None
    needs: frozenset[int]


def operands(
    term: Guarded, axes: Sequence[Axis], conditions: Sequence[Expr], name: str
) -> tuple[Expr, Expr] | None:
    """Two loads whose product is a term; None if it is no product of two such things.

    Parameters
    ----------
    term : Guarded
    axes : sequence of Axis
        The loops in whose variables the term is.
    conditions : sequence of Expr
        A point counts only where all hold; where not, the product may be anything.
    name : str
        Of the contraction; the stages in front are called after it.

    Returns
    -------
    pair of Expr
        Loads, each perhaps in a cast to a wider float, in the axes' variables.
    """
    return _Term(axes, conditions, name).operands(term)


def is_operand(value: Expr) -> bool:
    """Whether a value is a load, or one in a wider float, at indices that read nothing."""
    if isinstance(value, prim.Cast) and is_float(value.value.ty):
        value = value.value
    return is_load(value) and is_float(value.ty) and not reads(*loaded(value)[1])


def inside(value: Expr, analyzer: Any) -> bool:
    """Whether all loads of a value are provably inside their tensors."""
    loads = [node for node in postorder(value) if is_load(node)]
    if reads(*(index for load in loads for index in loaded(load)[1])):
        return False  # TVM's analysis does not take an index that is read
    return all(
        analyzer.can_prove(index >= 0) and analyzer.can_prove(index < extent)
        for load in loads
        for index, extent in zip(loaded(load)[1], loaded(load)[0].shape, strict=True)
    )


class _Term:
    """The loops of a term, and the stages that are made for it."""

    def __init__(self, axes: Sequence[Axis], conditions: Sequence[Expr], name: str):
        self.axes = axes
        self.number = {identity(axis.var): i for i, axis in enumerate(axes)}
        self.conditions = conditions
        self.name = name
        self.made = 0

    def operands(self, term: Guarded) -> tuple[Expr, Expr] | None:
        """The two operands of a term, None if it is no product of two."""
        conditions, values = factors(term.value)
        guards = [*term.guards, *((condition, True) for condition in conditions)]
        parts = [_Factor(value, None, self._needs(value)) for value in values]
        parts += [_Factor(None, guard, self._needs(guard[0])) for guard in guards]
        groups = self._grouped(parts)
        if groups is None:
            return None
        # What varies with no loop scales a plain sum, which can take in maps of what it reads.
        is_scaled_sum = not all(any(factor.needs for factor in group) for group in groups)
        if is_scaled_sum:
            return None
        loads = [
            self._as_load(group, frozenset().union(*(f.needs for f in parts))) for group in groups
        ]
        if loads[0] is None or loads[1] is None:
            return None
        return loads[0], loads[1]

    def _grouped(
        self, all_factors: Sequence[_Factor]
    ) -> tuple[list[_Factor], list[_Factor]] | None:
        """The factors in two groups, those of each varying with loops of one of them."""
        # Two are the operands, whatever they vary with.
        if len(all_factors) == 2:
            return [all_factors[0]], [all_factors[1]]
        loop_sets = list(dict.fromkeys(factor.needs for factor in all_factors))
        widest_sets = [
            loops for loops in loop_sets if not any(loops < other for other in loop_sets)
        ]
        if len(widest_sets) == 1:
            # One factor varies with all loops: the others are one operand if one spans them.
            if sum(factor.needs == widest_sets[0] for factor in all_factors) != 1:
                return None
            narrower = [loops for loops in loop_sets if loops != widest_sets[0]]
            widest_sets += [
                loops for loops in narrower if all(other <= loops for other in narrower)
            ]
        if len(widest_sets) != 2:
            return None
        # A factor that fits both goes where the stage has fewer points.
        ordered = sorted(widest_sets, key=self._size)
        groups: dict[frozenset[int], list[_Factor]] = {loops: [] for loops in widest_sets}
        for factor in all_factors:
            fitting = [loops for loops in ordered if factor.needs <= loops]
            groups[factor.needs if factor.needs in groups else fitting[0]].append(factor)
        return groups[widest_sets[0]], groups[widest_sets[1]]

    def _as_load(self, group: Sequence[_Factor], every: frozenset[int]) -> Expr | None:
        """The product of a group as a load: its only factor, or an element of a stage.

        None if it varies with all loops that matter: a stage would compute it no less often.
        """
        values = [factor.value for factor in group if factor.value is not None]
        guards = [factor.guard for factor in group if factor.guard is not None]
        if not values:
            return None
        if len(group) == 1 and is_operand(values[0]):
            return values[0]
        needs = frozenset().union(*(factor.needs for factor in group))
        if needs == every:
            return None
        return self._mapped(Guarded(tuple(guards), product(values)), sorted(needs))

    def _mapped(self, term: Guarded, needs: Sequence[int]) -> Expr | None:
        """An element of a stage that computes a term once for each point of some loops."""
        own_conditions = [c for c in self.conditions if self._needs(c) <= set(needs)]
        value = Guarded((*((c, True) for c in own_conditions), *term.guards), term.value).applied()
        axes = [self.axes[i] for i in needs]
        # The stage is computed also where other conditions fail: its loads must be inside there.
        if self.conditions and not self._is_safe(value, own_conditions):
            return None
        if any(self._needs(end) for axis in axes for end in (axis.low, axis.extent)):
            return None  # a loop inside another's bounds is no dimension of a tensor
        self.made += 1

        def body(*position: Any) -> Expr:
            positions = [p + axis.low for p, axis in zip(position, axes, strict=True)]
            around = [
                Axis(p, tirx.const(0, str(p.ty)), axis.extent)
                for p, axis in zip(position, axes, strict=True)
            ]
            here = substituted(value, zip([axis.var for axis in axes], positions, strict=True))
            return shared(here, axes=around)

        stage = te.compute(
            tuple(axis.extent for axis in axes),
            body,
            name=f"{self.name}_factor{self.made}",
            attrs=marked(Kind.MAP),
        )
        return stage(*(axis.var - axis.low for axis in axes))

    def _is_safe(self, value: Expr, conditions: Sequence[Expr]) -> bool:
        """Whether a value may be computed at every point that meets some conditions."""
        analyzer = analyzer_of(self.axes)
        if not conditions:
            return inside(value, analyzer)
        with analyzer.constraint_scope(tirx.all(*conditions)):
            return inside(value, analyzer)

    def _needs(self, expr: Expr) -> frozenset[int]:
        return frozenset(
            self.number[identity(node)] for node in postorder(expr) if identity(node) in self.number
        )

    def _size(self, needs: Iterable[int]) -> int:
        return loop_points(self.axes[i] for i in needs)
