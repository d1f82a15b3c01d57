"""What the combiner of a reduction does with each component of its tuples."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum, auto
from typing import Any

import tvm_ffi
from tvm.ir import prim

from ..guarded import Guard
from ..walk import Expr, called, choice_of, identity, inline_lets, postorder, substituted


class Combination(Enum):
    """How components are combined that depend on one another."""

    SUM = auto()
    LARGEST = auto()
    SMALLEST = auto()
    PRODUCT = auto()
    CHOICE = auto()
    """All components from the one side or from the other, by one condition."""
    OTHER = auto()


_SINGLE = {
    prim.Add: Combination.SUM,
    prim.Max: Combination.LARGEST,
    prim.Min: Combination.SMALLEST,
    prim.Mul: Combination.PRODUCT,
}


class Combiner:
    """A combiner of tuples.

    Attributes
    ----------
    results : list of Expr
        Components of the combination, in terms of `left` and `right`.
    left, right : list of Var
    identity : list of Expr
        What a reduction starts from.
    """

    def __init__(self, combiner: Any):
        self.left = list(combiner.lhs)
        self.right = list(combiner.rhs)
        self.results = [inline_lets(result) for result in combiner.result]
        self.identity = list(combiner.identity_element)
        self.needs = [self._read(result) for result in self.results]

    def groups(self, wanted: Iterable[int]) -> list[list[int]]:
        """The components that some depend on, in groups that do not depend on each other."""
        groups: list[set[int]] = []
        pending, seen = list(wanted), set()
        while pending:
            component = pending.pop()
            if component in seen:
                continue
            seen.add(component)
            pending.extend(self.needs[component])
            # Groups that have a component in common with this one become one with it.
            together = {component, *self.needs[component]}
            apart = [group for group in groups if not group & together]
            groups = [*apart, together.union(*(group for group in groups if group & together))]
        return sorted(sorted(group) for group in groups)

    def combination(self, group: Sequence[int]) -> Combination:
        """How the components of a group are combined."""
        if len(group) == 1:
            result = self.results[group[0]]
            single = _SINGLE.get(type(result))
            operands = {identity(self.left[group[0]]), identity(self.right[group[0]])}
            if single and {identity(result.a), identity(result.b)} == operands:
                return single
            extremum = _extremum_with_nan(result, operands) or _extremum_or_nan(result, operands)
            if extremum:
                return extremum
        return Combination.OTHER if self.choice(group) is None else Combination.CHOICE

    def choice(self, group: Sequence[int]) -> Guard | None:
        """When all components of a group are taken from the left, None if they are not."""
        choices = [self._chooses_left(i) for i in group]
        first = choices[0]
        if first is None:
            return None
        same = all(
            choice and choice[1] == first[1] and tvm_ffi.structural_equal(choice[0], first[0])
            for choice in choices
        )
        return first if same else None

    def combined(
        self, components: Sequence[int], left: Sequence[Expr], right: Sequence[Expr]
    ) -> list[Expr]:
        """Some components of a combination, given these of both sides."""
        bound = self.bound(components, left, right)
        return [substituted(self.results[i], bound) for i in components]

    def bound(
        self, components: Sequence[int], left: Sequence[Expr], right: Sequence[Expr]
    ) -> list[tuple[Any, Expr]]:
        """The values of the combiner's variables, given components of both sides."""
        return [
            *zip([self.left[i] for i in components], left, strict=True),
            *zip([self.right[i] for i in components], right, strict=True),
        ]

    def _read(self, result: Expr) -> set[int]:
        nodes = {identity(node) for node in postorder(result)}
        pairs = enumerate(zip(self.left, self.right, strict=True))
        return {i for i, (a, b) in pairs if identity(a) in nodes or identity(b) in nodes}

    def _chooses_left(self, component: int) -> Guard | None:
        """When a component is its left operand and otherwise its right one, or None."""
        choice = choice_of(self.results[component])
        if choice is None:
            return None
        condition, if_true, if_false = choice
        sides = [identity(self.left[component]), identity(self.right[component])]
        if [identity(if_true), identity(if_false)] == sides:
            return condition, True
        if [identity(if_false), identity(if_true)] == sides:
            return condition, False
        return None


def _extremum_with_nan(result: Expr, operands: set[int]) -> Combination | None:
    """The extremum that an expression is, if that is NaN where an operand is; None if it is none.

    Such as ``a > b ? a : (b >= a ? b : a + b)``: where both comparisons fail, one is NaN.

    Parameters
    ----------
    result : Expr
    operands : set of int
        The identities of both.
    """
    outer = choice_of(result)
    inner = None if outer is None else choice_of(outer[2])
    if outer is None or inner is None or not isinstance(inner[2], prim.Add):
        return None
    if {identity(inner[2].a), identity(inner[2].b)} != operands:
        return None
    # Of equal operands one has to be taken, not their sum.
    if not any(isinstance(condition, (prim.GE, prim.LE)) for condition, *_ in (outer, inner)):
        return None
    kinds = [_larger_or_smaller(condition, value) for condition, value, _ in (outer, inner)]
    chosen = {identity(outer[1]), identity(inner[1])}
    return kinds[0] if chosen == operands and kinds[0] is kinds[1] else None


def _extremum_or_nan(result: Expr, operands: set[int]) -> Combination | None:
    """The same of ``b > a or isnan(b) ? b : a``, which keeps an `a` that is NaN."""
    choice = choice_of(result)
    if choice is None or {identity(choice[1]), identity(choice[2])} != operands:
        return None
    condition, value, _ = choice
    if not isinstance(condition, prim.Or) or called(condition.b) != "tirx.isnan":
        return None
    tested = condition.b.args[0]
    tested = tested.value if isinstance(tested, prim.Cast) else tested  # bfloat16 in float32
    return _larger_or_smaller(condition.a, value) if tested.same_as(value) else None


def _larger_or_smaller(condition: Expr, value: Expr) -> Combination | None:
    """Whether a comparison says that a value is the larger of two, or the smaller; None if neither.

    Of equal ones either may be taken.
    """
    if isinstance(condition, (prim.GT, prim.GE)):
        more, less = condition.a, condition.b
    elif isinstance(condition, (prim.LT, prim.LE)):
        more, less = condition.b, condition.a
    else:
        return None
    if identity(value) == identity(more):
        return Combination.LARGEST
    return Combination.SMALLEST if identity(value) == identity(less) else None
