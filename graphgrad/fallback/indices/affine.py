"""Indices as sums of loop variables with integer coefficients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import prim

from ..walk import Expr, depend, identity
from .index_system import Axis


def coefficients(index: Expr, axes: Sequence[Axis]) -> tuple[list[int], Expr] | None:
    """The coefficients of loop variables in an index and the rest; None if not affine.

    Casts between integers are taken for what they are: no index overflows.
    """
    numbers = {identity(axis.var): i for i, axis in enumerate(axes)}
    form = _form(index, numbers)
    if form is None:
        return None
    factors = [0] * len(axes)
    for number, factor in form[0].items():
        factors[number] = factor
    return factors, tvm.sym.Analyzer().simplify(form[1])


def written(factors: Sequence[int], rest: Expr, variables: Sequence[Any]) -> Expr:
    """The sum of variables with coefficients, and of a rest: those added, then the rest."""
    terms = list(zip(factors, variables, strict=True))
    constant = int(rest) if isinstance(rest, prim.IntImm) else rest
    positive = [var if factor == 1 else var * factor for factor, var in terms if factor > 0]
    negative = [var if factor == -1 else var * -factor for factor, var in terms if factor < 0]
    if not positive and not negative:
        return rest
    is_zero = isinstance(constant, int) and constant == 0
    # Begun with what is added: a negative term in front would be a product by -1.
    total = positive[0] if positive else constant
    for term in positive[1:]:
        total = total + term
    if positive and isinstance(constant, int) and constant < 0:
        total = total - -constant
    elif positive and not is_zero:
        total = total + constant
    for term in negative:
        total = total - term
    return total


def nonnegative_expressions(condition: Expr) -> list[Expr | None]:
    """Expressions that are all at least 0 where a condition holds; None for one unknown."""
    if isinstance(condition, prim.LE):
        return [condition.b - condition.a]
    if isinstance(condition, prim.GE):
        return [condition.a - condition.b]
    if isinstance(condition, prim.LT):
        return [condition.b - condition.a - 1]
    if isinstance(condition, prim.GT):
        return [condition.a - condition.b - 1]
    if isinstance(condition, prim.EQ):
        return [condition.a - condition.b, condition.b - condition.a]
    return [None]


def _form(expr: Expr, numbers: dict[int, int]) -> tuple[dict[int, int], Expr] | None:
    """The coefficients by number, and what depends on no variable; None if not affine."""
    if identity(expr) in numbers:
        return {numbers[identity(expr)]: 1}, tirx.const(0, str(expr.ty))
    if not depend([expr], numbers):
        return {}, expr
    if isinstance(expr, prim.Cast) and "int" in str(expr.ty) and "int" in str(expr.value.ty):
        return _form(expr.value, numbers)
    if isinstance(expr, prim.Mul):
        for varying, by in ((expr.a, expr.b), (expr.b, expr.a)):
            if isinstance(by, prim.IntImm):
                return _scaled(_form(varying, numbers), int(by))
        return None
    if isinstance(expr, prim.Add | prim.Sub):
        first, second = _form(expr.a, numbers), _form(expr.b, numbers)
        if first is None or second is None:
            return None
        sign = 1 if isinstance(expr, prim.Add) else -1
        total = dict(first[0])
        for number, factor in second[0].items():
            total[number] = total.get(number, 0) + sign * factor
        return total, first[1] + second[1] if sign == 1 else first[1] - second[1]
    return None


def _scaled(
    form: tuple[dict[int, int], Expr] | None, by: int
) -> tuple[dict[int, int], Expr] | None:
    if form is None:
        return None
    return {number: by * factor for number, factor in form[0].items()}, form[1] * by
