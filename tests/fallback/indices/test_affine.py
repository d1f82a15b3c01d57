"""Coefficients of loop variables, and sums written from them, against their values."""

import itertools

import pytest
import tvm
from tvm import te, tirx

from graphgrad.fallback.indices.affine import coefficients, nonnegative_expressions, written
from graphgrad.fallback.indices.linear_system import Axis
from graphgrad.fallback.walk import substituted

K, L, N = (te.var(name, "int32") for name in "ijn")
AXES = [Axis(var, tirx.const(0, "int32"), tirx.const(8, "int32")) for var in (K, L)]


def value(expr, i, j, n=5):
    """Return what an integer expression is at a point."""
    numbers = [(var, tirx.const(at, "int32")) for var, at in ((K, i), (L, j), (N, n))]
    return int(tvm.sym.Analyzer().simplify(substituted(tirx.const(0, "int32") + expr, numbers)))


@pytest.mark.parametrize(
    ("index", "factors", "rest"),
    [
        (2 * K - L + 3, [2, -1], 3),
        ((K + N) * 4 - (L - K), [5, -1], 20),
        (K.astype("int64") - K.astype("int64"), [0, 0], 0),
        (N // 2, [0, 0], 2),
    ],
    ids=["plain", "nested", "canceled", "parameter"],
)
def test_affine_indices(index, factors, rest):
    found, left = coefficients(index, AXES)
    assert found == factors and value(left, 0, 0) == rest


@pytest.mark.parametrize(
    "index", [K * L, K * N, K // 2, tirx.max(K, L)], ids=["product", "size", "quotient", "choice"]
)
def test_other_indices(index):
    assert coefficients(index, AXES) is None


@pytest.mark.parametrize("rest", [-3, 0, 4, N], ids=str)
def test_written_sums(rest):
    rest = tirx.const(rest, "int32") if isinstance(rest, int) else rest
    for a, b in itertools.product([-2, -1, 0, 1, 3], repeat=2):
        total = written([a, b], rest, [K, L])
        for i, j in [(0, 0), (1, 0), (0, 1), (5, 3)]:
            assert value(total, i, j) == a * i + b * j + value(rest, i, j)


@pytest.mark.parametrize(
    "condition",
    [K < L, K <= L, K > L, K >= L, tirx.EQ(K, L)],
    ids=["lt", "le", "gt", "ge", "eq"],
)
def test_conditions_hold_where_all_forms_are_nonnegative(condition):
    forms = nonnegative_expressions(condition)
    for i, j in itertools.product(range(4), repeat=2):
        assert value(condition.astype("int32"), i, j) == all(value(f, i, j) >= 0 for f in forms)


def test_a_condition_that_is_no_bound():
    assert nonnegative_expressions(tirx.NE(K, L)) == [None]
