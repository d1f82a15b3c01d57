"""Equations whose coefficients are sizes known only at run time, made ones over the integers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tvm import tirx

from ..walk import Expr
from . import polynomial
from .equations import Row
from .linear_system import LinearSystem, NotAffineError
from .polynomial import ONE, Form, Term, plus, times


@dataclass
class IntegerRows:
    """A system without sizes as coefficients.

    Attributes
    ----------
    rows : list of Row
    eliminated : list of (int, Row)
        Unknowns that occur in no row: each is the value of its row less the row's form. Later ones
        do not depend on earlier ones.
    """

    rows: list[Row] = field(default_factory=list)
    eliminated: list[tuple[int, Row]] = field(default_factory=list)


def integer_rows(system: LinearSystem) -> IntegerRows:
    """The equations of a system over the integers alone.

    Raises
    ------
    NotAffineError
        An equation has symbolic coefficients, and neither a division takes it apart nor does it
        define a quotient.
    """
    result = IntegerRows()
    waiting = list(system.rows)
    dividends = _dividends(system)
    while waiting:
        symbolic = [row for row in waiting if _is_symbolic(row.form)]
        result.rows += [row for row in waiting if not _is_symbolic(row.form)]
        waiting = []
        if not symbolic:
            break
        row, *others = symbolic
        unknown = next((u for u in dividends if _has_unit_coefficient(row.form, u)), None)
        parts = _split_row(system, row)
        if parts is not None:
            waiting = [*parts, *others]
        elif unknown is not None:
            definition = _solve_row(row, unknown)
            result.eliminated.append((unknown, definition))
            dividends.remove(unknown)
            waiting = [
                _eliminate_unknown(r, unknown, definition, system) for r in [*others, *result.rows]
            ]
            # To replace the unknown may bring sizes into integer rows: all are looked at anew.
            result.rows = []
        else:
            raise NotAffineError(row.right)
    return result


def _is_symbolic(form: Form) -> bool:
    return any(monomial for _, monomial in form)


def _has_unit_coefficient(form: Form, unknown: int) -> bool:
    """Whether the coefficient of an unknown is 1 or -1, and no size."""
    keys = [key for key in form if key[0] == unknown]
    return keys == [(unknown, ())] and abs(form[unknown, ()]) == 1


def _dividends(system: LinearSystem) -> list[int]:
    """The unknowns that stand, without a size as a factor, in what a size divides."""
    return [
        unknown
        for division in system.divisions
        if _is_symbolic(division.divisor) and not _is_symbolic(division.dividend)
        for unknown in polynomial.unknowns_of(division.dividend)
    ]


def _split_row(system: LinearSystem, row: Row) -> list[Row] | None:
    """The equations for quotient and remainder of a row by one of its coefficients."""
    for by in _divisors(row.form):
        quotient, remainder = polynomial.divided(row.form, by)
        limits = system.bounds(remainder)
        if limits is None:
            continue
        # rest - low lies between 0 and its width, and must be less than the divisor.
        width = plus(limits[1], limits[0], -1)
        divisor = {(ONE, by[1]): by[0]}
        below = plus(plus(divisor, width, -1), polynomial.constant(-1))
        if polynomial.is_nonnegative(below, system.positive):
            low = system.expression(limits[0], [])
            shifted = row.right - low
            safe = system.safe_divisor(divisor)
            return [
                Row(quotient, system.analyzer.simplify(tirx.floordiv(shifted, safe))),
                Row(remainder, system.analyzer.simplify(tirx.floormod(shifted, safe) + low)),
            ]
    return None


def _divisors(form: Form) -> list[Term]:
    """The coefficients of a form that may divide a part of it, simple ones first."""
    monomials = {monomial for _, monomial in form if monomial}
    terms = []
    for monomial in sorted(monomials, key=lambda m: (len(m), m)):
        coefficients = {abs(c) for (_, other), c in form.items() if other == monomial}
        terms += [(coefficient, monomial) for coefficient in sorted(coefficients)]
    return terms


def _solve_row(row: Row, unknown: int) -> Row:
    """The row divided by the coefficient of an unknown, ±1, and without it."""
    sign = row.form[unknown, ()]
    form = {key: sign * c for key, c in row.form.items() if key[0] != unknown}
    return Row(form, row.right * sign)


def _eliminate_unknown(row: Row, unknown: int, definition: Row, system: LinearSystem) -> Row:
    """A row with an unknown replaced by its definition."""
    coefficient: Form = {(ONE, m): c for (u, m), c in row.form.items() if u == unknown}
    if not coefficient:
        return row
    rest: Form = {key: c for key, c in row.form.items() if key[0] != unknown}
    replacement: Any = times(definition.form, coefficient)
    shift: Expr = system.expression(coefficient, []) * definition.right
    return Row(plus(rest, replacement, -1), system.analyzer.simplify(row.right - shift))
