"""Which models, losses and weights a step trains."""

import numpy as np
import pytest
import tvm
from tvm import relax

import graphgrad as gg
from graphgrad import models
from graphgrad.errors import ArgumentError, InputError
from tests.frontend.graphs import random
from tests.train.nets import loss_function, mean_square, module, perceptron

MOMENTUM = gg.optim.SGD(0.1, momentum=0.9)
N = tvm.tirx.Var("n", "int64")


def batch(seed=0):
    return random(8, 4, seed=seed), np.arange(8) % 3


# --- any Relax module ---


def test_a_relax_module_with_batch_norm_trains():
    def build(b, x, w, gamma, beta, mean, var):
        hidden = b.emit(relax.op.matmul(x, w))
        out = b.emit(relax.op.nn.batch_norm(hidden, gamma, beta, mean, var, axis=1))
        return relax.TupleGetItem(out, 0)

    one = ([3], "float64")
    types = {"w": ([4, 3], "float64"), "gamma": one, "beta": one, "mean": one, "var": one}
    mod = module(build, x=([N, 4], "float64"), **types)
    params = {n: random(*types[n][0], dtype="float64", seed=5) for n in ("w", "gamma", "beta")}
    model = gg.Model(mod, params, {"mean": np.zeros(3), "var": np.ones(3)})
    x = random(16, 4, dtype="float64")
    labels = (x @ random(4, 3, dtype="float64", seed=2)).argmax(1)
    step = gg.train_step(model, optimizer=gg.optim.SGD(0.2, momentum=0.9))
    losses = [step(x, labels) for _ in range(40)]
    assert losses[-1] < 0.3 * losses[0]
    hidden = x @ step.params["w"]
    # The running mean trails the weights, which still move.
    np.testing.assert_allclose(step.state["mean"], hidden.mean(0), atol=0.2)
    assert step.evaluate(x[:2])["output"].shape == (2, 3)


def linear():
    mod = module(
        lambda b, x, w: relax.op.matmul(x, w), x=([N, 3], "float64"), w=([3, 2], "float64")
    )
    return gg.Model(mod, {"w": random(3, 2, dtype="float64")})


@pytest.mark.parametrize("rows", [5, N])
def test_a_relax_function_as_loss(rows):
    """Its shapes may be symbolic; they are those of the outputs."""
    m = rows if rows == 5 else tvm.tirx.Var("m", "int64")
    loss = loss_function(mean_square, *[([m, 2], "float64")] * 2)
    ours, named = (gg.train_step(linear(), choice) for choice in (loss, "mse"))
    x, y = random(5, 3, dtype="float64"), np.ones((5, 2))
    for _ in range(3):
        assert ours(x, y) == pytest.approx(named(x, y), rel=1e-12)


def test_a_loss_function_without_targets():
    square = loss_function(
        lambda b, y: relax.op.mean(b.emit(relax.op.multiply(y, y))), ([5, 2], "float64")
    )
    step = gg.train_step(linear(), square)
    x = random(5, 3, dtype="float64")
    losses = [step(x) for _ in range(5)]
    assert losses[-1] < losses[0]
    with pytest.raises(InputError, match="targets were given"):
        step(x, np.zeros(5))


def test_an_output_as_loss():
    def build(b, x, w):
        y = b.emit(relax.op.matmul(x, w))
        return y, relax.op.mean(b.emit(relax.op.multiply(y, y)))

    mod = module(build, x=([N, 3], "float64"), w=([3, 2], "float64"))
    model = gg.Model(mod, {"w": random(3, 2, dtype="float64")}, outputs=["y", "energy"])
    step = gg.train_step(model, "energy", gg.optim.SGD(0.1))
    x = random(5, 3, dtype="float64")
    w = model.params["w"]
    assert step(x) == pytest.approx(np.mean((x @ w) ** 2))
    np.testing.assert_allclose(step.params["w"], w - 0.1 * x.T @ (x @ w) * 2 / 10, rtol=1e-12)
    assert list(step.evaluate(x)) == ["y", "energy"]
    with pytest.raises(ArgumentError, match="a loss is a float scalar"):
        gg.train_step(model, "y")


def test_kernels_of_the_model_are_kept():
    def build(b, x, w):
        double = b.emit_te(lambda a: tvm.te.compute(a.shape, lambda i, j: a[i, j] * 2.0), x)
        return relax.op.matmul(double, w)

    mod = module(build, x=([4, 3], "float64"), w=([3, 2], "float64"))
    step = gg.train_step(gg.Model(mod, {"w": np.ones((3, 2))}), "mse", gg.optim.SGD(0.0))
    x = random(4, 3, dtype="float64")
    expected = 2 * x @ np.ones((3, 2))
    assert step(x, np.zeros((4, 2))) == pytest.approx(np.mean(expected**2))
    np.testing.assert_allclose(step.evaluate(x)["output"], expected)


def test_state_that_nothing_updates():
    mod = module(
        lambda b, x, w, s: relax.op.add(b.emit(relax.op.multiply(x, w)), s),
        x=([3], "float32"), w=([3], "float32"), s=([3], "float32"),
    )  # fmt: skip
    ones = np.ones(3, "float32")
    step = gg.train_step(gg.Model(mod, {"w": ones}, {"s": 2 * ones}), "mse", gg.optim.SGD(0.1))
    step(ones, 0 * ones)
    np.testing.assert_array_equal(step.state["s"], 2)
    np.testing.assert_allclose(step.params["w"], 1 - 0.1 * 2 * 3 / 3, rtol=1e-6)


# --- frozen weights ---


@pytest.mark.parametrize("how", ["wrt", "freeze"])
def test_frozen_weights_stay(how):
    frozen = ["fc1.weight", "fc2.bias"]
    model = perceptron()
    before = model.params
    if how == "wrt":
        step = gg.train_step(model, wrt=["fc2.weight", "fc1.bias"], optimizer=MOMENTUM)
    else:
        step = gg.train_step(model.freeze(*frozen), optimizer=MOMENTUM)
    for seed in range(3):
        step(*batch(seed))
    moved = {n for n, a in step.params.items() if a.tobytes() != before[n].tobytes()}
    assert moved == {"fc1.bias", "fc2.weight"}
    assert list(step.optimizer_state["momentum"]) == ["fc1.bias", "fc2.weight"]


@pytest.mark.parametrize("wrt, message", [
    (["fc9.weight"], r"no parameter\(s\) \['fc9.weight'\]; it has \['fc1.weight'"),
    ("fc1", r"no parameter\(s\) \['fc1'\]"),
    (["input"], r"no parameter\(s\) \['input'\]"),
    (["fc2.bias"], r"\['fc2.bias'\] are frozen"),
    (["fc1.bias", "fc1.bias"], "each once"),
    ([], "at least one"),
])  # fmt: skip
def test_bad_wrt(wrt, message):
    with pytest.raises(ArgumentError, match=message):
        gg.train_step(perceptron().freeze("fc2.bias"), wrt=wrt)


def test_nothing_left_to_train():
    model = perceptron()
    with pytest.raises(ArgumentError, match="no parameter that can train"):
        gg.train_step(model.freeze(*model.params))
    with pytest.raises(ArgumentError, match="no parameter 'conv1'"):
        model.freeze("conv1")


# --- arguments ---


@pytest.mark.parametrize("name, value", [
    ("accumulate", 0), ("precision", "float8"), ("memory", 0), ("loss", None), ("loss", "hinge"),
    ("loss", "logits"), ("optimizer", "sgd"), ("optimizer", None),
])  # fmt: skip
def test_bad_arguments(name, value):
    with pytest.raises(ArgumentError, match=name):
        gg.train_step(perceptron(), **{name: value})


def test_no_model():
    with pytest.raises(ArgumentError, match="given a ModelProto; make one with"):
        gg.train_step(models.mlp((4, 5, 3)))


def test_a_parameter_that_was_replaced_by_a_wrong_array():
    model = gg.from_onnx(models.mlp())
    name = next(iter(model.params))
    model.params[name] = np.zeros(3, "float32")
    with pytest.raises(InputError, match=name):
        gg.train_step(model)
