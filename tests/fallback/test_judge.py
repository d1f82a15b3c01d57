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


@pytest.mark.parametrize("body", [lambda i: te.sin(X[i]), first_of_two], ids=["smooth", "kink"])
def test_a_gradient_that_is_none_is_found(monkeypatch, body):
    def wrong(outputs, inputs, heads):
        (gradient,) = te_gradient(outputs, inputs, heads)
        return [te.compute((2,), lambda i: gradient[i] * 1.001 + 3.0, name="wrong")]

    monkeypatch.setattr(judging, "te_gradient", wrong)
    with pytest.raises(DisagreementError, match="slope"):
        for seed in SEEDS:
            judge(program(body, [0.0, 1.0]), np.random.default_rng(seed))
