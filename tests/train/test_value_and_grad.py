import threading

import numpy as np
import pytest
import tvm
from onnx import helper
from tvm import relax

import graphgrad as gg
from graphgrad import models
from graphgrad.errors import ArgumentError, InputError, NotDifferentiableError
from tests.frontend.graphs import batch_norm_model, model_of, random
from tests.train.nets import loss_function, mean_square, module, perceptron

W1, W2 = random(4, 5), random(5, 3, seed=1)
X, CT = random(6, 4, seed=2), random(6, 3, seed=3)
HIDDEN = X @ W1


def product():
    """(x · layer.0.weight) · layer.1.weight, with a second output that is the sum of the first."""
    nodes = [
        helper.make_node("MatMul", ["x.1", "layer.0.weight"], ["layer.0.out"]),
        helper.make_node("MatMul", ["layer.0.out", "layer.1.weight"], ["y"]),
        helper.make_node("ReduceSum", ["y"], ["total"], keepdims=0),
    ]
    weights = {"layer.0.weight": W1, "layer.1.weight": W2}
    return gg.from_onnx(model_of(nodes, {"x.1": ["N", 4]}, {"y": ["N", 3], "total": []}, weights))


EXPECTED = {
    "x.1": CT @ W2.T @ W1.T,
    "layer.0.weight": X.T @ (CT @ W2.T),
    "layer.1.weight": HIDDEN.T @ CT,
    "layer.0.out": CT @ W2.T,
    "y": CT,
}


def close(given, expected):
    np.testing.assert_allclose(given, expected, rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def everything():
    return gg.value_and_grad(product(), wrt=list(EXPECTED))


@pytest.mark.parametrize(
    "cotangent",
    [CT, {"y": CT}, CT.tolist(), {"y": CT, "total": np.float32(0)}],
    ids=["array", "dict", "list", "both"],
)
def test_inputs_parameters_and_intermediates_by_name(everything, cotangent):
    outputs, gradients = everything(X, cotangent)
    assert list(outputs) == ["y", "total"] and list(gradients) == list(EXPECTED)
    close(outputs["y"], HIDDEN @ W2)
    close(outputs["total"], (HIDDEN @ W2).sum())
    for name, expected in EXPECTED.items():
        assert gradients[name].dtype == np.float32
        close(gradients[name], expected)


def test_cotangents_of_several_outputs_add_up(everything):
    _, gradients = everything({"x.1": X}, {"y": CT, "total": np.float32(2)})
    close(gradients["layer.1.weight"], HIDDEN.T @ (CT + 2))
    _, gradients = everything({"x.1": X}, {"total": np.float32(2)})
    close(gradients["layer.1.weight"], HIDDEN.T @ np.full_like(CT, 2))


def test_outputs_may_be_named_by_numbers():
    """Of the cotangent of one and the zeros for another none overwrites the other."""
    nodes = [helper.make_node("Sin", ["x"], ["a"]), helper.make_node("Cos", ["x"], ["0"])]
    model = gg.from_onnx(model_of(nodes, {"x": [3]}, {"a": [3], "0": [3]}, {}))
    x = random(3)
    _, gradients = gg.value_and_grad(model, wrt=["x"])(x, {"0": np.ones(6, "float32")[::2]})
    close(gradients["x"], -np.sin(x))


def test_another_batch_size(everything):
    outputs, gradients = everything(X[:2], CT[:2])
    close(outputs["y"], (HIDDEN @ W2)[:2])
    close(gradients["x.1"], EXPECTED["x.1"][:2])


@pytest.mark.parametrize("cotangent, message", [
    (None, r"outputs \['y', 'total'\] are no single scalar: give a cotangent"),
    ({"z": CT}, "no output 'z'"),
    (CT[:3], r"cotangent 'y': expected shape \(6, 3\), given \(3, 3\)"),
    (CT.astype("float64"), "cotangent 'y': expected dtype float32, given float64"),
    ({"total": np.zeros(1, "float32")}, r"cotangent 'total': expected shape \(\), given \(1,\)"),
    ("text", "cotangent 'y': "),
    ([CT, np.float32(0)], r"a list of arrays; give one array, .*'y'.*dict.*\['y', 'total'\]"),
    (tuple(CT), "a tuple of arrays"),  # as one array, it would be that of y
    ([None, CT], "a list of arrays"),
])  # fmt: skip
def test_bad_cotangents(everything, cotangent, message):
    with pytest.raises(InputError, match=message):
        everything(X, cotangent)


@pytest.mark.parametrize("inputs, message", [
    ({"x": X}, "no input 'x', only"),
    ({"x.1": X, "targets": CT}, "targets were given"),
    (X.astype("float64"), "input 'x.1': expected dtype float32"),
    (X[:, :3], r"input 'x.1': expected shape \(N, 4\)"),
])  # fmt: skip
def test_bad_inputs(everything, inputs, message):
    with pytest.raises(InputError, match=message):
        everything(inputs, CT)


def test_every_trainable_parameter_by_default():
    model = perceptron().freeze("fc1.bias")
    _, gradients = gg.value_and_grad(model)(X, CT)
    assert list(gradients) == ["fc1.weight", "fc2.weight", "fc2.bias"]


def scalar():
    """mean((x · w)²), a model with one scalar output."""

    def build(b, x, w):
        return mean_square(b, b.emit(relax.op.multiply(x, w)), relax.const(0.0, "float64"))

    mod = module(build, x=([4], "float64"), w=([4], "float64"))
    return gg.Model(mod, {"w": random(4, dtype="float64")})


def test_a_single_scalar_needs_no_cotangent():
    model = scalar()
    x, w = random(4, dtype="float64", seed=1), model.params["w"]
    f = gg.value_and_grad(model)
    close(f(x)[1]["w"], x * x * w / 2)
    close(f(x, 3.0 * np.ones(()))[1]["w"], 3 * x * x * w / 2)


def test_changes_of_the_parameters_count():
    model = scalar()
    f, x = gg.value_and_grad(model), np.ones(4)
    f(x)
    model.params["w"][...] = 2
    close(f(x)[1]["w"], np.full(4, 1.0))
    model.params["w"] = np.full(4, 4.0)
    close(f(x)[1]["w"], np.full(4, 2.0))


@pytest.mark.parametrize("wrong, message", [
    (np.ones(3), r"parameter 'w': expected shape \(4,\), given \(3,\)"),
    (np.ones(4, "float32"), "parameter 'w': expected dtype float64"),
])  # fmt: skip
def test_parameters_that_no_longer_fit(wrong, message):
    model = scalar()
    f = gg.value_and_grad(model)
    model.params["w"] = wrong
    with pytest.raises(InputError, match=message):
        f(np.ones(4))


def test_parameters_that_were_added():
    model = scalar()
    f = gg.value_and_grad(model)
    model.params["v"] = np.ones(4)
    with pytest.raises(InputError, match="added to or removed"):
        f(np.ones(4))


def test_a_loss_takes_targets():
    labels = np.arange(6) % 3
    f = gg.value_and_grad(perceptron(), wrt=["fc2.bias", "input"], loss="cross_entropy")
    outputs, gradients = f({"input": X, "targets": labels})
    assert list(outputs) == ["loss", "logits"]
    shifted = np.exp(outputs["logits"] - outputs["logits"].max(1, keepdims=True))
    probability = shifted / shifted.sum(1, keepdims=True)
    close(outputs["loss"], -np.log(probability[np.arange(6), labels]).mean())
    close(gradients["fc2.bias"], (probability - np.eye(3)[labels]).sum(0) / 6)
    for inputs, cotangent, message in [
        (X, None, "targets are missing"),
        ({"input": X, "targets": labels}, CT, "the loss has cotangent 1"),
        ({"input": X, "targets": labels + 1}, None, "label 3 at index"),
    ]:
        with pytest.raises(InputError, match=message):
            f(inputs, cotangent)


def test_a_relax_function_as_loss():
    n = tvm.tirx.Var("n", "int64")
    loss = loss_function(mean_square, *[([n, 3], "float32")] * 2)
    ours, named = (gg.value_and_grad(perceptron(), loss=choice) for choice in (loss, "mse"))
    given = {"input": X, "targets": CT.astype("float64")}
    for one, two in zip(ours(given), named(given), strict=True):
        assert one.keys() == two.keys()
        for name in one:
            close(one[name], two[name])


@pytest.mark.parametrize("in_file", [0, 1])
@pytest.mark.parametrize("training", [True, False, None])
def test_the_mode_of_batch_norms(in_file, training):
    model = gg.from_onnx(batch_norm_model(training_mode=in_file))
    x = random(4, 3, 5)
    outputs, gradients = gg.value_and_grad(model, wrt=["x", "bias"], training=training)(x, x)
    trains = in_file if training is None else training
    normalized_by_batch = np.abs(
        (outputs["y"].mean((0, 2)) - model.params["bias"]) / model.params["scale"]
    )
    assert (normalized_by_batch.max() < 1e-5) == bool(trains)
    close(gradients["bias"], x.sum((0, 2)))
    assert (np.abs(gradients["x"].sum((0, 2))).max() < 1e-4) == bool(trains)


def test_kernels_of_the_model_are_kept():
    def build(b, x, w):
        double = b.emit_te(lambda a: tvm.te.compute(a.shape, lambda i: a[i] * 2.0), x)
        return relax.op.multiply(double, w)

    mod = module(build, x=([4], "float64"), w=([4], "float64"))
    x = random(4, dtype="float64")
    _, gradients = gg.value_and_grad(gg.Model(mod, {"w": np.ones(4)}))(x, np.ones(4))
    close(gradients["w"], 2 * x)


def test_results_are_the_callers_own(everything):
    outputs, gradients = everything(X, CT)
    kept = outputs["y"].copy(), gradients["y"].copy()
    everything(X + 1, CT + 1)
    np.testing.assert_array_equal(outputs["y"], kept[0])
    np.testing.assert_array_equal(gradients["y"], kept[1])


@pytest.mark.parametrize("options, error, message", [
    ({"wrt": "layer.0.weights"}, ArgumentError, "did you mean.*layer.0.weight"),
    ({"wrt": ["y", "y"]}, ArgumentError, "each once"),
    ({"wrt": []}, ArgumentError, "no parameter that can train"),
    ({"loss": "hinge"}, ArgumentError, "loss='hinge' is unknown"),
    ({"training": "yes"}, ArgumentError, "training: expected True, False or None"),
    ({"rules": "hand"}, ArgumentError, "rules='hand': expected 'auto' or 'derived'"),
])  # fmt: skip
def test_bad_arguments(options, error, message):
    with pytest.raises(error, match=message):
        gg.value_and_grad(product(), **options)


def test_no_model():
    with pytest.raises(ArgumentError, match="given a ModelProto"):
        gg.value_and_grad(models.mlp((4, 3)))


def test_a_value_that_is_no_float():
    mod = module(
        lambda b, i, w: relax.op.take(w, i, axis=0), i=([2], "int64"), w=([4, 3], "float32")
    )
    model = gg.Model(mod, {"w": np.ones((4, 3), "float32")})
    with pytest.raises(NotDifferentiableError, match="i"):
        gg.value_and_grad(model, wrt=["i"])


def test_an_output_named_loss_is_never_hidden():
    node = helper.make_node("Mul", ["x", "w"], ["loss"])
    model = gg.from_onnx(model_of([node], {"x": [3]}, {"loss": [3]}, {"w": random(3)}))
    with pytest.raises(ArgumentError, match="an output 'loss' of its own"):
        gg.value_and_grad(model, loss="mse")
    assert list(gg.value_and_grad(model)(random(3), random(3))[0]) == ["loss"]


def test_threads_take_turns():
    """They share the memory that batches are copied to."""
    gradient = gg.value_and_grad(product(), wrt=["layer.0.weight"])
    batches = [random(64, 4, seed=seed).astype("float64").astype("float32") for seed in range(2)]
    cotangent = random(64, 3, seed=7)
    expected = [gradient(x, cotangent)[0]["y"] for x in batches]
    wrong = []

    def work(x, y):
        for _ in range(200):
            wrong.extend([None] * (not np.array_equal(gradient(x, cotangent)[0]["y"], y)))

    pairs = zip(batches, expected, strict=True)
    threads = [threading.Thread(target=work, args=pair) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_device_tensors_in_memory_of_their_own():
    nodes = [
        helper.make_node("Identity", ["x"], ["same"]),
        helper.make_node("Mul", ["x", "w"], ["y"]),
    ]
    file = model_of(nodes, {"x": [4]}, {"y": [4], "same": [4]}, {"w": random(4)})
    f = gg.value_and_grad(gg.from_onnx(file), wrt=["x", "w"], as_numpy=False)
    x = tvm.runtime.tensor(random(4, seed=1))
    outputs, gradients = f(x, np.ones(4, "float32"))
    results = [*outputs.values(), *gradients.values()]
    assert all(isinstance(result, tvm.runtime.Tensor) for result in results)
    assert len({tensor.data_ptr() for tensor in [x, *results]}) == 5
    kept = gradients["w"].numpy()
    f(np.zeros(4, "float32"), np.zeros(4, "float32"))  # overwrites what was copied for the call
    np.testing.assert_array_equal(gradients["w"].numpy(), kept)
    close(np.from_dlpack(gradients["w"]), x.numpy())


def test_as_numpy_is_a_switch():
    with pytest.raises(ArgumentError, match="as_numpy=1 must be True or False"):
        gg.value_and_grad(scalar(), as_numpy=1)
