"""What a contribution adds, taken apart: conditions on the loops, and the factors of a product."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce as fold

import tvm_ffi
from tvm import tirx
from tvm.ir import prim

from ..backprop import is_float
from ..contribution import Contribution
from ..guarded import Guard, Guarded
from ..indices.conditions import conjuncts
from ..walk import Expr, choice_of, contain, is_load

_MAX_FACTORS = 8
"""Factors of a product that is taken apart; chosen, not measured.

A longer one stays one factor: with shared parts it would be exponentially long.
"""


def hoisted(contribution: Contribution) -> Contribution:
    """A contribution with the conditions on its loops apart from what is added under them.

    Those are the guards that read no tensor, of the terms and of the zeros that are factors in
    them, as far as all terms have them. Others stay with their terms.
    """
    parts = [_separate_conditions(term) for term in contribution.terms]
    if not any(conditions for conditions, _ in parts):
        return contribution
    first = parts[0][0]
    common = [c for c in first if all(_contains(conditions, c) for conditions, _ in parts[1:])]
    terms = []
    for conditions, term in parts:
        others = tuple((c, True) for c in conditions if not _contains(common, c))
        terms.append(Guarded((*others, *term.guards), term.value))
    return replace(contribution, terms=terms, conditions=[*contribution.conditions, *common])


def factors(value: Expr) -> tuple[list[Expr], list[Expr]]:
    """Conditions without loads and factors: the value is their product, or 0."""
    conditions: list[Expr] = []
    values: list[Expr] = []
    stack = [value]
    while stack:
        node = stack.pop()
        if type(node) is prim.Mul:
            # The left factor comes out first: factors stay in their order.
            stack += [node.b, node.a]
        elif (choice := _zero_unless(node)) is not None:
            conditions += conjuncts(choice[0])
            stack.append(choice[1])
        else:
            values.append(node)
        if len(values) + len(stack) > _MAX_FACTORS:
            return [], [value]
    return conditions, values


def finite_factors(value: Expr) -> tuple[Expr, Expr] | None:
    """The factors of a `backprop.finite_product`, None for another value."""
    # As it is made: Select(h == 0 and partial is infinite, 0, h · partial).
    if not isinstance(value, prim.Select) or not _is_zero(value.true_value):
        return None
    test, scaled = value.condition, value.false_value
    if not isinstance(test, prim.And) or not isinstance(scaled, prim.Mul):
        return None
    is_zero = test.a
    if (
        not isinstance(is_zero, prim.EQ)
        or not _is_zero(is_zero.b)
        or not is_zero.a.same_as(scaled.a)
    ):
        return None
    return scaled.a, scaled.b


def product(values: Sequence[Expr]) -> Expr:
    """The product of some values, in their order."""
    return fold(lambda a, b: a * b, values)


def _separate_conditions(term: Guarded) -> tuple[list[Expr], Guarded]:
    """A term's conditions without loads, and the term without them."""
    conditions: list[Expr] = []
    others: list[Guard] = []
    for condition, wanted in term.guards:
        if _is_static(condition):
            conditions += conjuncts(condition, wanted)
        else:
            others.append((condition, wanted))
    of_factors, values = factors(term.value)
    if not conditions and not of_factors:
        return [], term
    value = product(values) if of_factors else term.value
    return [*conditions, *of_factors], Guarded(tuple(others), value)


def _zero_unless(node: Expr) -> tuple[Expr, Expr] | None:
    """The condition and the value of a choice between something and 0, else None."""
    if type(node) is prim.Cast:
        operand = _zero_unless(node.value)
        if operand is None or not is_float(node.value.ty):
            return None
        return operand[0], prim.Cast(node.ty, operand[1])
    choice = choice_of(node)
    if choice is None or not _is_static(choice[0]):
        return None
    condition, value, otherwise = choice
    if _is_zero(otherwise):
        return condition, value
    return (tirx.Not(condition), otherwise) if _is_zero(value) else None


def _is_zero(node: Expr) -> bool:
    return isinstance(node, prim.FloatImm) and float(node.value) == 0


def _is_static(condition: Expr) -> bool:
    """Whether a condition reads no tensor and may be evaluated anywhere."""
    divisions = prim.Div | prim.Mod | prim.FloorDiv | prim.FloorMod
    return not contain(
        [condition],
        lambda node: (
            is_load(node)
            or is_float(node.ty)
            or (isinstance(node, divisions) and not isinstance(node.b, prim.IntImm))
        ),
    )


def _contains(conditions: Sequence[Expr], condition: Expr) -> bool:
    return any(tvm_ffi.structural_equal(condition, other) for other in conditions)
