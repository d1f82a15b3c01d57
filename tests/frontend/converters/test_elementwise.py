"""Elementwise operators: values against onnxruntime, gradients against differences."""

import numpy as np
import pytest
from onnx import TensorProto, helper

import graphgrad as gg
from tests.frontend.converters.nodes import (
    assert_like_onnxruntime,
    drawn,
    forward,
    node_model,
)
from tests.frontend.graphs import model_of
from tests.running import run

A, B, C = drawn((2, 3)), drawn((3,), seed=1), drawn((2, 1), seed=2)
VARIADIC = ["Sum", "Mean", "Min", "Max"]


def scalar(value, dtype="float32"):
    return np.array(value, dtype)


CASES = {
    **{
        f"{op_type}_{count}": (op_type, dict(zip("abc", (A, B, C)[:count], strict=False)), {})
        for op_type in VARIADIC
        for count in (1, 2, 3)
    },
    **{f"{op_type}_opset_8": (op_type, {"a": A, "b": B}, {"opset": 8}) for op_type in VARIADIC},
    "pow": ("Pow", {"a": drawn((2, 3), 0.5, 2.0), "b": B}, {}),
    "pow_opset_7": ("Pow", {"a": drawn((2, 3), 0.5, 2.0), "b": B}, {"opset": 7}),
    "pow_integer_exponent": ("Pow", {"a": A, "b": np.array([1, 2, 3])}, {}),
    "clip": ("Clip", {"x": A, "low": scalar(-0.4), "high": scalar(0.3)}, {}),
    "clip_low": ("Clip", {"x": A, "low": scalar(-0.4)}, {}),
    "clip_high": ("Clip", {"x": A, "low": None, "high": scalar(0.3)}, {}),
    "clip_neither": ("Clip", {"x": A}, {}),
    "clip_attributes": ("Clip", {"x": A}, {"opset": 7, "min": -0.4, "max": 0.3}),
    "clip_attribute": ("Clip", {"x": A}, {"opset": 10, "max": 0.3}),
    "fmod": ("Mod", {"a": drawn((3,), 2.2, 2.6), "b": drawn((3,), 1.0, 1.08)}, {"fmod": 1}),
    "reciprocal": ("Reciprocal", {"x": drawn((3,), 0.5, 2.0)}, {}),
    "sqrt": ("Sqrt", {"x": drawn((3,), 0.5, 2.0)}, {}),
}


def case(name):
    op_type, inputs, options = CASES[name]
    return node_model(op_type, inputs, **options), inputs


@pytest.mark.parametrize("name", CASES)
def test_outputs_equal_those_of_onnxruntime(name):
    assert_like_onnxruntime(*case(name))


@pytest.mark.parametrize("name", CASES)
def test_gradients_equal_differences(name):
    proto, inputs = case(name)
    gg.check_grads(gg.from_onnx(proto), {n: a for n, a in inputs.items() if a is not None})


INTEGERS = {
    "max": ("Max", {"a": np.array([1, 5]), "b": np.array([3, 2])}, {}),
    "min": ("Min", {"a": np.array([1, 5]), "b": np.array([3, 2]), "c": np.array([0])}, {}),
    "clip": (
        "Clip",
        {"x": np.arange(5), "low": scalar(1, "int64"), "high": scalar(3, "int64")},
        {},
    ),
    "clip_int8": ("Clip", {"x": np.arange(5, dtype="int8"), "low": scalar(2, "int8")}, {}),
    "pow": ("Pow", {"a": np.array([2, -3]), "b": np.array([5, 3])}, {}),
    "pow_float": (
        "Pow",
        {"a": np.array([2, 3]), "b": np.array([0.5, 2.0], "float32")},
        {"opset": 15},
    ),
    "pow_float_large": (
        "Pow",
        {"a": np.array([7]), "b": np.array([9.0], "float32")},
        {"opset": 15},
    ),
    "mod": ("Mod", {"a": np.array([7, -7, 7]), "b": np.array([3, 3, -3])}, {}),
    "fmod": ("Mod", {"a": np.array([7, -7, 7]), "b": np.array([3, 3, -3])}, {"fmod": 1}),
}


@pytest.mark.parametrize("name", INTEGERS)
def test_integers(name):
    op_type, inputs, options = INTEGERS[name]
    assert_like_onnxruntime(node_model(op_type, inputs, **options), inputs)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8"])
def test_signs(dtype):
    """Of NaN too, which the op makes 0 of."""
    x = np.array([-2, 0, 3] if dtype == "int8" else [-np.inf, -0.0, 2.5, np.nan], dtype)
    assert_like_onnxruntime(node_model("Sign", {"x": x}), {"x": x})


@pytest.mark.parametrize("negative", [0, 1])
@pytest.mark.parametrize("positive", [0, 1])
def test_which_infinities(negative, positive):
    x = np.array([-np.inf, np.inf, np.nan, 1.0], "float32")
    flags = {"detect_negative": negative, "detect_positive": positive}
    proto = node_model("IsInf", {"x": x}, types={"y": TensorProto.BOOL}, **flags)
    assert_like_onnxruntime(proto, {"x": x})


@pytest.mark.parametrize("op_type", ["Min", "Max"])
@pytest.mark.parametrize("count", [2, 3])
def test_equal_inputs_share_the_gradient(op_type, count):
    inputs = {name: np.ones(2, "float32") for name in "abc"[:count]}
    model = gg.from_onnx(node_model(op_type, inputs))
    gradients = run(gg.vjp(model.mod), "main_vjp", *inputs.values(), np.ones(2, "float32"))[1:]
    np.testing.assert_allclose(gradients, 1 / count)


def test_clip_keeps_nan_and_the_gradient_at_its_bounds():
    x = np.array([0.0, 1.0, 2.0, np.nan], "float32")
    inputs = {"x": x, "low": scalar(0.0), "high": scalar(1.0)}
    model = gg.from_onnx(node_model("Clip", inputs))
    y, gradient, by_low, by_high = run(
        gg.vjp(model.mod), "main_vjp", *inputs.values(), np.ones(4, "float32")
    )
    np.testing.assert_array_equal(y, [0, 1, 1, np.nan])
    assert gradient[:3].tolist() == [1, 1, 0]
    assert (float(by_low), float(by_high)) == (0.0, 1.0)


def test_constant_bounds_give_the_op_that_has_a_rule():
    bounds = {"low": scalar(-0.5), "high": scalar(0.5)}
    node = node_model("Clip", {"x": A, **bounds}).graph.node[0]
    model = gg.from_onnx(model_of([node], {"x": [2, 3]}, {"y": [2, 3]}, bounds))
    assert "R.clip" in model.mod.script()
    gg.check_grads(model, {"x": A})


@pytest.mark.parametrize(("exponent", "op_name"), [(2.0, "R.multiply"), (0.5, "R.sqrt")])
def test_common_powers_are_cheap(exponent, op_name):
    nodes = [
        helper.make_node("Constant", [], ["b"], value_float=exponent),
        helper.make_node("Pow", ["a", "b"], ["y"]),
    ]
    model = gg.from_onnx(model_of(nodes, {"a": [2, 3]}, {"y": [2, 3]}))
    assert op_name in model.mod.script()
    gg.check_grads(model, {"a": drawn((2, 3), 0.5, 2.0)})


@pytest.mark.parametrize("op_type", ["Sum", "Mean"])
def test_half_precision_is_summed_in_float32(op_type):
    inputs = {name: np.full(1, 40000, "float16") for name in "ab"} | {
        "c": np.full(1, -40000, "float16")
    }
    (y,) = forward(node_model(op_type, inputs), inputs)
    assert y.dtype == np.float16
    assert float(y[0]) == np.float16(40000 if op_type == "Sum" else 40000 / 3)
