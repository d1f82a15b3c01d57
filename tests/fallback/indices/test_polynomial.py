"""Forms against their values at all small integers."""

import itertools

import pytest

from graphgrad.fallback.indices.polynomial import (
    ONE,
    bounds,
    constant,
    divided,
    is_nonnegative,
    plus,
    single_term,
    times,
    unknowns_of,
    value_of,
)

N, M = 0, 1  # parameters
K, L = 0, 1  # unknowns
SIZES = list(itertools.product(range(1, 4), repeat=2))
POINTS = list(itertools.product(range(-2, 3), repeat=2))

FORMS = [
    {},
    {(ONE, ()): -3},
    {(K, ()): 2, (ONE, ()): 1},
    {(K, (M,)): 1, (L, ()): 1},
    {(L, (N, N)): -2, (K, (N, M)): 3, (ONE, (M,)): -1},
]


def value(form, sizes, unknowns=(0, 0)):
    total = 0
    for (unknown, monomial), coefficient in form.items():
        term = coefficient * (1 if unknown == ONE else unknowns[unknown])
        for parameter in monomial:
            term *= sizes[parameter]
        total += term
    return total


@pytest.mark.parametrize("factor", [1, -2])
@pytest.mark.parametrize("form", FORMS)
def test_sums(form, factor):
    for other, sizes, at in itertools.product(FORMS, SIZES, POINTS):
        total = value(form, sizes, at) + factor * value(other, sizes, at)
        assert value(plus(form, other, factor), sizes, at) == total


def test_what_cancels_is_left_out():
    assert plus(FORMS[4], FORMS[4], -1) == {} == constant(0)


@pytest.mark.parametrize("by", [{(ONE, (N,)): 2, (ONE, ()): -1}, constant(3), {}])
@pytest.mark.parametrize("form", FORMS)
def test_products(form, by):
    product = times(form, by)
    assert product == times(by, form)
    for sizes, at in itertools.product(SIZES, POINTS):
        assert value(product, sizes, at) == value(form, sizes, at) * value(by, sizes)


def test_products_of_unknowns_are_not_linear():
    assert times({(K, ()): 1}, {(L, ()): 1}) is None


@pytest.mark.parametrize(
    ("form", "by", "quotient", "rest"),
    [
        # i·M + j = M·i + j
        ({(K, (M,)): 1, (L, ()): 1}, (1, (M,)), {(K, ()): 1}, {(L, ()): 1}),
        # 4·i + 3·j + 7 = 4·(i + 1) + 3·j + 3
        (
            {(K, ()): 4, (L, ()): 3, (ONE, ()): 7}, (4, ()),
            {(K, ()): 1, (ONE, ()): 1}, {(L, ()): 3, (ONE, ()): 3},
        ),
        # -1 = 4·(-1) + 3
        (constant(-1), (4, ()), constant(-1), constant(3)),
        # N·N·i + N = N·(N·i + 1)
        ({(K, (N, N)): 1, (ONE, (N,)): 1}, (1, (N,)), {(K, (N,)): 1, (ONE, ()): 1}, {}),
    ],
    ids=["row-major", "integers", "negative", "square"],
)  # fmt: skip
def test_division(form, by, quotient, rest):
    assert divided(form, by) == (quotient, rest)
    divisor = {(ONE, by[1]): by[0]}
    assert plus(times(quotient, divisor), rest) == form


@pytest.mark.parametrize(
    ("form", "positive", "seen"),
    [
        ({(ONE, (N,)): 1, (ONE, ()): -1}, [N], True),
        ({(ONE, (N,)): 1, (ONE, ()): -1}, [], False),
        ({(ONE, (N,)): 1, (ONE, ()): -2}, [N], False),
        ({(ONE, (N, M)): 1, (ONE, (M,)): -1}, [N, M], True),
        ({(ONE, (N, M)): 1, (ONE, (N,)): -1, (ONE, (M,)): -1}, [N, M], False),
        ({(K, ()): 1}, [N], False),
        ({}, [], True),
    ],
)
def test_what_is_seen_to_be_nonnegative(form, positive, seen):
    assert is_nonnegative(form, positive) is seen
    assert not seen or all(value(form, sizes) >= 0 for sizes in SIZES)


def test_bounds_are_met():
    form = {(K, (N,)): 2, (L, ()): -1, (ONE, ()): 5}
    ranges = {K: (constant(-1), {(ONE, (M,)): 1}), L: (constant(0), constant(3))}
    low, high = bounds(form, ranges.get, [N])
    for sizes in SIZES:
        values = [value(form, sizes, (i, j)) for i in range(-1, sizes[M] + 1) for j in range(4)]
        assert (min(values), max(values)) == (value(low, sizes), value(high, sizes))


def test_bounds_by_a_coefficient_of_unknown_sign_are_not_known():
    assert bounds({(K, (N,)): 1}, lambda _: (constant(0), constant(1)), []) is None


def test_parts():
    assert [value_of(form) for form in FORMS] == [0, -3, None, None, None]
    assert [unknowns_of(form) for form in FORMS] == [[], [], [K], [K, L], [K, L]]
    assert single_term({(ONE, (N, M)): 3}) == (3, (N, M))
    assert [single_term(form) for form in FORMS] == [None] * 5
