"""Branches that become choices in kernels of gradients, and those that must not."""

import numpy as np
import pytest
from tvm import te, tirx
from tvm.ir import prim

from graphgrad.fallback.kernels import choices
from graphgrad.fallback.kernels.choices import select_without_branching
from graphgrad.fallback.walk import is_conditional, postorder
from graphgrad.lower.cpu.vector_math import FUNCTIONS
from tests.fallback.interpreter import evaluate

ZERO = tirx.const(0.0, "float64")
X = te.placeholder((4, 6), "float64", name="x")
AT = te.placeholder((4,), "int64", name="at")


def branches(body, reduced=False):
    """Return how many branches are left of those in a body over the elements of X."""
    if reduced:
        k = te.reduce_axis((0, 6), name="k")
        stage = te.compute((4,), lambda i: te.sum(body(i, k), axis=k))
    else:
        stage = te.compute((4, 6), body)
    (result,) = select_without_branching([stage])
    known = [(X, np.random.default_rng(0).uniform(-1, 1, (4, 6))), (AT, np.array([0, 9, 2, 0]))]
    before, after = evaluate([stage, result], known)
    np.testing.assert_array_equal(before, after)
    (root,) = result.op.body
    roots = root.source if isinstance(root, tirx.Reduce) else [root]
    return sum(map(is_conditional, postorder(*roots)))


@pytest.mark.parametrize("reduced", [False, True], ids=["map", "sum"])
def test_masked_copy(reduced):
    assert branches(lambda i, j: tirx.if_then_else(X(i, j) > 0, X(i, j) * 2.0, ZERO), reduced) == 0


def test_a_condition_on_what_a_binding_holds():
    def body(i, j):
        value = te.var("value", "float64")
        return prim.Let(value, X(i, j), tirx.if_then_else(value > 0, X(i, 5 - j), value))

    assert branches(body) == 0


def test_places_that_bindings_hold():
    """A load inside its tensor, at an index that is bound to a variable."""

    def body(shift):
        def at(i, j):
            place = te.var("place", "int32")
            value = tirx.if_then_else(X(i, j) > 0, X(i, place), ZERO)
            return prim.Let(place, j // 2 + shift, value)

        return at

    assert branches(body(3)) == 0
    assert branches(body(4)) == 1


def test_functions_of_vectors_are_computed_in_vain():
    """In float32 they are arithmetic; in float64 a call of the C library for each element."""

    def left(dtype, function):
        x = te.placeholder((4,), dtype, name="x")

        def body(i):
            return tirx.if_then_else(x(i) > 0, function(x(i)), tirx.const(0.0, dtype))

        (result,) = select_without_branching([te.compute((4,), body)])
        return sum(map(is_conditional, postorder(*result.op.body)))

    assert left("float32", tirx.exp) == left("float32", tirx.log1p) == 0
    assert left("float64", tirx.exp) == left("float32", tirx.sin) == 1


def test_functions_of_vectors_are_those_that_are_written_out():
    """And instructions: a magnitude, a root, a comparison of bits."""
    instructions = {"tirx.fabs", "tirx.isnan", "tirx.sqrt"}
    assert FUNCTIONS | instructions == choices._FUNCTIONS_OF_VECTORS


def test_masks_inside_masks():
    def body(i, j):
        inner = tirx.if_then_else(X(i, 5 - j) > 0, X(i, j), ZERO)
        return tirx.if_then_else(X(i, j) > 0, inner, X(3 - i, j))

    assert branches(body) == 0


def test_condition_on_loops_stays():
    assert branches(lambda i, j: tirx.if_then_else(j < 3, X(i, j), ZERO)) == 1


def test_load_that_may_be_outside_stays_protected():
    def body(i, j):
        return tirx.if_then_else(AT(i) < 6, X(i, AT(i)), ZERO)

    assert branches(body) == 1


def test_load_outside_that_loops_protect_stays_protected():
    def body(i, j):
        shifted = tirx.if_then_else(j < 5, X(i, j + 1), ZERO)
        return tirx.if_then_else(X(i, j) > 0, shifted, ZERO)

    assert branches(body) == 2, "with one left, the other does no harm"


def test_division_by_what_may_be_zero_stays_protected():
    def body(i, j):
        return tirx.if_then_else(AT(i) > 0, (7 // AT(i)).astype("float64"), ZERO)

    assert branches(body) == 1


def test_costly_value_is_branched_around():
    assert branches(lambda i, j: tirx.if_then_else(X(i, j) > 0, te.exp(X(i, j)), ZERO)) == 1
