"""Forward mode: products of the Jacobian with tangents, against differences."""

import numpy as np
import pytest
from tvm import te, tirx, topi

import graphgrad as gg
from graphgrad.errors import ArgumentError, NotDifferentiableError
from tests.fallback.interpreter import evaluate

A = te.placeholder((3, 4), "float64", name="A")
B = te.placeholder((4, 2), "float64", name="B")
U = te.placeholder((3, 4), "float64", name="U")
V = te.placeholder((4, 2), "float64", name="V")
ARRAYS = [np.linspace(-1.0, 1.3, 12).reshape(3, 4), np.linspace(0.4, 2.0, 8).reshape(4, 2)]
TANGENTS = [np.cos(np.arange(12.0)).reshape(3, 4), np.sin(np.arange(8.0)).reshape(4, 2)]

PROGRAMS = {
    "matmul": lambda: topi.matmul(topi.tanh(A), B),
    "sums": lambda: topi.sum(A, axis=0),
    "guarded": lambda: te.compute(
        (3, 4), lambda i, j: tirx.if_then_else(j > 0, A[i, j - 1] * A[i, j], 0.0)
    ),
    "quotients": lambda: te.compute((3, 4), lambda i, j: A[i, j] / B[j, 0]),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_tangents_are_differences(program):
    output = PROGRAMS[program]()
    (tangent,) = gg.te_jvp(output, [A, B], [U, V])
    known = [*zip([A, B], ARRAYS, strict=True), *zip([U, V], TANGENTS, strict=True)]
    (given,) = evaluate([tangent], known)
    ends = []
    for step in (1e-6, -1e-6):
        moved = [a + step * t for a, t in zip(ARRAYS, TANGENTS, strict=True)]
        ends += evaluate([output], list(zip([A, B], moved, strict=True)))
    np.testing.assert_allclose(given, (ends[0] - ends[1]) / 2e-6, rtol=1e-6, atol=1e-8)


def test_an_input_without_a_tangent_stays_as_it_is():
    output = PROGRAMS["matmul"]()
    (tangent,) = gg.te_jvp(output, [A, B], [None, V])
    known = [*zip([A, B], ARRAYS, strict=True), (V, TANGENTS[1])]
    (given,) = evaluate([tangent], known)
    np.testing.assert_allclose(given, np.tanh(ARRAYS[0]) @ TANGENTS[1])


def test_with_several_outputs_each_has_a_tangent():
    outputs = [topi.tanh(A), topi.multiply(A, A)]
    known = [(A, ARRAYS[0]), (U, TANGENTS[0])]
    first, second = evaluate(gg.te_jvp(outputs, A, U), known)
    np.testing.assert_allclose(first, TANGENTS[0] / np.cosh(ARRAYS[0]) ** 2)
    np.testing.assert_allclose(second, 2 * ARRAYS[0] * TANGENTS[0])


@pytest.mark.parametrize("pads", [True, False])
def test_pads_are_made_only_where_they_may_be(pads):
    """The last element is read only where the weight is 0.5; beside it a border of zeros is ∞."""
    weights = te.placeholder((2,), "float64", name="weights")
    x, tangent = (te.placeholder((3,), "float64", name=name) for name in ("x", "tangent"))
    tap = te.reduce_axis((0, 2), "tap")
    output = te.compute(
        (3,), lambda i: te.sum(tirx.if_then_else(i >= tap, x[i - tap], 0.0) * weights[tap], tap)
    )
    known = [(weights, np.array([0.5, np.inf])), (x, np.ones(3)), (tangent, np.ones(3))]
    with np.errstate(invalid="ignore"):
        (given,) = evaluate(gg.te_jvp(output, x, tangent, pads=pads), known)
    assert np.isnan(given[0]) if pads else given[0] == 0.5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("A", A, U), "a str was given as output; it must be a te.Tensor"),
        ((A, [A, 1.0], [U, U]), "a float was given as input; it must be a te.Tensor"),
        ((A, [], []), "no input was given; give one te.Tensor at least"),
        ((A, A, None), "a NoneType was given as tangent; it must be a te.Tensor"),
        ((A, [A, B], [U]), "there are 2 inputs, but 1 tangents; give one for each, None for an"),
        (
            (A, A, V),
            r"the tangent is float64 of shape \[4, 2\]; it must be as the input A: float64",
        ),
    ],
    ids=["output", "input", "none", "no tangent", "count", "shape"],
)
def test_arguments_that_make_no_sense(arguments, message):
    with pytest.raises(ArgumentError, match=message):
        gg.te_jvp(*arguments)


@pytest.mark.parametrize("role", ["output", "input"])
def test_what_is_not_of_floats_has_no_tangent(role):
    rows = te.placeholder((3,), "int32", name="rows")
    taken = topi.take(A, rows, 0)
    arguments = (topi.argmax(A, 0), A, U) if role == "output" else (taken, [A, rows], [U, None])
    with pytest.raises(NotDifferentiableError, match=f"the {role} .* is int32, not float.*leave"):
        gg.te_jvp(*arguments)
