"""Conditions that protect the loads of other conditions, compiled."""

import numpy as np
import pytest
from tvm import te, tirx

from graphgrad.fallback import create_prim_func
from graphgrad.fallback.gradient import te_gradient
from graphgrad.fallback.lowering.nested_guards import protect_guards
from tests.fallback.running import run, unwritten

X = te.placeholder((5,), "float32", name="x")
VALUES = np.array([1, 2, 1, 1, 1], "float32")
FAR = 10**8
"""Elements further than memory goes: to read there is to crash."""

N = te.var("n", "int64")


def far(i):
    return X[(i - 1) * FAR]


def choice(condition, value):
    return tirx.if_then_else(condition, value, tirx.const(0.0))


def two(i):
    return choice(X[i] > 1.5, choice(far(i) > 0.5, X[i]))


def three(i):
    return choice(X[i] > 1.5, choice(far(i) > 0.5, choice(far(i) < 9.0, X[i])))


def of_a_range(i):
    return choice(tirx.all(i > 0, i < N), choice(far(i) > 0.5, X[i]))


def with_another(i):
    return choice(X[i] > 1.5, choice(tirx.any(i > 9, choice(far(i) > 0.5, X[i]) > 1.0), X[i]))


def mapped(body):
    return te.compute((5,), body, name="y")


def summed(body):
    k = te.reduce_axis((0, 5), "k")
    return te.compute((5,), lambda i: te.sum(choice(tirx.EQ(i, k), body(k)), axis=k), name="y")


def written(body):
    """The same as statements."""

    def statements(_, outputs):
        i = tirx.Var("i", "int32")
        store = tirx.BufferStore(outputs[0], body(i), [i])
        return tirx.For(i, 0, 5, tirx.ForKind.SERIAL, store)

    return te.extern([(5,)], [X], statements, dtype=["float32"], name="y")


@pytest.mark.parametrize("stage", [mapped, summed, written], ids=lambda f: f.__name__)
@pytest.mark.parametrize("body", [two, three, of_a_range, with_another], ids=lambda f: f.__name__)
def test_only_what_is_allowed_is_read(stage, body):
    output = stage(body)
    symbolic = [N] if body is of_a_range else []
    func = create_prim_func([X, *symbolic, output])
    _, given = run(func, VALUES, *[2 for _ in symbolic], *unwritten(output))
    np.testing.assert_array_equal(given, [0, 2, 0, 0, 0])


def test_conditions_without_loads_stay_as_they_are():
    output = mapped(lambda i: choice(i > 0, choice(i < 4, X[i - 1])))
    assert protect_guards(output.op) is None


def test_gradients_are_protected():
    """Where the range is left, the mask is not read either."""
    output = mapped(lambda i: choice(X[i] > 1.5, choice(far(i) > 0.5, tirx.exp(X[i]))))
    (gradient,) = te_gradient(output, [X])
    _, given = run(create_prim_func([X, gradient]), VALUES, *unwritten(gradient))
    np.testing.assert_allclose(given, [0, np.exp(2), 0, 0, 0], rtol=1e-6)
