"""The judge of gradients: what it calls smooth and a kink, and what it does not let pass."""

import numpy as np
import pytest
from tvm import te, tirx

from graphgrad.fallback.gradient import te_gradient
from tests.fallback import judge as judging
from tests.fallback.judge import KINK, SMOOTH, DisagreementError, judge
from tests.fallback.programs import Program

X = te.placeholder((2,), "float64", name="x")
SEEDS = range(6)


def program(body, at, extent=2):
    return Program([te.compute((extent,), body, name="y")], [X], [(X, np.array(at))])


def first_of_two(i):
    """The larger of x and of 0, of which either is the first."""
    r = te.reduce_axis((0, 2), "r")
    return te.max(tirx.if_then_else(tirx.EQ(r, i), X[0], 0.0 * X[0]), r)


@pytest.mark.parametrize(
    ("body", "at", "verdict"),
    [
        (lambda i: te.sin(X[i]) * X[1 - i], [0.3, 2.0], SMOOTH),
        (lambda i: tirx.max(X[i], 0.0), [0.0, 0.0], KINK),
        (first_of_two, [0.0, 1.0], KINK),
    ],
    ids=["smooth", "kink", "kinks of several elements"],
)
def test_verdicts(body, at, verdict):
    assert {judge(program(body, at), np.random.default_rng(seed)) for seed in SEEDS} == {verdict}


def touching():
    """The gradient of max(2 · x₀², 3 · x₁²), whose own gradient is asked for where they are equal.

    Along any line through 0 its slopes behind and ahead are the same.
    """
    y = te.compute((), lambda: tirx.max(2.0 * X[0] * X[0], 3.0 * X[1] * X[1]), name="y")
    return Program(te_gradient(y, [X]), [X], [(X, np.zeros(2))])


def test_operands_that_touch_are_a_kink():
    verdicts = {judge(touching(), np.random.default_rng(seed)) for seed in SEEDS}
    assert verdicts == {KINK}


@pytest.mark.parametrize("slope", [-0.5, 6.5])
def test_where_operands_touch_the_gradient_is_that_of_either_or_between(monkeypatch, slope):
    def wrong(outputs, inputs, heads):
        return [te.compute((2,), lambda i: slope * heads[0][i], name="wrong")]

    program = touching()
    monkeypatch.setattr(judging, "te_gradient", wrong)
    with pytest.raises(DisagreementError, match="slope"):
        for seed in SEEDS:
            judge(program, np.random.default_rng(seed))


@pytest.mark.parametrize("body", [lambda i: te.sin(X[i]), first_of_two], ids=["smooth", "kink"])
def test_a_gradient_that_is_none_is_found(monkeypatch, body):
    def wrong(outputs, inputs, heads):
        (gradient,) = te_gradient(outputs, inputs, heads)
        return [te.compute((2,), lambda i: gradient[i] * 1.001 + 3.0, name="wrong")]

    monkeypatch.setattr(judging, "te_gradient", wrong)
    with pytest.raises(DisagreementError, match="slope"):
        for seed in SEEDS:
            judge(program(body, [0.0, 1.0]), np.random.default_rng(seed))
