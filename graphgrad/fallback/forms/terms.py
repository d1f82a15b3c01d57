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
    """Return a contribution with the conditions on its loops apart from what is added under them.

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
        own = tuple((c, True) for c in conditions if not _contains(common, c))
        terms.append(Guarded((*own, *term.guards), term.value))
    return replace(contribution, terms=terms, conditions=[*contribution.conditions, *common])


def factors(value: Expr) -> tuple[list[Expr], list[Expr]]:
    """Return conditions without loads and factors: the value is their product, or 0."""
    conditions: list[Expr] = []
    found: list[Expr] = []
    stack = [value]
    while stack:
        node = stack.pop()
        if type(node) is prim.Mul:
            stack += [node.b, node.a]
        elif (choice := _zero_unless(node)) is not None:
            conditions += conjuncts(choice[0])
            stack.append(choice[1])
        else:
            found.append(node)
        if len(found) + len(stack) > _MAX_FACTORS:
            return [], [value]
    return conditions, found


def finite_factors(value: Expr) -> tuple[Expr, Expr] | None:
    """Return the factors of a `backprop.finite_product`, None for another value."""
    if not isinstance(value, prim.Select) or not _is_zero(value.true_value):
        return None
    test, whole = value.condition, value.false_value
    if not isinstance(test, prim.And) or not isinstance(whole, prim.Mul):
        return None
    zero = test.a
    if not isinstance(zero, prim.EQ) or not _is_zero(zero.b) or not zero.a.same_as(whole.a):
        return None
    return whole.a, whole.b


def product(values: Sequence[Expr]) -> Expr:
    """Return the product of some values, in their order."""
    return fold(lambda a, b: a * b, values)


def _separate_conditions(term: Guarded) -> tuple[list[Expr], Guarded]:
    """Return a term's conditions without loads, and the term without them."""
    conditions: list[Expr] = []
    others: list[Guard] = []
    for condition, wanted in term.guards:
        if _is_static(condition):
            conditions += conjuncts(condition, wanted)
        else:
            others.append((condition, wanted))
    more, values = factors(term.value)
    if not conditions and not more:
        return [], term
    value = product(values) if more else term.value
    return [*conditions, *more], Guarded(tuple(others), value)


def _zero_unless(node: Expr) -> tuple[Expr, Expr] | None:
    """Return the condition and the value of a choice between something and 0, else None."""
    if type(node) is prim.Cast:
        inner = _zero_unless(node.value)
        if inner is None or not is_float(node.value.ty):
            return None
        return inner[0], prim.Cast(node.ty, inner[1])
    choice = choice_of(node)
    if choice is None or not _is_static(choice[0]):
        return None
    condition, value, other = choice
    if _is_zero(other):
        return condition, value
    return (tirx.Not(condition), other) if _is_zero(value) else None


def _is_zero(node: Expr) -> bool:
    return isinstance(node, prim.FloatImm) and float(node.value) == 0


def _is_static(condition: Expr) -> bool:
    """Return whether a condition reads no tensor and may be evaluated anywhere."""
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
