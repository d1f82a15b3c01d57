"""Integer conditions as a part of a linear system: equations, and bounds of unknowns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tvm import tirx
from tvm.ir import prim

from ..constants import integer_value, is_true
from ..walk import Expr, called
from . import polynomial
from .linear_system import LinearSystem, NotAffineError
from .polynomial import Form, plus, times


def add_conditions(system: LinearSystem, conditions: Sequence[Expr]) -> None:
    """Add conditions to a system; what it cannot express is left in its `conditions`.

    `a = b` becomes an equation, also `e % m = 0`; `a ≤ b` narrows the range of an unknown.
    """
    inequalities = []
    for condition in (part for conjunction in conditions for part in conjuncts(conjunction)):
        simple = system.analyzer.simplify(condition)
        if not (isinstance(simple, prim.EQ) and _is_equation(system, simple)):
            inequalities.append(simple)
    # Equations first: they say which remainders are zero.
    system.conditions += [
        condition
        for condition in inequalities
        if not is_true(condition) and not _is_bound(system, condition)
    ]


def conjuncts(condition: Expr, wanted: bool = True) -> list[Expr]:
    """Conditions that hold together exactly where one goes the way it must."""
    if isinstance(condition, prim.And if wanted else prim.Or):
        return conjuncts(condition.a, wanted) + conjuncts(condition.b, wanted)
    if isinstance(condition, prim.Not):
        return conjuncts(condition.a, not wanted)
    if called(condition).endswith(".likely"):
        return conjuncts(condition.args[0], wanted)
    return [condition if wanted else tirx.Not(condition)]


def nonnegative_form(system: LinearSystem, condition: Any) -> Form | None:
    """The form that is ≥ 0 where a comparison holds; None if it is no inequality.

    Raises
    ------
    NotAffineError
        Its operands are not affine.
    """
    if isinstance(condition, prim.LT | prim.LE):
        less, greater = condition.a, condition.b
    elif isinstance(condition, prim.GT | prim.GE):
        less, greater = condition.b, condition.a
    else:
        return None
    form = plus(system.linear(greater), system.linear(less), -1)
    strict = isinstance(condition, prim.LT | prim.GT)
    return plus(form, polynomial.constant(-1)) if strict else form


def _is_equation(system: LinearSystem, condition: Any) -> bool:
    """Whether a condition a = b became a row."""
    try:
        form = system.linear(condition.a - condition.b)
    except NotAffineError:
        return False
    system.add_row(form, tirx.const(0, system.dtype))
    return True


def _is_bound(system: LinearSystem, condition: Expr) -> bool:
    """Whether a condition holds by the range of an unknown, which it may narrow."""
    try:
        form = nonnegative_form(system, condition)
    except NotAffineError:
        return False
    if form is None:
        return False
    return narrowed(system, _in_quotients(system, form))


def narrowed(system: LinearSystem, form: Form) -> bool:
    """Whether `form` ≥ 0 is a bound of one unknown, by constants; then its range is narrowed."""
    unknowns = polynomial.unknowns_of(form)
    if len(unknowns) != 1:
        return False
    (number,) = unknowns
    unknown = system.unknowns[number]
    # A coefficient that is a size stays in the offset, which is then no constant.
    coefficient = form.get((number, ()), 0)
    offset = polynomial.value_of(plus(form, {(number, ()): coefficient}, -1))
    low, high = map(polynomial.value_of, (unknown.low, unknown.high))
    if offset is None or low is None or high is None:
        return False
    # a·u + b ≥ 0 says u ≥ ⌈-b / a⌉ for a > 0, and u ≤ ⌊b / -a⌋ for a < 0.
    if coefficient > 0 and -(offset // coefficient) > low:
        bound = polynomial.constant(-(offset // coefficient))
        system.unknowns[number] = replace(unknown, low=bound, bounded=True)
    elif coefficient < 0 and offset // -coefficient < high:
        bound = polynomial.constant(offset // -coefficient)
        system.unknowns[number] = replace(unknown, high=bound, bounded=True)
    return True


def _in_quotients(system: LinearSystem, form: Form) -> Form:
    """A form with a dividend replaced by its quotient, where it has no remainder."""
    zeros = {
        next(iter(row.form))[0]
        for row in system.rows
        if len(row.form) == 1 and integer_value(row.right) == 0
    }
    for division in system.divisions:
        if division.remainder not in zeros:
            continue
        for sign in (1, -1):
            # form = sign · divisor · quotient + rest, where the dividend has no remainder.
            rest = plus(form, division.dividend, -sign)
            quotient = times(division.divisor, {(division.quotient, ()): sign})
            if not polynomial.unknowns_of(rest) and quotient is not None:
                return plus(rest, quotient)
    return form
