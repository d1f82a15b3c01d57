"""Training with dropout: reproducible, off in evaluation, one mask forward and backward."""

import numpy as np
import pytest
from onnx import helper

import graphgrad as gg
from tests.frontend.graphs import model_of, random


def network(rate=0.5):
    """A linear layer between two dropouts, inputs (N, 6), outputs (N, 3)."""
    nodes = [
        helper.make_node("Dropout", ["x", "rate"], ["dropped"], name="first"),
        helper.make_node("MatMul", ["dropped", "weight"], ["hidden"]),
        helper.make_node("Dropout", ["hidden", "rate"], ["y"], name="second"),
    ]
    constant = helper.make_node("Constant", [], ["rate"], value_float=rate)
    arrays = {"weight": random(6, 3)}
    return gg.from_onnx(model_of([constant, *nodes], {"x": ["N", 6]}, {"y": ["N", 3]}, arrays))


X, Y = random(8, 6, seed=1), random(8, 3, seed=2)


def losses(step, count=4):
    return [step(X, Y) for _ in range(count)]


def build(seed=0, **settings):
    return gg.train_step(network(**settings), "mse", gg.optim.SGD(0.0), seed=seed)


def test_a_seed_makes_a_run_reproducible():
    first, second, other = losses(build(3)), losses(build(3)), losses(build(4))
    assert first == second
    assert len(set(first)) == len(first), "each step draws anew"
    assert not set(first) & set(other)


def test_a_run_goes_on_with_its_masks_after_a_checkpoint(tmp_path):
    whole = build(3)
    expected = losses(whole, 6)
    step = build(3)
    losses(step, 3)
    step.save(tmp_path / "run")
    resumed = build(5)
    resumed.load(tmp_path / "run")
    assert losses(resumed, 3) == expected[3:]


def test_evaluation_drops_nothing():
    step = build()
    np.testing.assert_allclose(step.evaluate(X)["y"], X @ step.params["weight"], rtol=1e-5)


def test_the_mask_is_the_same_forward_and_backward():
    f = gg.value_and_grad(network(), wrt=["x", "weight"], training=True)
    ct = np.ones((8, 3), "float32")
    outputs, gradients = f(X, ct, seed=9)
    # A linear map: its value is ⟨gradient, argument⟩, if both have one mask.
    total = outputs["y"].sum()
    assert total == pytest.approx((gradients["x"] * X).sum(), rel=1e-4)
    assert (outputs["y"] == 0).any() and (gradients["x"] == 0).any()
    assert not np.array_equal(f(X, ct, seed=10)[0]["y"], outputs["y"])


def test_the_two_dropouts_of_a_model_have_masks_of_their_own():
    nodes = [helper.make_node("Dropout", ["x"], [f"y{i}"], name=f"drop{i}") for i in range(2)]
    model = gg.from_onnx(model_of(nodes, {"x": [200]}, {"y0": [200], "y1": [200]}))
    f = gg.value_and_grad(model, wrt=["x"], training=True)
    outputs, _ = f(np.ones(200, "float32"), {"y0": np.ones(200, "float32")})
    assert not np.array_equal(outputs["y0"], outputs["y1"])


def test_expectation_is_the_undropped_output():
    f = gg.value_and_grad(network(0.2), training=True)
    mean = np.mean([f(X, Y, seed=s)[0]["y"] for s in range(400)], axis=0)
    plain = X @ network().params["weight"]
    assert np.abs(mean - plain).max() < 5 * np.abs(X).max() * np.sqrt(6 / 400)


@pytest.mark.parametrize("seed", [-1, 1 << 31, 0.5, "0", None, True])
def test_bad_seeds(seed):
    with pytest.raises(gg.ArgumentError, match="seed="):
        build(seed)
    with pytest.raises(gg.ArgumentError, match="seed="):
        gg.value_and_grad(network(), training=True)(X, Y, seed=seed)
