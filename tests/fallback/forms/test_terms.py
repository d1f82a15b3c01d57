"""Contributions taken apart: what is hoisted and multiplied again is what was there."""

import numpy as np
import pytest
from tvm import te, tirx

from graphgrad.fallback.backprop import finite_product
from graphgrad.fallback.contribution import Contribution
from graphgrad.fallback.forms.terms import factors, finite_factors, hoisted, product
from graphgrad.fallback.guarded import Guarded, total
from graphgrad.fallback.indices.linear_system import Axis
from graphgrad.fallback.walk import substituted
from tests.fallback.interpreter import evaluate

EXTENT = 6
X, Y = (te.placeholder((EXTENT,), "float64", name=name) for name in "xy")
K = te.var("i", "int32")
A, B = X(K), Y(K)
ZERO = tirx.const(0.0, "float64")
EARLY, LATE = K < 4, K >= 2
POSITIVE = A > ZERO


def values(expression):
    """Return the values of an expression at all points."""
    generator = np.random.default_rng(0)
    known = [(tensor, generator.standard_normal(EXTENT)) for tensor in (X, Y)]
    stage = te.compute((EXTENT,), lambda i: substituted(expression, [(K, i)]), name="stage")
    return evaluate([stage], known)[0]


def under(conditions, value):
    return tirx.if_then_else(tirx.all(*conditions), value, ZERO) if conditions else value


@pytest.mark.parametrize(
    ("value", "conditions", "count"),
    [
        (A * B * A, 0, 3),
        (A * tirx.if_then_else(EARLY, B, ZERO), 1, 2),
        (A * tirx.Select(EARLY, ZERO, B), 1, 2),
        (tirx.if_then_else(tirx.And(EARLY, LATE), A * B, ZERO), 2, 2),
        (tirx.if_then_else(POSITIVE, A, ZERO) * B, 0, 2),
        (tirx.if_then_else(EARLY, A, B), 0, 1),
        (A + B, 0, 1),
    ],
    ids=["product", "zero", "zero where", "both", "by a load", "choice", "sum"],
)
def test_factors(value, conditions, count):
    found, parts = factors(value)
    assert (len(found), len(parts)) == (conditions, count)
    np.testing.assert_allclose(values(under(found, product(parts))), values(value), rtol=1e-14)


def test_factors_behind_a_cast():
    half = te.placeholder((EXTENT,), "float16", name="half")
    inner = tirx.if_then_else(EARLY, half(K), tirx.const(0.0, "float16"))
    found, (part,) = factors(inner.astype("float32"))
    assert len(found) == 1 and str(part.ty) == "float32" and part.value.same_as(inner.args[1])


@pytest.mark.parametrize(("length", "count"), [(8, 8), (9, 1)])
def test_a_long_product_is_one_factor(length, count):
    assert len(factors(product([A] * length))[1]) == count


def test_factors_of_a_product_that_is_finite():
    first, second = finite_factors(finite_product(A, B))
    assert first.same_as(A) and second.same_as(B)
    assert finite_factors(A * B) is None
    assert finite_factors(tirx.Select(EARLY, ZERO, A * B)) is None


def contribution(*terms):
    axis = Axis(K, tirx.const(0, "int32"), tirx.const(EXTENT, "int32"))
    return Contribution(X, [axis], [K], list(terms), stage="stage")


@pytest.mark.parametrize(
    ("terms", "conditions"),
    [
        ([Guarded(((EARLY, True),), A)], ["i < 4"]),
        ([Guarded(((EARLY, False),), A)], ["not i < 4"]),
        ([Guarded(((POSITIVE, True), (EARLY, True)), A)], ["i < 4"]),
        ([Guarded((), A * tirx.if_then_else(EARLY, B, ZERO))], ["i < 4"]),
        ([Guarded(((EARLY, True),), A), Guarded(((LATE, True), (EARLY, True)), B)], ["i < 4"]),
        ([Guarded(((EARLY, True),), A), Guarded(((LATE, True),), B)], []),
        ([Guarded(((EARLY, True),), A), Guarded((), B)], []),
    ],
    ids=["guard", "other way", "load", "factor", "common", "different", "one term"],
)
def test_hoisted_conditions(terms, conditions):
    before = contribution(*terms)
    after = hoisted(before)
    assert [str(condition) for condition in after.conditions] == conditions
    np.testing.assert_allclose(
        values(under(after.conditions, total(after.terms))), values(total(terms)), rtol=1e-14
    )


def test_a_condition_that_divides_by_a_variable_is_not_hoisted():
    guard = tirx.EQ(tirx.floormod(tirx.const(6, "int32"), K), tirx.const(0, "int32"))
    assert hoisted(contribution(Guarded(((guard, True),), A))).conditions == []
