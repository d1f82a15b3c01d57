"""Gradients per example of models and of functions of modules."""

import numpy as np
import pytest
from onnx import helper
from tvm import relax

import graphgrad as gg
from graphgrad import models
from tests.frontend.graphs import batch_norm_model, model_of, random
from tests.running import F64, function, run

op = relax.op


def test_gradients_are_those_of_batches_of_one():
    model = gg.from_onnx(models.mlp((4, 8, 3)))
    x, labels = random(6, 4), np.arange(6) % 3
    losses, gradients = gg.per_example_grads(model, loss="cross_entropy")(
        {"input": x, "targets": labels}
    )
    f = gg.value_and_grad(model, loss="cross_entropy")
    for index in range(6):
        row = slice(index, index + 1)
        outputs, expected = f({"input": x[row], "targets": labels[row]})
        np.testing.assert_allclose(losses[index], outputs["loss"], rtol=1e-5)
        for name, gradient in expected.items():
            np.testing.assert_allclose(gradients[name][index], gradient, rtol=1e-4, atol=1e-6)
    mean = f({"input": x, "targets": labels})[1]
    for name, gradient in mean.items():
        np.testing.assert_allclose(gradients[name].mean(0), gradient, rtol=1e-4, atol=1e-5)


def test_dropouts_drop_other_values_in_each_example():
    nodes = [
        helper.make_node("Dropout", ["x", "ratio", "training"], ["d"]),
        helper.make_node("Mul", ["d", "w"], ["y"]),
    ]
    constants = {"ratio": np.float32(0.5), "training": np.array(True)}
    w = np.ones(64, "float32")
    proto = model_of(nodes, {"x": ["N", 64]}, {"y": ["N", 64]}, {"w": w, **constants})
    f = gg.per_example_grads(gg.from_onnx(proto), wrt="w", loss="mse", training=True)
    inputs = {"x": np.ones((4, 64), "float32"), "targets": np.zeros((4, 64), "float32")}
    kept = f(inputs, seed=3)[1]["w"] != 0
    assert 0.3 < kept.mean() < 0.7
    assert len({row.tobytes() for row in kept}) == 4
    np.testing.assert_array_equal(kept, f(inputs, seed=3)[1]["w"] != 0)
    assert (kept != (f(inputs, seed=4)[1]["w"] != 0)).any()


def test_function_of_a_module():
    def loss(b, x, y, w):
        return b.emit(op.sum(op.square(op.subtract(op.matmul(x, w), y))))

    mod = function(loss, ((3,), F64), ((2,), F64), ((3, 2), F64))
    many = gg.per_example_grads(mod, wrt=["x2"], count=5)
    generator = np.random.default_rng(0)
    x, y, w = (generator.standard_normal(s) for s in ((5, 3), (5, 2), (3, 2)))
    losses, gradients = run(many, "main_per_example", x, y, w)
    difference = x @ w - y
    np.testing.assert_allclose(losses, (difference**2).sum(1))
    np.testing.assert_allclose(gradients, 2 * np.einsum("ni,no->nio", x, difference))
    shared = gg.per_example_grads(mod, wrt=["x2"], examples=["x0"], count=5)
    losses, _ = run(shared, "main_per_example", x, y[0], w)
    np.testing.assert_allclose(losses, ((x @ w - y[0]) ** 2).sum(1))


# Bad input


def test_batch_norm_in_training_form_has_none():
    f = gg.per_example_grads(gg.from_onnx(batch_norm_model(batch="N")), loss="mse", training=True)
    x = random(4, 3, 5)
    with pytest.raises(gg.NotDifferentiableError, match="batch norms"):
        f({"x": x, "targets": x})


def test_file_of_a_fixed_batch():
    model = gg.from_onnx(models.mlp((4, 8, 3), batch=6))
    f = gg.per_example_grads(model, loss="cross_entropy")
    with pytest.raises(gg.ArgumentError, match="fixed batch of 6"):
        f({"input": random(6, 4), "targets": np.arange(6) % 3})


def test_inputs_of_different_batches():
    nodes = [helper.make_node("MatMul", ["x", "v"], ["y"])]
    proto = model_of(nodes, {"x": ["N", 4], "v": [4, 2]}, {"y": ["N", 2]}, {})
    f = gg.per_example_grads(gg.from_onnx(proto), wrt="x", loss="mse")
    inputs = {"x": random(6, 4), "v": random(4, 2), "targets": random(6, 2)}
    with pytest.raises(gg.InputError, match="first axis of each input"):
        f(inputs)


@pytest.mark.parametrize("options", [{}, {"loss": "mse", "count": 3}, {"loss": "mse", "func": "f"}])
def test_arguments_of_a_model(options):
    with pytest.raises(gg.ArgumentError):
        gg.per_example_grads(gg.from_onnx(models.mlp((4, 8, 3))), **options)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"count": 0},
        {"count": True},
        {"count": 3, "loss": "mse"},
        {"count": 3, "wrt": ["x0"], "examples": ["x0"]},
        {"count": 3, "examples": ["x0"], "winograd": False},
    ],
    ids=str,
)
def test_arguments_of_a_module(options):
    mod = function(lambda b, x, w: b.emit(op.sum(op.multiply(x, w))), ((3,), F64), ((3,), F64))
    with pytest.raises(gg.ArgumentError):
        gg.per_example_grads(mod, **{"wrt": ["x1"], **options})


def test_function_that_returns_no_scalar():
    mod = function(lambda b, x, w: b.emit(op.multiply(x, w)), ((3,), F64), ((3,), F64))
    with pytest.raises(gg.NotDifferentiableError, match="scalar"):
        gg.per_example_grads(mod, wrt=["x1"], count=2)
