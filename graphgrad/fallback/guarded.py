"""Values that count only under conditions, and sums of them.

A condition never becomes a factor: it stands around the value, so that what is not needed is not
evaluated. In a sum, conditions that several terms begin with stand around all of these at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.ir import prim

from .constants import is_constant
from .walk import Expr, Recursion, children, dtype_name, identity, is_conditional, unrolled

Guard = tuple[Expr, bool]
"""A condition, and which way it must go."""

GuardsKey = tuple[tuple[int, bool], ...]


@dataclass(frozen=True)
class Guarded:
    """A value that counts only where all its guards hold, outermost first; else it is 0."""

    guards: tuple[Guard, ...]
    value: Expr

    def applied(self) -> Expr:
        """The value inside its conditions."""
        if not self.guards:
            return self.value
        return within(self.guards, self.value, tirx.const(0.0, dtype_name(self.value.ty)))


class GuardedSum:
    """A sum of guarded values; those under the same guards become one term."""

    def __init__(self) -> None:
        self._parts: dict[GuardsKey, list[Guarded]] = {}

    def add(self, term: Guarded) -> None:
        """Add a term."""
        key = tuple([(identity(condition), wanted) for condition, wanted in term.guards])
        self._parts.setdefault(key, []).append(term)

    def terms(self) -> list[Guarded]:
        """The terms, each under other guards."""
        return [
            Guarded(same[0].guards, balanced([term.value for term in same]))
            if len(same) > 1
            else same[0]
            for same in self._parts.values()
        ]


def all_of(condition: Expr, wanted: bool) -> list[Guard]:
    """The conditions, one inside the other, under which a choice goes one way."""
    guards: list[Guard] = []
    stack = [(condition, wanted)]
    while stack:
        node, way = stack.pop()
        if is_conditional(node):
            first, *branches = children(node)
            # `if c then x else False` goes True where c holds, and then x: its other branch cannot.
            impossible = [is_constant(branch, not way) for branch in branches]
            if any(impossible):
                # What is pushed last comes out first: the condition that stands outside.
                stack += [(branches[impossible[0]], way), (first, impossible[1])]
                continue
        if isinstance(node, prim.Not):
            stack.append((node.a, not way))
        elif isinstance(node, prim.And if way else prim.Or):
            stack += [(node.b, way), (node.a, way)]
        elif not is_constant(node, way):
            guards.append((node, way))
    return guards


def within(guards: Sequence[Guard], value: Expr, otherwise: Expr) -> Expr:
    """A value where all guards hold, outermost first: none is evaluated unless needed."""
    for condition, wanted in reversed(guards):
        branches = (value, otherwise) if wanted else (otherwise, value)
        value = tirx.if_then_else(condition, *branches)
    return value


def total(terms: Sequence[Guarded]) -> Expr:
    """A sum of terms, each inside its conditions."""
    value, _ = unrolled(_nested(terms, 0))
    return value


def joined(terms: Sequence[Guarded]) -> Guarded:
    """A sum of terms as one term, which counts where any of them does."""
    common = _common_guards(terms)
    value, counts = unrolled(_nested(terms, len(common)))
    return Guarded(common if counts is None else (*common, (counts, True)), value)


def either(conditions: Sequence[Expr]) -> Expr:
    """The condition that any of some holds, as a shallow tree."""
    if len(conditions) == 1:
        return conditions[0]
    middle = len(conditions) // 2
    return tirx.any(either(conditions[:middle]), either(conditions[middle:]))


def balanced(values: Sequence[Expr]) -> Expr:
    """The sum of some values, as a shallow tree."""
    if len(values) == 1:
        return values[0]
    # A chain would be as deep as it is long: TVM recurses, and each addition waits for the last.
    middle = len(values) // 2
    return balanced(values[:middle]) + balanced(values[middle:])


def _common_guards(terms: Sequence[Guarded]) -> tuple[Guard, ...]:
    """The guards that all terms begin with."""
    first = terms[0].guards
    count = min(len(term.guards) for term in terms)
    for depth, (condition, wanted) in enumerate(first[:count]):
        guards = (term.guards[depth] for term in terms)
        if not all(identity(c) == identity(condition) and w == wanted for c, w in guards):
            return first[:depth]
    return first[:count]


def _nested(terms: Sequence[Guarded], depth: int) -> Recursion:
    """A sum inside its conditions from some depth on, and the condition that any term counts.

    The condition is None where one always does.
    """
    # Terms that have no further guards count always here.
    values = [term.value for term in terms if len(term.guards) == depth]
    always = bool(values)
    choices: dict[int, tuple[Expr, dict[bool, list[Guarded]]]] = {}
    for term in terms:
        if len(term.guards) > depth:
            condition, wanted = term.guards[depth]
            _, ways = choices.setdefault(identity(condition), (condition, {True: [], False: []}))
            ways[wanted].append(term)
    # All terms have one dtype, so any of them gives that of the zero.
    zero = tirx.const(0.0, dtype_name(terms[0].value.ty)) if choices else None
    cases = []
    for condition, ways in choices.values():
        branches: list[Expr] = []
        holds: list[Expr | bool] = []
        for wanted in (True, False):
            if not ways[wanted]:
                branches.append(zero)
                holds.append(False)
                continue
            value, counts = yield _nested(ways[wanted], depth + 1)
            branches.append(value)
            holds.append(True if counts is None else counts)
        values.append(tirx.if_then_else(condition, *branches))
        cases.append(chosen(condition, holds))
    always = always or any(case is None for case in cases)
    return balanced(values), None if always else either(cases)


def chosen(condition: Expr, holds: Sequence[Expr | bool]) -> Expr | None:
    """When what a condition chooses of two holds, as a condition; None for always."""
    first, second = holds
    if first is True and second is True:
        return None
    if first is True and second is False:
        return condition
    branches = (tirx.const(each) if isinstance(each, bool) else each for each in holds)
    # Not joined by `and`: an inner condition may read what an outer one protects.
    return tirx.if_then_else(condition, *branches)
