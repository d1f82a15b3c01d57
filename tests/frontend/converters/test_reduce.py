"""Reductions of every opset: values against onnxruntime, gradients against differences."""

import numpy as np
import pytest
from onnx import helper, numpy_helper

import graphgrad as gg
from tests.frontend.converters.nodes import drawn, forward, node_model, reference
from tests.running import run

NAMES = ["L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare"]
X = drawn((2, 3, 4), 0.3, 1.5)


def model(name, x, axes=None, *, opset=18, shape=None, **attributes):
    """Return a model of a reduction, its axes an attribute or a constant input."""
    as_input = axes is not None and opset >= (13 if name == "Sum" else 18)
    if axes is not None and not as_input:
        attributes["axes"] = axes
    node = helper.make_node(f"Reduce{name}", ["x", "axes"] if as_input else ["x"], ["y"])
    node.attribute.extend(helper.make_attribute(k, v) for k, v in attributes.items())
    rank = len(axes or range(x.ndim)) if not attributes.get("keepdims", 1) else 0
    if attributes.get("noop_with_empty_axes") and not axes:
        rank = 0
    element = helper.np_dtype_to_tensor_dtype(x.dtype)
    values = [
        helper.make_tensor_value_info("x", element, shape or x.shape),
        helper.make_tensor_value_info("y", element, [None] * (x.ndim - rank)),
    ]
    constants = [numpy_helper.from_array(np.array(axes, "int64"), "axes")] if as_input else []
    graph = helper.make_graph([node], "graph", values[:1], values[1:], constants)
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


FORMS = {
    "all": {},
    "one": {"axes": [1]},
    "negative": {"axes": [-1], "keepdims": 0},
    "several": {"axes": [0, 2], "keepdims": 0},
    "opset_11": {"axes": [-2, 0], "opset": 11},
    "opset_7": {"keepdims": 0, "opset": 7},
    "empty": {"axes": []},
    "opset_13": {"axes": [1], "opset": 13},
}


CASES = [
    *(("Sum", form) for form in FORMS),
    *(("Max", form) for form in FORMS),
    *((name, form) for name in NAMES for form in ("several", "opset_11")),
]


@pytest.mark.parametrize(("name", "form"), CASES)
def test_outputs_equal_those_of_onnxruntime(name, form):
    proto = model(name, X, **FORMS[form])
    (ours,), (theirs,) = forward(proto, {"x": X}), reference(proto, {"x": X})
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_equal_differences(name):
    gg.check_grads(gg.from_onnx(model(name, X, **FORMS["several"])), {"x": X}, order=2)


OF_ONE = {"L1": np.abs, "L2": np.abs, "LogSum": np.log, "SumSquare": np.square}
"""What is left of a reduction that adds up nothing, where it is not the element itself."""


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("axes", [None, []], ids=str)
def test_no_axes_may_mean_no_reduction(name, axes):
    x = np.abs(X) + 0.1
    (y,) = forward(model(name, x, axes, noop_with_empty_axes=1), {"x": x})
    np.testing.assert_allclose(y, OF_ONE.get(name, np.copy)(x), rtol=1e-6)


OF_NOTHING = {"LogSum": -np.inf, "LogSumExp": -np.inf, "Max": -np.inf, "Min": np.inf, "Prod": 1.0}


@pytest.mark.parametrize("name", [name for name in NAMES if name != "Mean"])
def test_of_nothing(name):
    x = np.zeros((2, 0, 3), "float32")
    (y,) = forward(model(name, x, [1], keepdims=0), {"x": x})
    np.testing.assert_array_equal(y, np.full((2, 3), OF_NOTHING.get(name, 0.0), "float32"))


def test_log_sum_exp_of_large_values_and_of_infinities():
    x = np.array([[1000, 1000], [-1000, -1000], [-np.inf, -np.inf], [np.inf, 0]], "float32")
    (y,) = forward(model("LogSumExp", x, [1], keepdims=0), {"x": x})
    np.testing.assert_allclose(y, [1000 + np.log(2), -1000 + np.log(2), -np.inf, np.inf])


def test_norm_of_zeros_has_slope_zero():
    x = np.array([[0.0, 0.0], [3.0, 4.0]], "float32")
    mod = gg.from_onnx(model("L2", x, [1], keepdims=0)).mod
    y, gradient = run(gg.vjp(mod), "main_vjp", x, np.ones(2, "float32"))
    assert y.tolist() == [0.0, 5.0]
    np.testing.assert_allclose(gradient, [[0, 0], [0.6, 0.8]], rtol=1e-6)


@pytest.mark.parametrize("name", ["Sum", "Mean", "SumSquare", "L2"])
def test_half_precision_is_reduced_in_float32(name):
    x = np.full((1, 5000), 2.0, "float16")
    (y,) = forward(model(name, x, [1], keepdims=0), {"x": x})
    assert y.dtype == np.float16
    expected = {"Sum": 10000, "Mean": 2, "SumSquare": 20000, "L2": 20000**0.5}[name]
    assert float(y[0]) == np.float16(expected)


@pytest.mark.parametrize("name", ["Sum", "Max", "Min", "Prod", "Mean", "L1", "SumSquare"])
def test_integers(name):
    x = np.array([[1, 2, 4], [3, -5, 2]], "int32")
    proto = model(name, x, [1])
    np.testing.assert_array_equal(forward(proto, {"x": x})[0], reference(proto, {"x": x})[0])


@pytest.mark.parametrize("name", ["Max", "Min"])
def test_booleans(name):
    x = np.array([[True, False], [True, True], [False, False]])
    (y,) = forward(model(name, x, [1], opset=20, keepdims=0), {"x": x})
    assert y.tolist() == [any(row) if name == "Max" else all(row) for row in x.tolist()]


@pytest.mark.parametrize("shape", [(2, 0, 3), (2, "n", 3)], ids=["static", "symbolic"])
@pytest.mark.parametrize(("dtype", "expected"), [("int64", 0), ("float32", np.nan)])
def test_the_mean_of_nothing(shape, dtype, expected):
    x = np.zeros((2, 0, 3), dtype)
    (y,) = forward(model("Mean", x, [1], keepdims=0, shape=shape), {"x": x})
    np.testing.assert_array_equal(y, np.full((2, 3), expected, dtype))


@pytest.mark.parametrize("name", ["LogSumExp", "Max", "Mean", "Prod"])
def test_symbolic_batch(name):
    symbolic = model(name, X, [0], keepdims=0, shape=("n", 3, 4))
    expected = reference(model(name, X, [0], keepdims=0), {"x": X})[0]
    np.testing.assert_allclose(forward(symbolic, {"x": X})[0], expected, rtol=1e-5)


def test_axes_that_only_the_run_knows_are_refused():
    inputs = {"x": X, "axes": np.array([1])}
    with pytest.raises(gg.ModelError, match="make it a constant"):
        gg.from_onnx(node_model("ReduceSum", inputs))
