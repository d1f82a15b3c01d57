"""``rules="derived"`` reaches every place that differentiates a model."""

import dataclasses

import numpy as np
import pytest
import tvm
from tvm import relax

import graphgrad as gg
from graphgrad.registry import rule
from tests.frontend.graphs import random
from tests.running import function, run
from tests.train.nets import perceptron

X, LABELS = random(8, 4), np.arange(8) % 3


@pytest.fixture
def _no_relu(monkeypatch):
    """Let graphgrad's own rule of relu send nothing, so that it is told from the derived one."""
    zero = dataclasses.replace(
        rule.find("relax.nn.relu"), function=lambda inputs, outputs, cts, attrs: [cts[0] * 0.0]
    )
    monkeypatch.setitem(rule._RULES["hand"], "relax.nn.relu", zero)


def gradient(rules):
    f = gg.value_and_grad(perceptron(), wrt="fc1.weight", loss="cross_entropy", rules=rules)
    return f({"input": X, "targets": LABELS})[1]["fc1.weight"]


def test_value_and_grad(_no_relu):
    assert not gradient("auto").any()
    assert gradient("derived").any()


def test_derived_gradients_are_those_of_the_rules():
    np.testing.assert_allclose(gradient("derived"), gradient("auto"), rtol=1e-5, atol=1e-7)


def test_train_step(_no_relu):
    steps = {r: gg.train_step(perceptron(), rules=r) for r in ("auto", "derived")}
    start = perceptron().params["fc1.weight"]
    for step in steps.values():
        step(X, LABELS)
    np.testing.assert_array_equal(steps["auto"].params["fc1.weight"], start)
    assert (steps["derived"].params["fc1.weight"] != start).any()


def test_pass(_no_relu):
    def build(builder, x):
        return builder.emit(relax.op.sum(builder.emit(relax.op.nn.relu(x))))

    mod = function(build, ((3,), "float32"))
    for rules, expected in [("auto", 0.0), ("derived", 1.0)]:
        adjoint = gg.transform.Gradient("main", rules=rules)(mod)
        _, x_bar = run(adjoint, "main_adjoint", np.ones(3, "float32"))
        np.testing.assert_array_equal(x_bar, expected)


@pytest.mark.parametrize(
    "differentiate",
    [
        lambda: gg.value_and_grad(perceptron(), rules="none"),
        lambda: gg.train_step(perceptron(), rules="none"),
        lambda: gg.export_step(perceptron(), "never-written", rules="none"),
        lambda: gg.coverage(perceptron(), rules="none"),
        lambda: gg.transform.Gradient("main", rules="none")(tvm.IRModule()),
    ],
    ids=["value_and_grad", "train_step", "export_step", "coverage", "Gradient"],
)
def test_unknown_rules(differentiate):
    with pytest.raises(gg.ArgumentError, match="rules='none': expected 'auto' or 'derived'"):
        differentiate()
