"""Graphs of stages at one place; the rows of random programs are compared in test_stacks.py."""

import numpy as np
import pytest
from tvm import te, tirx, topi

from graphgrad.errors import ArgumentError
from graphgrad.fallback.graph import operations
from graphgrad.fallback.indices.linear_system import Axis
from graphgrad.fallback.scans.slices import Slicing, zero_based
from tests.fallback.interpreter import evaluate

X = te.placeholder((6, 4), "float64", name="x")
VALUES = np.random.default_rng(0).standard_normal((6, 4))
TIME = Axis(te.var("t"), tirx.const(0, "int32"), tirx.const(6, "int32"))


def sliced(tensor, where):
    """Return a tensor at a place in terms of the time, and the stages that compute it."""
    stages = [op for op in operations(tensor) if not isinstance(op, te.PlaceholderOp)]
    slicing = Slicing(stages, TIME, {})
    (row,) = slicing.tensors([tensor], where)
    return row, slicing.made


def stage(body, name):
    return te.compute((6, 4), body, name=name)


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        (TIME.var, [0, 1, 2, 3, 4, 5]),
        (5 - TIME.var, [5, 4, 3, 2, 1, 0]),
        (TIME.var - 2, [None, None, 0, 1, 2, 3]),
        (2 * TIME.var, [0, 2, 4, None, None, None]),
        (tirx.const(3, "int32"), [3] * 6),
    ],
    ids=["same", "falling", "before", "every second", "fixed"],
)
def test_a_row_is_that_of_its_place_and_zero_outside(where, rows):
    squares = stage(lambda i, j: X[i, j] * X[i, j] + 1.0, "squares")
    row, _ = sliced(squares, where)
    for time, expected in enumerate(rows):
        (given,) = evaluate([row], [(X, VALUES), (TIME.var, time)])
        wanted = np.zeros(4) if expected is None else VALUES[expected] ** 2 + 1
        np.testing.assert_allclose(given, wanted)


def test_each_place_at_which_a_stage_is_read_is_computed_once():
    first = stage(lambda i, j: te.exp(X[i, j]), "first")
    second = stage(
        lambda i, j: first[i, j] * first[i, 3 - j] + tirx.if_then_else(i > 0, first[i - 1, j], 0.0),
        "second",
    )
    row, made = sliced(second, TIME.var)
    assert sorted(op.name for op in made) == ["first", "first", "second"]
    assert all(len(op.axis) == 1 for op in made)
    exponents = np.exp(VALUES)
    (given,) = evaluate([row], [(X, VALUES), (TIME.var, 2)])
    np.testing.assert_allclose(given, exponents[2] * exponents[2, ::-1] + exponents[1])


def test_views_are_seen_through():
    first = stage(lambda i, j: te.exp(X[i, j]), "first")
    turned = topi.transpose(topi.transpose(first))
    second = stage(lambda i, j: turned[i, j] * 2.0, "second")
    row, made = sliced(second, TIME.var)
    assert [op.name for op in made] == ["first", "second"]
    (given,) = evaluate([row], [(X, VALUES), (TIME.var, 4)])
    np.testing.assert_allclose(given, 2 * np.exp(VALUES[4]))


def test_a_place_that_differs_by_element_is_a_dimension_of_the_slice():
    """Each element reads the row before its own: those of four rows, not all."""
    first = stage(lambda i, j: te.exp(X[i, j]), "first")
    second = stage(
        lambda i, j: tirx.if_then_else(i >= j, first[i - j, 0] * first[i - j, 1], 0.0), "second"
    )
    row, made = sliced(second, TIME.var)
    shapes = {op.name: [int(extent) for extent in op.output(0).shape] for op in made}
    assert shapes == {"first": [4, 4], "second": [4]}
    (given,) = evaluate([row], [(X, VALUES), (TIME.var, 5)])
    np.testing.assert_allclose(given, np.exp(VALUES[5:1:-1, :2]).prod(axis=1))


def test_what_cannot_be_computed_for_one_place_is_named():
    ordered = topi.sort(stage(lambda i, j: X[i, j] * 2.0, "double"), axis=1)
    with pytest.raises(ArgumentError, match="sort_cpu inside a scan"):
        sliced(ordered, TIME.var)


def test_a_loop_from_zero_has_the_same_extent():
    axis = zero_based(Axis(te.var("i", "int64"), tirx.const(3, "int64"), tirx.const(4, "int64")))
    assert (int(axis.low), int(axis.extent), str(axis.var.ty)) == (0, 4, "int64")
