"""Activations: values against onnxruntime, gradients against differences."""

import numpy as np
import pytest

import graphgrad as gg
from tests.frontend.converters.nodes import (
    assert_like_onnxruntime,
    drawn,
    forward,
    node_model,
    reference,
)
from tests.running import run

X = drawn((2, 3, 4), -4.0, 4.0)

CASES = {
    "celu": ("Celu", {}, {"alpha": 2.0, "opset": 12}),
    "elu": ("Elu", {}, {"alpha": 2.0}),
    "selu": ("Selu", {}, {"alpha": 2.0, "gamma": 3.0}),
    "selu_default": ("Selu", {}, {"opset": 7}),
    "thresholded": ("ThresholdedRelu", {}, {"alpha": 0.7}),
    "hard_sigmoid": ("HardSigmoid", {}, {"alpha": 0.3, "beta": 0.4}),
    "hard_swish": ("HardSwish", {}, {"opset": 14}),
    "leaky": ("LeakyRelu", {}, {"alpha": 0.2}),
    "mish": ("Mish", {}, {"opset": 18}),
    "softplus": ("Softplus", {}, {}),
    "softsign": ("Softsign", {}, {}),
    "shrink": ("Shrink", {}, {"bias": 0.3, "lambd": 0.8}),
    "gelu": ("Gelu", {}, {"opset": 20}),
    "gelu_tanh": ("Gelu", {}, {"opset": 20, "approximate": "tanh"}),
    "prelu_channels": ("PRelu", {"slope": drawn((3, 1))}, {}),
    "prelu_last": ("PRelu", {"slope": drawn((4,))}, {}),
    "prelu_one": ("PRelu", {"slope": drawn((1,))}, {"opset": 7}),
    "prelu_full": ("PRelu", {"slope": drawn((2, 3, 4))}, {}),
    "prelu_two_axes": ("PRelu", {"slope": drawn((3, 4))}, {}),
    "softmax": ("Softmax", {}, {"axis": 1}),
    "softmax_last": ("Softmax", {}, {}),
    "softmax_flattened": ("Softmax", {}, {"opset": 11}),
    "softmax_all": ("Softmax", {}, {"axis": 0, "opset": 11}),
    "softmax_negative": ("Softmax", {}, {"axis": -1, "opset": 11}),
    "log_softmax": ("LogSoftmax", {}, {"axis": 0}),
    "log_softmax_flattened": ("LogSoftmax", {}, {"opset": 7}),
}


def case(name):
    op_type, more, options = CASES[name]
    inputs = {"x": X, **more}
    return node_model(op_type, inputs, **options), inputs


@pytest.mark.parametrize("name", CASES)
def test_outputs_equal_those_of_onnxruntime(name):
    assert_like_onnxruntime(*case(name))


@pytest.mark.parametrize("name", CASES)
def test_gradients_equal_differences(name):
    proto, inputs = case(name)
    gg.check_grads(gg.from_onnx(proto), inputs)


@pytest.mark.parametrize("opset", [11, 13])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_hardmax(axis, opset):
    x = drawn((2, 3, 4))
    x[0, 1] = x[1, 2] = 2.0  # ties: the first of them is chosen
    assert_like_onnxruntime(node_model("Hardmax", {"x": x}, axis=axis, opset=opset), {"x": x})


@pytest.mark.parametrize("alpha", [1.0, 1.7])
def test_swish(alpha):
    proto = node_model("Swish", {"x": X}, opset=24, alpha=alpha)
    (y,) = forward(proto, {"x": X})
    np.testing.assert_allclose(y, X / (1 + np.exp(-alpha * X)), rtol=1e-5)
    gg.check_grads(gg.from_onnx(proto), {"x": X})


@pytest.mark.parametrize("opset", [11, 13])
@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax", "Hardmax"])
def test_symbolic_batch_is_flattened_alike(op_type, opset):
    static = node_model(op_type, {"x": X}, opset=opset)
    symbolic = node_model(op_type, {"x": X}, opset=opset, shapes={"x": ("n", 3, 4)})
    np.testing.assert_allclose(
        forward(symbolic, {"x": X})[0], reference(static, {"x": X})[0], rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize(
    ("op_type", "options", "x", "slope"),
    [
        ("Elu", {"alpha": 2.0}, 0.0, 2.0),
        ("Selu", {"alpha": 2.0, "gamma": 3.0}, 0.0, 6.0),
        ("Celu", {"alpha": 2.0, "opset": 12}, 0.0, 1.0),
        ("Elu", {}, 1000.0, 1.0),
        ("Selu", {"gamma": 3.0}, 1000.0, 3.0),
        ("HardSigmoid", {"alpha": 0.5, "beta": 0.5}, 1.0, 0.0),
        ("PRelu", {}, 0.0, 0.25),
    ],
    ids=str,
)
def test_slopes_at_kinks_and_far_out(op_type, options, x, slope):
    inputs = {"x": np.array([x], "float32")}
    if op_type == "PRelu":
        inputs["slope"] = np.array([0.25], "float32")
    model = gg.from_onnx(node_model(op_type, inputs, **options))
    one = np.ones(1, "float32")
    gradient = run(gg.vjp(model.mod), "main_vjp", *inputs.values(), one)[1]
    np.testing.assert_allclose(gradient, [slope], rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize("op_type", ["Celu", "Elu", "Selu", "ThresholdedRelu", "Mish", "HardSwish"])
def test_dtypes(op_type, dtype):
    x = X.astype(dtype)
    wide = forward(node_model(op_type, {"x": X}), {"x": x.astype("float32")})[0]
    (y,) = forward(node_model(op_type, {"x": x}), {"x": x})
    assert y.dtype == dtype
    np.testing.assert_allclose(y, wide, rtol=2e-3, atol=2e-3)


def test_shrink_of_unsigned_integers():
    x = {"x": np.arange(5, dtype="uint16")}
    assert_like_onnxruntime(node_model("Shrink", x, lambd=1.5, bias=0.5), x)
