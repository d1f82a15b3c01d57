"""Derivatives that are zero by algebra are left out, and only those."""

import numpy as np
import pytest
from tvm import te, tirx, topi

import graphgrad as gg
from graphgrad.fallback.forms.cancellation import drop_canceling
from graphgrad.fallback.graph import is_reduction, operations
from tests.fallback.interpreter import evaluate

ROWS, COLUMNS = 3, 5


@pytest.fixture
def x():
    return te.placeholder((ROWS, COLUMNS), "float64", name="x")


@pytest.fixture
def scale():
    return te.placeholder((ROWS,), "float64", name="scale")


def columns(name):
    return te.reduce_axis((0, COLUMNS), name)


def row_sum(body, name="total"):
    k = columns("k")
    return te.compute((ROWS,), lambda i: te.sum(body(i, k), axis=k), name=name)


def maximum(x):
    k = columns("k")
    return te.compute((ROWS,), lambda i: te.max(x[i, k], axis=k), name="maximum")


def log_sum_exp(x, shift):
    total = row_sum(lambda i, k: te.exp((x[i, k] - shift[i]) / 0.5))
    return te.compute((ROWS,), lambda i: shift[i] + 0.5 * te.log(total[i]), name="log_sum_exp")


def softmax(x, shift):
    exponential = te.compute(x.shape, lambda i, j: te.exp(x[i, j] - shift[i]), name="exponential")
    total = row_sum(lambda i, k: exponential[i, k])
    return te.compute(x.shape, lambda i, j: exponential[i, j] / total[i], name="softmax")


def centered(x, mean):
    return te.compute(x.shape, lambda i, j: x[i, j] - mean[i], name="centered")


def variance(x, mean):
    deviation = centered(x, mean)
    return row_sum(lambda i, k: deviation[i, k] * deviation[i, k] / COLUMNS, "variance")


def mean_of(x):
    total = row_sum(lambda i, k: x[i, k])
    return te.compute((ROWS,), lambda i: total[i] / COLUMNS, name="mean")


def squared(x, name):
    return te.compute(x.shape, lambda i, j: x[i, j] * x[i, j], name=name)


CANCELING = {
    "log_sum_exp": lambda x, scale: log_sum_exp(x, maximum(x)),
    "softmax": lambda x, scale: softmax(x, maximum(x)),
    "variance": lambda x, scale: variance(x, mean_of(x)),
    "deviation": lambda x, scale: topi.sqrt(variance(x, mean_of(x))),
    "scaled_variance": lambda x, scale: topi.multiply(variance(x, mean_of(x)), topi.exp(scale)),
    "whole": lambda x, scale: topi.sum(
        topi.power(topi.subtract(x, topi.divide(topi.sum(x), 15.0)), 2.0)
    ),
}
"""What subtracts a statistic of a row that the result does not depend on, to first order."""

CONTRIBUTING = {
    "centered": lambda x, scale: centered(x, mean_of(x)),
    "third_moment": lambda x, scale: row_sum(
        lambda i, k: te.power(centered(x, mean_of(x))[i, k], 3.0)
    ),
    "half_mean": lambda x, scale: variance(x, topi.multiply(mean_of(x), 0.5)),
    "masked": lambda x, scale: row_sum(
        lambda i, k: te.power(tirx.if_then_else(k < 3, centered(x, mean_of(x))[i, k], x[i, k]), 2.0)
    ),
    "wrong_scale": lambda x, scale: row_sum(lambda i, k: te.exp(2.0 * (x[i, k] - maximum(x)[i]))),
    "other_rows": lambda x, scale: row_sum(
        lambda i, k: te.power(x[i, k] - mean_of(x)[(i + 1) % ROWS], 2.0)
    ),
    "weighted": lambda x, scale: row_sum(lambda i, k: scale[i] * (x[i, k] * mean_of(x)[i])),
}
"""What depends on the statistic that it reads."""


def reductions(output, x, scale, pads):
    """Return how many stages of the gradients by x and scale reduce."""
    head = te.placeholder(output.shape, "float64", name="head")
    gradients = gg.te_gradient(output, [x, scale], head, pads=pads)
    return sum(map(is_reduction, operations(*gradients)))


@pytest.mark.parametrize("name", CANCELING)
def test_what_cancels_is_left_out(name, x, scale):
    output = CANCELING[name](x, scale)
    assert reductions(output, x, scale, True) < reductions(output, x, scale, False)


@pytest.mark.parametrize("name", CONTRIBUTING)
def test_what_contributes_stays(name, x, scale):
    output = CONTRIBUTING[name](x, scale)
    assert reductions(output, x, scale, True) == reductions(output, x, scale, False)


@pytest.mark.parametrize(("name", "build"), [*CANCELING.items(), *CONTRIBUTING.items()])
def test_gradients(name, build, x, scale):
    random = np.random.default_rng(0)
    arrays = [random.uniform(0.5, 1.5, [int(e) for e in t.shape]) for t in (x, scale)]
    gg.check_grads((build(x, scale), [x, scale]), arrays, order=2)


def test_a_sum_that_cancels_another(x):
    """The parts of a total cancel although none of them is zero."""
    total = row_sum(lambda i, k: x[i, k])
    negative = row_sum(lambda i, j: 0.0 - x[i, j])
    assert drop_canceling([total, negative]) == []
    (left,) = drop_canceling([total, row_sum(lambda i, k: x[i, k] - x[i, k])])
    assert left.same_as(total)


def test_names_of_loops_do_not_matter(x):
    y = te.placeholder((COLUMNS, COLUMNS), "float64", name="y")
    k, j = columns("k"), columns("j")
    both = te.compute(
        (ROWS,), lambda i: te.sum(x[i, k] * y[k, j] * x[i, j], axis=[j, k]), name="both"
    )
    inner = te.compute(x.shape, lambda i, m: te.sum(y[m, k] * x[i, k], axis=k), name="inner")
    nested = row_sum(lambda i, m: 0.0 - x[i, m] * inner[i, m])
    assert drop_canceling([both, nested]) == []
    transposed = row_sum(lambda i, m: 0.0 - x[i, m] * y[m, i])
    assert len(drop_canceling([both, transposed])) == 2


def test_infinite_elements_stay_where_they_are(x):
    """What an infinite element makes of a row does not go by what cancels."""
    head = te.placeholder((ROWS,), "float64", name="head")
    (gradient,) = gg.te_gradient(log_sum_exp(x, maximum(x)), x, head)
    values = np.zeros((ROWS, COLUMNS))
    values[0, 1], values[1, 2] = -np.inf, np.nan
    ((result,),) = [evaluate([gradient], [(x, values), (head, np.ones(ROWS))])]
    np.testing.assert_allclose(result[0], [0.25, 0, 0.25, 0.25, 0.25])
    assert np.isnan(result[1]).all()
    np.testing.assert_allclose(result[2], 0.2)


def test_a_large_expression_is_left_as_it_is(x):
    """Nothing is proved of what would take too long."""
    value = x
    for number in range(80):
        value = squared(value, f"squared{number}")
    total = row_sum(lambda i, k: value[i, k])
    assert len(drop_canceling([total])) == 1
