"""Combiners taken apart: which components belong together, and how they are combined."""

import pytest
from tvm import te, tirx

from graphgrad.fallback.reductions.combiner import Combination, Combiner
from graphgrad.ops.elementwise import larger, smaller


def combiner(combine, count):
    """Return a combiner of tuples, of elements of float64."""
    zero = tirx.const(0.0, "float64")
    x = te.placeholder((3,), "float64", name="x")
    k = te.reduce_axis((0, 3), "k")
    reducer = te.comm_reducer(combine, lambda *_: (zero,) * count if count > 1 else zero)
    result = te.compute(
        (), lambda: reducer((x(k),) * count if count > 1 else x(k), axis=k), name="result"
    )
    op = result.op if count == 1 else result[0].op
    return Combiner(op.body[0].combiner)


@pytest.mark.parametrize(
    "combine, kind",
    [
        (lambda a, b: a + b, Combination.SUM),
        (lambda a, b: b + a, Combination.SUM),
        (lambda a, b: a + a, Combination.OTHER),
        (lambda a, b: a + b * 2.0, Combination.OTHER),
        (lambda a, b: a * b, Combination.PRODUCT),
        (lambda a, b: te.max(b, a), Combination.LARGEST),
        (lambda a, b: te.min(b, a), Combination.SMALLEST),
        (larger, Combination.LARGEST),
        (lambda a, b: larger(b, a), Combination.LARGEST),
        (smaller, Combination.SMALLEST),
        (lambda a, b: tirx.Select(a < b, b, tirx.Select(a >= b, a, b + a)), Combination.LARGEST),
        # Of equal operands this is their sum; here one is the larger, and then the smaller one.
        (lambda a, b: tirx.Select(a > b, a, tirx.Select(b > a, b, a + b)), Combination.OTHER),
        (lambda a, b: tirx.Select(a > b, a, tirx.Select(b <= a, b, a + b)), Combination.OTHER),
        (lambda a, b: tirx.Select(a > b, a, tirx.Select(b >= a, b, a * b)), Combination.OTHER),
        (lambda a, b: tirx.Select(tirx.any(b > a, tirx.isnan(b)), b, a), Combination.LARGEST),
        (lambda a, b: tirx.Select(tirx.any(b <= a, tirx.isnan(b)), b, a), Combination.SMALLEST),
        (lambda a, b: tirx.Select(tirx.any(b > a, tirx.isnan(a)), b, a), Combination.CHOICE),
        (lambda a, b: tirx.Select(a > b, a, b), Combination.CHOICE),
        (lambda a, b: tirx.if_then_else(a > b, b, a), Combination.CHOICE),
        (lambda a, b: tirx.Select(a > b, a, a), Combination.OTHER),
        (lambda a, b: tirx.Select(a > b, a, b + 1.0), Combination.OTHER),
    ],
)
def test_kinds_of_single_components(combine, kind):
    assert combiner(combine, 1).combination([0]) is kind


def test_a_choice_is_of_all_components_by_one_condition():
    def one(a, b):
        return tirx.Select(a[0] > b[0], a[0], b[0]), tirx.Select(a[0] > b[0], a[1], b[1])

    def two(a, b):
        return tirx.Select(a[0] > b[0], a[0], b[0]), tirx.Select(a[0] >= b[0], a[1], b[1])

    def crossed(a, b):
        return tirx.Select(a[0] > b[0], a[0], b[0]), tirx.Select(a[0] > b[0], b[1], a[1])

    assert combiner(one, 2).combination([0, 1]) is Combination.CHOICE
    assert combiner(two, 2).combination([0, 1]) is Combination.OTHER
    assert combiner(crossed, 2).combination([0, 1]) is Combination.OTHER


@pytest.mark.parametrize(
    "wanted, groups",
    [([0], [[0]]), ([1], [[0, 1]]), ([3], [[0, 1, 3]]), ([2, 0], [[0], [2]]), ([], [])],
    ids=str,
)
def test_groups_hold_what_the_wanted_depend_on(wanted, groups):
    def combine(a, b):
        return a[0] + b[0], a[1] + b[1] * b[0], a[2] * b[2], te.max(a[3], b[3]) + a[1]

    assert combiner(combine, 4).groups(wanted) == groups
