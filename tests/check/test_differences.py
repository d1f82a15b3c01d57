"""Differences agree with right derivatives, never with wrong ones, and tell kinks."""

import numpy as np
import pytest

from graphgrad.check.differences import FLOAT32, FLOAT64, judge, measure


def line(function, size=1.0):
    return lambda t: (float(function(t)), size)


SMOOTH = {
    "sin": (lambda t: np.sin(t + 0.3), np.cos(0.3)),
    "exp": (lambda t: np.exp(3 * t), 3.0),
    "pole near": (lambda t: 1 / (t + 0.1), -100.0),
    "constant": (lambda t: 2.0, 0.0),
    "line": (lambda t: 5 * t, 5.0),
}


@pytest.mark.parametrize("name", SMOOTH)
def test_right_derivative_agrees_at_the_first_step(name):
    function, derivative = SMOOTH[name]
    verdict = judge(line(function), derivative, 0.0, FLOAT64)
    assert verdict.agrees
    assert verdict.kink == ""
    assert verdict.error < 1e-8


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("factor", [1 + 1e-6, 1 - 1e-6, -1, 0.5])
def test_wrong_derivative_disagrees(name, factor):
    function, derivative = SMOOTH[name]
    verdict = judge(line(function), (derivative or 1e-6) * factor, 0.0, FLOAT64)
    assert not verdict.agrees
    assert verdict.kink == ""


@pytest.mark.parametrize("distance", [1.5e-3, 3e-4, 2e-5, 1e-9 + 4e-6])
@pytest.mark.parametrize("side", [1, -1])
def test_near_a_kink_a_smaller_step_decides(distance, side):
    def bent(t):
        return np.sin(t) + 2 * np.maximum(side * t - distance, 0.0)

    verdict = judge(line(bent), 1.0, 0.0, FLOAT64)
    assert verdict.agrees
    assert verdict.kink == "near"
    for wrong in (1 + 1e-5, 0.0, 3.0, 2.0, -1.0):
        assert not judge(line(bent), wrong, 0.0, FLOAT64).agrees


@pytest.mark.parametrize("distance", [1.5e-3, 3e-4, 2e-5])
def test_near_a_jump_of_a_constant_a_smaller_step_decides(distance):
    def jumps(t):
        return 2.0 * (t > distance)

    verdict = judge(line(jumps), 0.0, 0.0, FLOAT64)
    assert verdict.agrees
    assert verdict.kink == "near"
    assert not judge(line(jumps), 1e-3, 0.0, FLOAT64).agrees


@pytest.mark.parametrize("given", [0.0, 0.3, 1.0])
def test_on_a_kink_no_gradient_is_judged(given):
    verdict = judge(line(lambda t: max(t, 0.0)), given, 0.0, FLOAT64)
    assert not verdict.agrees
    assert verdict.kink == "exact"
    assert (verdict.slope.left, verdict.slope.right) == pytest.approx((0.0, 1.0), abs=1e-6)


def test_symmetric_kink_hides_behind_no_central_difference():
    """|t| has central differences of exactly zero: a gradient of zero agrees, as it should."""
    assert judge(line(abs), 0.0, 1.0, FLOAT64).agrees
    assert judge(line(abs), 0.5, 1.0, FLOAT64).kink == "exact"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_never_agrees(value):
    assert not judge(line(np.sin), value, 0.0, FLOAT64).agrees
    assert not judge(line(lambda t: value), 0.0, 0.0, FLOAT64).agrees


def test_rounding_is_allowed_for():
    generator = np.random.default_rng(0)
    noisy = line(lambda t: 1e6 + t + generator.uniform(-1e-10, 1e-10), size=1e6)
    verdict = judge(noisy, 1.0, 1.0, FLOAT64)
    assert verdict.agrees
    assert verdict.slope.noise > 1e-8


def test_float32_is_judged_to_a_thousandth():
    def single(t):
        return np.sin(np.float32(0.3 + t))

    assert judge(line(single), np.cos(0.3), 0.0, FLOAT32).agrees
    assert not judge(line(single), 1.01 * np.cos(0.3), 0.0, FLOAT32).agrees


def test_order_of_the_estimate():
    errors = [abs(measure(line(np.exp), step, 0.0).value - 1.0) for step in (0.4, 0.2)]
    assert errors[0] / errors[1] == pytest.approx(2**6, rel=0.05)


def test_at_a_jump_no_gradient_is_judged():
    assert judge(line(lambda t: t + (t > 0)), 1.0, 1.0, FLOAT64).kink == "exact"
    assert judge(line(lambda t: t + (t >= 0)), 1.0, 1.0, FLOAT64).kink == "exact"


@pytest.mark.parametrize("given", [1.0, 1.0001])
def test_a_small_kink_is_told_where_it_explains_the_error(given):
    """Its jump is a ten-thousandth of the slope."""
    small = line(lambda t: t * (1.0001 if t > 0 else 1.0))
    assert judge(small, given, 1.0, FLOAT64).kink == "exact"
    assert judge(small, 1.01, 1.0, FLOAT64).kink == ""
