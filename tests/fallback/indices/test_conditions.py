"""Conditions as equations and bounds: the points they leave are those where they hold."""

import itertools

import pytest
import tvm
from tvm import te, tirx

from graphgrad.fallback.indices import polynomial
from graphgrad.fallback.indices.conditions import add_conditions, conjuncts, nonnegative_form
from graphgrad.fallback.indices.linear_system import Axis, LinearSystem, NotAffineError
from graphgrad.fallback.walk import substituted

K, L = (te.var(name, "int32") for name in "ij")
EXTENT = 8


def system():
    """Return a system of two loops."""
    zero, extent = tirx.const(0, "int32"), tirx.const(EXTENT, "int32")
    return LinearSystem([Axis(var, zero, extent) for var in (K, L)])


def holds(condition, i, j):
    numbers = [(K, tirx.const(i, "int32")), (L, tirx.const(j, "int32"))]
    return bool(int(tvm.sym.Analyzer().simplify(substituted(condition, numbers))))


def limits(of, number=0):
    """Return the range of an unknown."""
    unknown = of.unknowns[number]
    return polynomial.value_of(unknown.low), polynomial.value_of(unknown.high)


@pytest.mark.parametrize(
    ("condition", "low", "high"),
    [
        (K > 0, 1, 7),
        (K >= 3, 3, 7),
        (K < 6, 0, 5),
        (tirx.all(K > 1, K <= 4), 2, 4),
        (2 * K >= 5, 3, 7),
        (3 * K + 1 < 12, 0, 3),
        (5 - 2 * K >= 0, 0, 2),
        (tirx.Not(K < 2), 2, 7),
        (K >= -4, 0, 7),
    ],
    ids=str,
)
def test_bounds_by_constants_narrow_a_range(condition, low, high):
    found = system()
    add_conditions(found, [condition])
    assert limits(found) == (low, high) and not found.conditions and not found.rows
    assert [i for i in range(EXTENT) if holds(condition, i, 0)] == list(range(low, high + 1))


@pytest.mark.parametrize(
    ("condition", "rows"),
    [(tirx.EQ(K, L + 1), 1), (tirx.EQ(K % 3, 0), 2)],
    ids=["equal", "divisible"],
)
def test_equations_become_rows(condition, rows):
    found = system()
    add_conditions(found, [condition])
    assert len(found.rows) == rows and not found.conditions


def test_a_bound_of_a_quotient_is_one_where_there_is_no_remainder():
    found = system()
    add_conditions(found, [K >= 4, tirx.EQ(K % 2, 0)])
    (division,) = found.divisions
    assert limits(found, division.quotient)[0] == 2 and not found.conditions


@pytest.mark.parametrize("condition", [K < L, tirx.NE(K, 3), tirx.any(K < 2, L > 4)], ids=str)
def test_what_is_no_bound_by_constants_is_left(condition):
    found = system()
    add_conditions(found, [condition])
    (left,) = found.conditions
    assert limits(found) == (0, 7)
    for i, j in itertools.product(range(EXTENT), repeat=2):
        assert holds(left, i, j) == holds(condition, i, j)


@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.parametrize(
    ("condition", "counts"),
    [
        (tirx.And(K < 3, tirx.And(L < 5, K < L)), {True: 3, False: 1}),
        (tirx.Or(K < 3, tirx.Not(L < 5)), {True: 1, False: 2}),
        (tirx.likely(tirx.And(K < 3, L < 5)), {True: 2, False: 1}),
    ],
    ids=["and", "or", "likely"],
)
def test_conjuncts_hold_together_where_the_whole_does(condition, counts, wanted):
    parts = conjuncts(condition, wanted)
    assert len(parts) == counts[wanted]
    plain = condition.args[0] if hasattr(condition, "args") else condition
    for i, j in itertools.product(range(EXTENT), repeat=2):
        assert all(holds(p.args[0] if hasattr(p, "args") else p, i, j) for p in parts) == (
            holds(plain, i, j) is wanted
        )


def test_forms_of_comparisons():
    of = system()
    assert nonnegative_form(of, K < L) == {(0, ()): -1, (1, ()): 1, (polynomial.ONE, ()): -1}
    assert nonnegative_form(of, K >= L) == {(0, ()): 1, (1, ()): -1}
    assert nonnegative_form(of, tirx.EQ(K, L)) is None
    with pytest.raises(NotAffineError):
        nonnegative_form(of, K * L < 3)
