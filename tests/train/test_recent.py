"""What a step keeps for the next calls is bounded, and goes with the step."""

import gc
import weakref

import numpy as np
import pytest

import graphgrad as gg
from graphgrad.errors import ArgumentError
from graphgrad.train.recent import Limit, Recent
from tests.frontend.graphs import random
from tests.train.nets import perceptron, staged


def test_what_was_used_longest_ago_goes():
    limit = Limit(2)
    recent, made = Recent(limit), []

    def value(key):
        return recent.get(key, lambda: made.append(key) or key.upper())

    assert [value(key) for key in "abacbb"] == list("ABACBB")
    assert made == ["a", "b", "c", "b"]
    assert recent.keys() == ["c", "b"]
    limit.count = 1
    assert value("b") == "B" and recent.keys() == ["b"] and len(made) == 4
    recent.clear()
    assert recent.keys() == []


def test_what_cannot_be_made_costs_nothing():
    recent = Recent(Limit(1))
    recent.get("kept", lambda: 1)
    with pytest.raises(ZeroDivisionError):
        recent.get("failing", lambda: 1 // 0)
    assert recent.get("kept", lambda: 2) == 1


def batch(size):
    return random(size, 4, seed=size), np.arange(size) % 3


@pytest.mark.parametrize("accumulate", [1, 2])
def test_shapes_that_come_back_compute_the_same(accumulate):
    """With one combination kept, each call compiles; nothing but that differs."""
    options = {"optimizer": gg.optim.SGD(0.1, momentum=0.9), "accumulate": accumulate}
    bounded, other = (gg.train_step(perceptron(), **options) for _ in range(2))
    bounded.most_shapes = 1
    assert other.most_shapes == 64
    for size in (2, 3, 2, 3):
        assert float(bounded(*batch(size))) == float(other(*batch(size)))
        outputs = [step.evaluate(batch(size)[0])["logits"] for step in (bounded, other)]
        np.testing.assert_array_equal(*outputs)
        assert len(bounded._functions.shapes) == 1
        assert len(staged(bounded)) == len({name for name, *_ in staged(bounded)})
    assert len(other._functions.shapes) == 2
    for name, array in other.params.items():
        np.testing.assert_array_equal(bounded.params[name], array)


def test_a_gradient_of_several_shapes():
    gradient = gg.value_and_grad(perceptron(), loss="cross_entropy")
    gradient.most_shapes = 1
    for size in (2, 3, 2):
        inputs, targets = batch(size)
        outputs, _ = gradient({"input": inputs, "targets": targets})
        assert outputs["logits"].shape == (size, 3)
        assert len(gradient._compiled.keys()) == 1


@pytest.mark.parametrize("count", [0, -1, 2.0, True, None, "3"])
def test_a_number_that_is_none(count):
    step = gg.train_step(perceptron())
    with pytest.raises(ArgumentError, match=r"most_shapes=.* must be a whole number, at least 1"):
        step.most_shapes = count
    assert step.most_shapes == 64


def test_a_step_goes_at_once():
    """It holds memory of a device, and programs: they must not wait for a garbage collection."""
    step = gg.train_step(perceptron(), accumulate=2)
    loss = [step(*batch(2)) for _ in range(2)][-1]
    outputs = step.evaluate(batch(2)[0])
    gc.collect()
    gc.disable()
    try:
        gone = weakref.ref(step)
        del step
        assert gone() is None
    finally:
        gc.enable()
    assert np.isfinite(float(loss)) and np.isfinite(outputs["logits"]).all()
