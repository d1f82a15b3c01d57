"""Gradients of numpy functions are compared, and the worst element is found."""

import numpy as np
import pytest

import graphgrad as gg
from graphgrad.check import Tolerances, compare_gradients

X = np.linspace(0.2, 1.7, 12).reshape(3, 4)


def compare(gradient, x=X, function=np.sin, **options):
    return compare_gradients(
        lambda v: [function(v)],
        [x],
        [np.ones_like(x)],
        [gradient],
        np.random.default_rng(0),
        "sine",
        **options,
    )


def test_right_gradient():
    (check,) = compare(np.cos(X), names=["angle"])
    assert check.name == "input 'angle'"
    assert check.error < 1e-10
    assert not check.kink


@pytest.mark.parametrize("shape", [(), (1,), (3, 4), (70,), (40, 50)])
def test_worst_element_is_named(shape):
    x = np.array(np.random.default_rng(1).uniform(0.2, 1.5, shape))
    gradient = np.array(np.cos(x))
    index = tuple(extent // 2 for extent in shape)
    gradient[index] += 0.25
    with pytest.raises(gg.GradientMismatch, match="sine: along a random direction") as caught:
        compare(gradient, x)
    error = caught.value
    assert error.index == index
    assert error.input == "input 0"
    assert error.expected == pytest.approx(np.cos(x[index]), rel=1e-8)
    assert error.given == gradient[index]
    assert not error.kink


def test_tolerances_are_given():
    wrong = np.cos(X) * (1 + 1e-5)
    with pytest.raises(gg.GradientMismatch):
        compare(wrong)
    compare(wrong, tolerances=Tolerances(rtol=1e-4))
    compare(wrong, tolerances=Tolerances(rtol=0.0, atol=1e-3))


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_tolerance_is_relative(scale):
    def scaled(v):
        return scale * np.sin(v)

    compare(scale * np.cos(X), function=scaled)
    with pytest.raises(gg.GradientMismatch):
        compare(scale * np.cos(X) * (1 + 1e-6), function=scaled)


def test_masked_outputs_and_infinite_inputs():
    x = np.array([0.5, -np.inf, 1.0])
    gradient = np.array([1.0, 0.0, 1.0])
    cotangent = np.array([1.0, 0.0, 1.0])
    compare_gradients(
        lambda v: [v], [x], [cotangent], [gradient], np.random.default_rng(0), "identity"
    )


def test_empty_input():
    assert compare(np.zeros((0, 3)), np.zeros((0, 3)))[0].error == 0.0


@pytest.mark.parametrize(
    "gradient",
    [np.cos(X).T, np.cos(X).astype("float32"), np.cos(X)[0], np.full_like(X, np.nan)],
    ids=["shape", "dtype", "rank", "NaN"],
)
def test_gradient_that_does_not_fit(gradient):
    with pytest.raises(gg.GradientMismatch):
        compare(gradient)


def test_number_of_gradients():
    with pytest.raises(gg.GradientMismatch, match="0 gradients for 1 inputs"):
        compare_gradients(lambda v: [v], [X], [X], [], np.random.default_rng(0), "identity")


def test_on_a_kink_it_says_so():
    with pytest.raises(gg.GradientMismatch, match="the point is a kink") as caught:
        compare(np.zeros(3), np.zeros(3), lambda v: np.maximum(v, 0.0))
    assert caught.value.kink
