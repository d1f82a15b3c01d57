"""Conditions by their cases: equal ones are one."""

from __future__ import annotations

from collections.abc import Sequence

from tvm.ir import prim

from ..guarded import chosen, either
from ..value_numbering import Classes
from ..walk import Expr


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
