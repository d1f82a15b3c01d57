"""Sums of guarded values: each value counts, and is read, only where its guards hold."""

import numpy as np
import pytest
from tvm import te, tirx

from graphgrad.fallback.guarded import Guarded, GuardedSum, balanced, chosen, either, joined, total
from graphgrad.fallback.walk import identity, substituted
from tests.fallback.interpreter import evaluate

EXTENT = 6
AT = np.arange(EXTENT)
X = te.placeholder((EXTENT,), "float64", name="x")
VALUES = AT + 1.0
K = te.var("i", "int32")
HERE, NEXT = X(K), X(K + 1)  # the second is out of range at the last point: NaN
EARLY, ODD, INSIDE = K < 4, tirx.EQ(K % 2, tirx.const(1, "int32")), K + 1 < EXTENT


def values(expression):
    """Return the values of an expression at all points."""
    (result,) = evaluate(
        [te.compute((EXTENT,), lambda i: substituted(expression, [(K, i)]), name="stage")],
        [(X, VALUES)],
    )
    return result


SUMS = {
    "no guard": ([Guarded((), HERE), Guarded((), HERE)], 0, 2 * VALUES),
    "both ways": (
        [Guarded(((EARLY, True),), HERE), Guarded(((EARLY, False),), -HERE)],
        0,
        np.where(AT < 4, VALUES, -VALUES),
    ),
    "protected": (
        [Guarded(((INSIDE, True),), NEXT), Guarded((), HERE)],
        0,
        np.where(AT < 5, 2 * VALUES + 1, VALUES),
    ),
    "common": (
        [
            Guarded(((INSIDE, True), (ODD, True)), NEXT),
            Guarded(((INSIDE, True), (ODD, False)), HERE),
        ],
        1,
        np.where(AT < 5, VALUES + AT % 2, 0),
    ),
    "common, then one": (
        [
            Guarded(((INSIDE, True), (ODD, True)), NEXT),
            Guarded(((INSIDE, True), (EARLY, True)), HERE),
        ],
        2,
        np.where(AT < 5, np.where(AT % 2, VALUES + 1, 0) + np.where(AT < 4, VALUES, 0), 0),
    ),
}


@pytest.mark.parametrize("name", SUMS)
def test_sums_are_inside_their_guards(name):
    terms, guards, expected = SUMS[name]
    np.testing.assert_array_equal(values(total(terms)), expected)
    one = joined(terms)
    assert len(one.guards) == guards
    np.testing.assert_array_equal(values(one.applied()), expected)


def test_a_joined_term_counts_where_any_of_its_terms_does():
    *_, (counts, wanted) = joined(SUMS["common, then one"][0]).guards
    assert wanted
    found = values(tirx.Select(counts, tirx.const(1.0, "float64"), tirx.const(0.0, "float64")))
    np.testing.assert_array_equal(found, (AT % 2 == 1) | (AT < 4))


def test_a_value_counts_where_all_its_guards_go_their_ways():
    found = values(Guarded(((INSIDE, True), (ODD, False)), NEXT).applied())
    np.testing.assert_array_equal(found, np.where((AT < 5) & (AT % 2 == 0), VALUES + 1, 0))


def test_values_under_the_same_guards_become_one_term():
    parts = GuardedSum()
    for term in (((EARLY, True),), HERE), ((), HERE), (((EARLY, True),), HERE):
        parts.add(Guarded(*term))
    early, always = parts.terms()
    assert len(early.guards) == 1 and always.guards == ()
    np.testing.assert_array_equal(values(early.value), 2 * VALUES)
    np.testing.assert_array_equal(values(always.value), VALUES)


def test_guards_that_go_other_ways_stay_apart():
    parts = GuardedSum()
    for wanted in (True, False):
        parts.add(Guarded(((EARLY, wanted),), HERE))
    assert [term.guards[0][1] for term in parts.terms()] == [True, False]


@pytest.mark.parametrize(
    ("build", "leaves"),
    [(balanced, [te.var("v", "float64") for _ in range(9)]), (either, [n > K for n in range(9)])],
    ids=["sum", "condition"],
)
def test_long_chains_are_shallow_trees(build, leaves):
    ends = {identity(leaf) for leaf in leaves}

    def depths(node):
        """Return how deep the leaves below a node are, from the left."""
        if identity(node) in ends:
            return [0]
        return [1 + depth for part in (node.a, node.b) for depth in depths(part)]

    found = depths(build(leaves))
    assert len(found) == len(leaves) and max(found) == 4


@pytest.mark.parametrize(
    ("holds", "expected"),
    [
        ([True, True], None),
        ([True, False], AT < 4),
        ([False, True], AT >= 4),
        ([ODD, False], (AT < 4) & (AT % 2 == 1)),
    ],
    ids=["always", "first", "second", "condition"],
)
def test_whether_what_a_condition_chooses_holds(holds, expected):
    found = chosen(EARLY, holds)
    if expected is None:
        assert found is None
    else:
        numbers = (tirx.const(value, "float64") for value in (1.0, 0.0))
        np.testing.assert_array_equal(values(tirx.Select(found, *numbers)), expected)
