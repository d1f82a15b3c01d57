"""A factor that a whole sum has in common leaves the conditions inside the sum."""

import numpy as np
import pytest
from tvm import te, tirx

import graphgrad as gg
from graphgrad.fallback.gradient import te_gradient
from graphgrad.fallback.graph import operations
from tests.fallback.interpreter import evaluate

SIZE, TAPS = 8, 3
ZERO = tirx.const(0.0, "float64")

FUNCTIONS = {
    "exp": (tirx.exp, np.exp),
    "sqrt": (tirx.sqrt, lambda a: 0.5 / np.sqrt(a)),
    "log": (tirx.log, lambda a: 1 / a),
}
"""Functions, and their derivatives."""


def weight_outside(w, x, inside):
    return w * tirx.if_then_else(inside, x, ZERO)


def weight_inside(w, x, inside):
    return tirx.if_then_else(inside, x * w, ZERO)


@pytest.mark.parametrize("pads", [True, False])
@pytest.mark.parametrize("product", [weight_outside, weight_inside])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_conditions_stay_with_the_sum(function, product, pads):
    compute, derivative = FUNCTIONS[function]
    a, x, w = (
        te.placeholder((extent,), "float64", name=name)
        for extent, name in ((SIZE, "a"), (SIZE, "x"), (TAPS, "w"))
    )
    k = te.reduce_axis((0, TAPS), name="k")
    y = te.compute(
        (SIZE,),
        lambda i: te.sum(
            compute(a[i]) * product(w[k], x[i + k], i + k < SIZE - TAPS), axis=k
        ),
    )  # fmt: skip
    head = te.placeholder((SIZE,), "float64", name="head")
    gradient = te_gradient(y, [a], head, pads=pads)
    generator = np.random.default_rng(0)
    values = [generator.uniform(0.5, 2, extent) for extent in (SIZE, SIZE, TAPS, SIZE)]
    padded = np.append(values[1][: SIZE - TAPS], np.zeros(2 * TAPS))
    sums = [values[2] @ padded[i : i + TAPS] for i in range(SIZE)]
    (computed,) = evaluate(gradient, list(zip((a, x, w, head), values, strict=True)))
    expected = values[3] * derivative(values[0]) * sums
    np.testing.assert_allclose(computed, expected, rtol=1e-12)


@pytest.mark.parametrize("pads", [True, False])
def test_what_all_points_read_is_summed_without_a_scatter(pads):
    """In a block of one element, wherever that is."""
    x, factor = te.placeholder((40,), "float64", name="x"), te.placeholder((6,), "float64", "f")
    y = te.compute((40,), lambda i: factor[4] * tirx.sin(x[i]) + factor[0] * x[i] * factor[4])
    head = te.placeholder((40,), "float64", name="head")
    gradients = te_gradient(y, [x, factor], head, pads=pads)
    assert not any(isinstance(op, te.ExternOp) for op in operations(*gradients))
    gg.check_grads((y, [x, factor]), order=2)
