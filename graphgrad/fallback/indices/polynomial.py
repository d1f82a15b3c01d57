"""Integer forms: linear in unknowns, with coefficients that are polynomials in parameters.

Parameters are sizes that are known only at run time. Those known to be positive are what an
index map such as `i·m + j` can be taken apart by. Everything here is a Python integer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import combinations
from typing import TypeVar

Key = TypeVar("Key")

Monomial = tuple[int, ...]
"""A product of parameters, by their numbers, in order; empty for 1."""

ONE = -1
"""In place of an unknown: a term without one."""

Form = dict[tuple[int, Monomial], int]
"""A sum of terms: an integer times a monomial times an unknown, or `ONE`."""

Term = tuple[int, Monomial]
"""An integer times a monomial."""


def constant(value: int) -> Form:
    """A form without unknowns or parameters."""
    return {(ONE, ()): value} if value else {}


def value_of(form: Form) -> int | None:
    """The value of a form without unknowns and parameters, None for any other."""
    if not form:
        return 0
    return form[ONE, ()] if set(form) == {(ONE, ())} else None


def unknowns_of(form: Form) -> list[int]:
    """The unknowns of a form, in order."""
    return sorted({unknown for unknown, _ in form if unknown != ONE})


def plus(form: dict[Key, int], other: dict[Key, int], factor: int = 1) -> dict[Key, int]:
    """The sum `form` + `factor` · `other` of integer coefficients of anything."""
    total = dict(form)
    for key, coefficient in other.items():
        total[key] = total.get(key, 0) + factor * coefficient
    return {key: coefficient for key, coefficient in total.items() if coefficient}


def times(form: Form, other: Form) -> Form | None:
    """A product; None if it is not linear in the unknowns."""
    total: Form = {}
    for (unknown, monomial), coefficient in form.items():
        for (other_unknown, other_monomial), factor in other.items():
            if ONE not in (unknown, other_unknown):
                return None
            # `ONE` is below every unknown: the greater one is the unknown, if there is one.
            key = max(unknown, other_unknown), tuple(sorted(monomial + other_monomial))
            total = plus(total, {key: coefficient * factor})
    return total


def single_term(form: Form) -> Term | None:
    """The only term of a form that has no unknown and a positive coefficient, or None."""
    if len(form) != 1:
        return None
    ((unknown, monomial), coefficient) = next(iter(form.items()))
    return (coefficient, monomial) if unknown == ONE and coefficient > 0 else None


def divided(form: Form, by: Term) -> tuple[Form, Form]:
    """The q and r with form = `by` · q + r: q takes each term as far as it is divisible."""
    divisor, monomial = by
    quotient: Form = {}
    rest: Form = {}
    for (unknown, own), coefficient in form.items():
        powers = Counter(own)
        powers.subtract(monomial)
        divisible = min(powers.values(), default=0) >= 0
        # A remainder of a constant is a smaller constant; one of an unknown is no simpler.
        if divisible and (unknown == ONE or coefficient % divisor == 0):
            key = unknown, tuple(sorted(powers.elements()))
            quotient = plus(quotient, {key: coefficient // divisor})
            rest = plus(rest, {(unknown, own): coefficient % divisor})
        else:
            rest = plus(rest, {(unknown, own): coefficient})
    return quotient, rest


def is_nonnegative(form: Form, positive: Iterable[int]) -> bool:
    """Whether a form without unknowns is seen to be ≥ 0 where some parameters are ≥ 1."""
    positives = set(positive)
    shifted: Form = {}
    for (unknown, monomial), coefficient in form.items():
        if unknown != ONE or not positives.issuperset(monomial):
            return False
        # Π p = Π (1 + (p - 1)): a sum over all subsets of the factors.
        for count in range(len(monomial) + 1):
            for chosen in combinations(monomial, count):
                shifted = plus(shifted, {(ONE, chosen): coefficient})
    # Each p - 1 is ≥ 0: without a negative coefficient, so is the sum.
    return all(coefficient > 0 for coefficient in shifted.values())


def bounds(
    form: Form, range_of: Callable[[int], tuple[Form, Form]], positive: Iterable[int]
) -> tuple[Form, Form] | None:
    """The least and the greatest value of a form, by the ranges of its unknowns.

    None if the sign of a coefficient is not known.
    """
    positives = set(positive)
    low: Form = {}
    high: Form = {}
    for (unknown, monomial), coefficient in form.items():
        term = {(ONE, monomial): coefficient}
        if unknown == ONE:
            low, high = plus(low, term), plus(high, term)
            continue
        if not positives.issuperset(monomial):
            return None
        least, greatest = range_of(unknown)
        if coefficient < 0:
            least, greatest = greatest, least
        low = plus(low, times(least, term) or {})
        high = plus(high, times(greatest, term) or {})
    return low, high
