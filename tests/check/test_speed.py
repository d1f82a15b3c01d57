"""The text and the measuring of a rule's speed; nothing here depends on how fast anything is."""

import numpy as np
import pytest
from tvm import relax

import graphgrad as gg
from graphgrad.check import speed as module
from graphgrad.check.speed import Speed, measure_speed
from graphgrad.registry import unregister
from tests.running import function


@pytest.mark.parametrize(
    ("rule", "derived", "text"),
    [
        (
            2e-3,
            5e-3,
            "take 2 ms, derived 5 ms (float32, these sizes): the rule is 2.50 times as fast",
        ),
        (
            3.0,
            1.5e-5,
            "take 3 s, derived 15 µs (float32, these sizes): the rule is 200000.00 times",
        ),
    ],
)
def test_text(rule, derived, text):
    assert text in str(Speed(rule, derived, "float32"))


def test_slow_calls_are_made_twice(monkeypatch):
    clock = iter(np.arange(0, 1000, 0.5))
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(clock))
    made = []
    assert module._medians(lambda: made.append(1), lambda: made.append(2)) == [0.5, 0.5]
    assert made == [1, 2, 1, 2]


def test_a_median_of_turns(monkeypatch):
    clock = iter(np.arange(0, 1000, 1e-3))
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(clock))
    made = []
    times = module._medians(lambda: made.append(1), lambda: made.append(2))
    np.testing.assert_allclose(times, [1e-3, 1e-3])
    assert made == [1, 2] * (2 + module._RUNS)


def test_what_is_compared_are_the_rule_and_the_derivation():
    def build(builder, x):
        return builder.emit(relax.op.exp(x))

    seen = []

    @gg.register_gradient("relax.exp")
    def rule(inputs, outputs, cotangents, attrs):
        seen.append(1)
        return [cotangents[0] * outputs[0]]

    try:
        mod = function(build, ((8,), "float32"))
        assert measure_speed(mod, "main", [0], [np.ones(8, "float32")]).dtype == "float32"
        assert seen == [1]
    finally:
        unregister("relax.exp")
