"""Forward mode: products of the Jacobian with tangents, against differences."""

import numpy as np
import pytest
from tvm import te, tirx, topi

import graphgrad as gg
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
