"""Forward mode: tangents against differences along the same directions."""

import numpy as np
import pytest
from tvm import te, topi

import graphgrad as gg
from tests.fallback.interpreter import evaluate

STEP = 1e-6
GENERATOR = np.random.default_rng(0)
X = te.placeholder((3, 4), "float64", name="x")
W = te.placeholder((4, 2), "float64", name="w")
VALUES, WEIGHTS = GENERATOR.standard_normal((3, 4)), GENERATOR.standard_normal((4, 2))
OUTPUTS = [topi.matmul(topi.tanh(X), W), topi.nn.softmax(X)]


def tangent_of(tensor):
    tangent = te.placeholder(tensor.shape, "float64", name=f"{tensor.op.name}_tangent")
    return tangent, GENERATOR.standard_normal([int(extent) for extent in tensor.shape])


def test_tangents_agree_with_differences():
    (dx, x_step), (dw, w_step) = tangent_of(X), tangent_of(W)
    results = gg.te_jvp(OUTPUTS, [X, W], [dx, dw])
    known = [(X, VALUES), (W, WEIGHTS), (dx, x_step), (dw, w_step)]
    ahead, behind = (
        evaluate(OUTPUTS, [(X, VALUES + s * STEP * x_step), (W, WEIGHTS + s * STEP * w_step)])
        for s in (1, -1)
    )
    for given, a, b in zip(evaluate(results, known), ahead, behind, strict=True):
        np.testing.assert_allclose(given, (a - b) / (2 * STEP), atol=1e-8)


def test_an_input_without_a_tangent_stays_as_it_is():
    dw, step = tangent_of(W)
    results = gg.te_jvp(OUTPUTS, [X, W], [None, dw])
    product, normalised = evaluate(results, [(X, VALUES), (W, WEIGHTS), (dw, step)])
    np.testing.assert_allclose(product, np.tanh(VALUES) @ step, rtol=1e-12)
    assert not normalised.any()


def test_tangents_that_do_not_fit_are_refused():
    with pytest.raises(gg.ArgumentError, match=r"shape \[2\]"):
        gg.te_jvp(OUTPUTS[0], X, te.placeholder((2,), "float64", name="short"))
