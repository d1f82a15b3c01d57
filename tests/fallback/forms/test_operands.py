"""Products as products of two loads: further factors in stages in front, or no contraction."""

import numpy as np
import pytest
from tvm import te, tirx

from graphgrad.fallback.forms.operands import is_operand, operands
from graphgrad.fallback.guarded import Guarded
from graphgrad.fallback.indices.linear_system import Axis
from graphgrad.fallback.walk import loaded, substituted
from tests.fallback.interpreter import evaluate

A = te.placeholder((3, 4), "float64", name="a")
B = te.placeholder((4, 5), "float64", name="b")
C = te.placeholder((3,), "float64", name="c")
PLACES = te.placeholder((3,), "int32", name="places")
ROW, K, COLUMN = (te.var(name) for name in ("row", "k", "column"))
AXES = [
    Axis(var, tirx.const(0, "int32"), tirx.const(extent, "int32"))
    for var, extent in ((ROW, 3), (COLUMN, 5), (K, 4))
]
GENERATOR = np.random.default_rng(0)
KNOWN = [
    *((t, GENERATOR.standard_normal([int(e) for e in t.shape])) for t in (A, B, C)),
    (PLACES, np.array([2, 0, 2], "int32")),
]


def found(value, guards=(), conditions=()):
    return operands(Guarded(tuple(guards), value), AXES, list(conditions), "y")


def at_all_points(value):
    """Return the value at each point of the loops."""
    variables = [axis.var for axis in AXES]
    return te.compute(
        (3, 5, 4), lambda *at: substituted(value, list(zip(variables, at, strict=True)))
    )


@pytest.mark.parametrize(
    ("value", "made"),
    [
        (A(ROW, K) * B(K, COLUMN), 0),
        (B(K, COLUMN) * A(ROW, K), 0),
        (A(ROW, K) * B(K, COLUMN) * C(ROW), 1),
        (A(ROW, K) * B(K, COLUMN) * 2.0, 1),
        (A(ROW, K) * te.exp(B(K, COLUMN)), 1),
        (te.sin(A(ROW, K)) * te.exp(B(K, COLUMN)), 2),
        (A(PLACES(ROW), K) * B(K, COLUMN), 1),
    ],
    ids=["loads", "turned", "three", "scaled", "function", "two functions", "gathered"],
)
def test_a_product_is_one_of_two_loads(value, made):
    loads = found(value)
    assert loads is not None
    assert all(map(is_operand, loads))
    tensors = [loaded(load)[0] for load in loads]
    assert len([t for t in tensors if t.op.name.startswith("y_factor")]) == made
    given, expected = evaluate([at_all_points(v) for v in (loads[0] * loads[1], value)], KNOWN)
    np.testing.assert_allclose(given, expected)


def test_a_guard_on_one_operand_goes_into_its_stage():
    guard = C(ROW) > 0.0
    loads = found(A(ROW, K) * B(K, COLUMN), [(guard, True)])
    assert loads is not None
    (mask,) = [t for t in (loaded(load)[0] for load in loads) if t.op.name == "y_factor1"]
    assert [int(extent) for extent in mask.shape] == [3, 4]
    value = tirx.if_then_else(guard, A(ROW, K) * B(K, COLUMN), 0.0)
    given, expected = evaluate([at_all_points(v) for v in (loads[0] * loads[1], value)], KNOWN)
    np.testing.assert_allclose(given, expected)


@pytest.mark.parametrize(
    ("value", "guards"),
    [
        (te.sin(A(ROW, K) * B(K, COLUMN)), ()),
        (A(ROW, K), ()),
        (A(ROW, K) * B(K, COLUMN), ((A(ROW, K) < B(K, COLUMN), True),)),
    ],
    ids=["function of both", "one", "guard on all"],
)
def test_what_varies_with_all_loops_is_no_operand(value, guards):
    assert found(value, guards) is None


def test_a_factor_that_reads_outside_where_a_condition_fails_stays_under_it():
    """Where the condition varies with other loops than the factor, it can not be put in front."""
    shifted = te.exp(A(ROW - 1, K))
    assert found(shifted * B(K, COLUMN), conditions=[ROW + COLUMN >= 5]) is None
    loads = found(shifted * B(K, COLUMN), conditions=[ROW >= 1])
    assert loads is not None
    value = tirx.if_then_else(ROW >= 1, shifted * B(K, COLUMN), 0.0)
    product = tirx.if_then_else(ROW >= 1, loads[0] * loads[1], 0.0)
    given, expected = evaluate([at_all_points(v) for v in (product, value)], KNOWN)
    np.testing.assert_allclose(given, expected)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (A(ROW, K), True),
        (tirx.Cast("float64", te.placeholder((3,), "float32", name="narrow")(ROW)), True),
        (A(PLACES(ROW), K), False),
        (tirx.Cast("float64", PLACES(ROW)), False),
        (A(ROW, K) + 0.0, True),
        (te.exp(A(ROW, K)), False),
    ],
    ids=["load", "widened", "gathered", "integer", "folded", "function"],
)
def test_operands_are_loads_of_floats(value, expected):
    assert is_operand(value) == expected
