"""Gathers, scatters, sorting and scans from ONNX: outputs and gradients."""

import numpy as np
import pytest
import tvm
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator
from tvm import relax

import graphgrad as gg
from graphgrad.check import compare_gradients, flat
from graphgrad.frontend.mode import specialize
from graphgrad.ir.arrays import to_tensor
from tests.frontend.converters.nodes import FLOAT, drawn, forward, node_model, reference

INT64 = 7
X = drawn((3, 4), dtype="float64")
XYZ = drawn((2, 3, 4), dtype="float64")


def ints(*values, dtype="int64"):
    return np.array(values, dtype)


def distinct(*shape):
    order = np.random.default_rng(1).permutation(int(np.prod(shape)))
    return (order / 10).reshape(shape)


def with_constants(proto, inputs, names):
    """Return the model with some inputs known from the start, and the other inputs."""
    for value in [v for v in proto.graph.input if v.name in names]:
        proto.graph.initializer.append(numpy_helper.from_array(inputs[value.name], value.name))
        proto.graph.input.remove(value)
    return proto, {name: array for name, array in inputs.items() if name not in names}


def scatter(data, shape, low, high, **attributes):
    generator = np.random.default_rng(2)
    index = generator.integers(low, high, shape)
    return {"x": data, "i": index, "u": drawn(shape, dtype="float64", seed=3)}, (), attributes


def nd(data, index, shape, **attributes):
    return {"x": data, "i": index, "u": drawn(shape, dtype="float64", seed=3)}, (), attributes


def line(x, axis, **attributes):
    return {"x": x, "axis": np.array(axis)}, ("axis",), attributes


def top_k(x, k, **attributes):
    types = {"types": {"i": INT64}, "outputs": ("y", "i")}
    return {"x": x, "k": ints(k)}, ("k",), {**types, **attributes}


CASES = {
    "Gather": [
        ({"x": X, "i": ints(2, -1, 0)}, (), {}),
        ({"x": XYZ, "i": ints([0, -2], [2, 2])}, (), {"axis": -2, "ranks": {"y": 4}}),
        ({"x": XYZ, "i": np.array(-1)}, (), {"axis": 1, "ranks": {"y": 2}}),
        ({"x": X, "i": ints(3, -4, dtype="int32")}, (), {"axis": 1, "opset": 7}),
        ({"x": X, "i": ints(1, 1)}, (), {"shapes": {"x": ("rows", 4)}}),
        ({"x": X, "i": ints(1, 1)}, ("i",), {"axis": -1, "opset": 11}),
    ],
    "GatherElements": [
        ({"x": X, "i": ints([0, -1, 2, 2], [1, 1, -3, 0])}, (), {"opset": 11}),
        ({"x": X, "i": ints([0, -1], [3, 3], [-4, 0])}, (), {"axis": -1, "opset": 13}),
    ],
    "GatherND": [
        ({"x": X, "i": ints([0, -1], [2, 2])}, (), {"ranks": {"y": 1}, "opset": 11}),
        ({"x": XYZ, "i": ints([[-1]], [[0]])}, (), {"batch_dims": 1, "opset": 13}),
        ({"x": XYZ, "i": ints([1], [1], [0])}, (), {}),
    ],
    "Scatter": [scatter(X, (2, 4), -3, 3, opset=9), scatter(X, (3, 2), -4, 4, axis=1, opset=10)],
    "ScatterElements": [
        scatter(X, (2, 4), 0, 3, opset=11),
        scatter(X, (3, 6), -4, 4, axis=-1, opset=13),
        *(scatter(X, (5, 3), -3, 3, reduction=r, opset=18) for r in ("none", "add", "mul")),
        *(scatter(distinct(3, 4), (5, 3), -3, 3, reduction=r) for r in ("min", "max")),
        scatter(XYZ, (1, 5, 2), -3, 3, axis=1, reduction="mul"),
    ],
    "ScatterND": [
        nd(X, ints([0, 1], [-1, -1], [0, 1]), (3,), opset=11),
        nd(X, ints([2], [2]), (2, 4), reduction="add", opset=16),
        nd(X, ints([2], [2], [-3]), (3, 4), reduction="mul", opset=16),
        nd(distinct(3, 4), ints([2], [2], [-3]), (3, 4), reduction="max", opset=18),
        nd(distinct(3, 4), ints([2], [2], [-3]), (3, 4), reduction="min", opset=18),
    ],
    "TopK": [
        top_k(distinct(3, 4), 2),
        top_k(distinct(3, 4), 2, axis=0, largest=0, sorted=1, opset=11),
        top_k(distinct(2, 3, 4), 3, axis=-2, opset=10),
        top_k(np.zeros((2, 9)), 3, axis=1),
    ],
    "CumSum": [
        line(X, 0, opset=11),
        line(X, -1, exclusive=1),
        line(XYZ, [1], reverse=1),
        line(X, 1, exclusive=1, reverse=1),
    ],
    "Compress": [
        ({"x": X, "c": np.array([True, False, True])}, (), {"axis": 0}),
        ({"x": X, "c": np.array([False, True])}, ("c",), {"axis": -1, "opset": 9}),
        ({"x": X, "c": np.array([False, True, True])}, (), {"ranks": {"y": 1}}),
        ({"x": X, "c": np.array([False, False])}, ("c",), {"axis": 0}),
    ],
    "ReverseSequence": [
        ({"x": X, "n": ints(1, 2, 3, 0)}, (), {"opset": 10}),
        ({"x": XYZ, "n": ints(3, 2)}, (), {"time_axis": 1, "batch_axis": 0}),
    ],
}


def built(op_type, inputs, constants, options):
    options = dict(options)
    if op_type == "OneHot":
        options |= {"ranks": {"y": inputs["i"].ndim + 1}, "types": {"y": 11}}
    options.setdefault("opset", 18)
    return with_constants(node_model(op_type, inputs, **options), inputs, constants)


def machine_of(proto):
    module = gg.vjp(specialize(gg.from_onnx(proto), None))
    return relax.VirtualMachine(gg.compile(module), tvm.cpu())


def check_gradient(machine, inputs):
    def outputs(*arrays):
        values = flat(machine["main"](*map(to_tensor, arrays)))
        return [value for value in values if value.dtype == np.float64]

    arrays, generator = list(inputs.values()), np.random.default_rng(0)
    cotangents = [generator.uniform(-1, 1, y.shape) for y in outputs(*arrays)]
    gradients = flat(machine["main_vjp"](*map(to_tensor, [*arrays, *cotangents]))[1])
    compare_gradients(outputs, arrays, cotangents, gradients, generator, "main")


@pytest.mark.parametrize(
    ("op_type", "case"),
    [(op_type, k) for op_type, cases in CASES.items() for k in range(len(cases))],
)
def test_like_onnxruntime(op_type, case):
    proto, inputs = built(op_type, *CASES[op_type][case])
    machine = machine_of(proto)
    ours, theirs = flat(machine["main"](*map(to_tensor, inputs.values()))), reference(proto, inputs)
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-12)
    if op_type != "TopK" or inputs["x"].any():
        check_gradient(machine, inputs)


IN_REFERENCE = {
    "OneHot": [
        ({"i": ints(0, -1, 2, 7), "d": np.array(3), "v": X[0, :2]}, ("d",), {"axis": 0}),
        ({"i": ints([0, 1]), "d": np.array(3), "v": X[1, :2]}, ("d",), {"opset": 9}),
        ({"i": ints([0, -3]), "d": np.array(3), "v": X[1, :2]}, ("d",), {"axis": -2}),
    ],
    "CumProd": [
        line(X, 1),
        line(np.where(X > 0, X, 0), 1, reverse=1),
        line(XYZ, -2, exclusive=1),
        line(XYZ, 0, exclusive=1, reverse=1),
    ],
    "TensorScatter": [
        ({"x": XYZ, "u": drawn((2, 2, 4), dtype="float64"), "w": ints(1, 0)}, (), {}),
        ({"x": XYZ, "u": drawn((2, 2, 4), dtype="float64")}, (), {}),
        (
            {"x": XYZ, "u": drawn((2, 3, 2), dtype="float64"), "w": ints(3, 1)},
            (),
            {"axis": -1, "mode": "circular"},
        ),
    ],
}


# onnxruntime has no OneHot in float64, and not the others.
@pytest.mark.parametrize(
    ("op_type", "case"),
    [(op_type, k) for op_type, cases in IN_REFERENCE.items() for k in range(len(cases))],
)
def test_like_the_reference(op_type, case):
    inputs, constants, options = IN_REFERENCE[op_type][case]
    proto, inputs = built(op_type, inputs, constants, {"opset": 26, **options})
    machine = machine_of(proto)
    (expected,) = ReferenceEvaluator(proto).run(None, inputs)
    (given,) = flat(machine["main"](*map(to_tensor, inputs.values())))
    np.testing.assert_allclose(given, expected, rtol=1e-12)
    check_gradient(machine, inputs)


def test_depth_as_a_vector_of_one():
    inputs = {"i": ints(2), "d": ints(3), "v": X[0, :2]}
    proto, inputs = built("OneHot", inputs, ("d",), {})
    (given,) = flat(machine_of(proto)["main"](*map(to_tensor, inputs.values())))
    np.testing.assert_array_equal(given, [[X[0, 0], X[0, 0], X[0, 1]]])


@pytest.mark.parametrize("x", [X, X[0]], ids=["rows", "vector"])
def test_features_of_the_last_axis(x):
    options = {"domain": "ai.onnx.ml", "ranks": {"y": 2}}
    proto, inputs = built("ArrayFeatureExtractor", {"x": x, "i": ints(2, 0, 2)}, (), options)
    machine = machine_of(proto)
    (given,) = flat(machine["main"](*map(to_tensor, inputs.values())))
    np.testing.assert_array_equal(given, np.atleast_2d(x)[:, [2, 0, 2]])
    check_gradient(machine, inputs)


def test_top_k_before_opset_10_has_an_attribute():
    proto = node_model("TopK", {"x": X}, ("y", "i"), opset=9, k=2, axis=1, types={"i": INT64})
    machine = machine_of(proto)
    values, index = flat(machine["main"](to_tensor(X)))
    np.testing.assert_array_equal(values, -np.sort(-X, 1)[:, :2])
    np.testing.assert_array_equal(index, np.argsort(-X, 1)[:, :2])
    check_gradient(machine, {"x": X})


@pytest.mark.parametrize(
    ("op_type", "inputs", "options", "message"),
    [
        ("TopK", {"x": X, "k": ints(0)}, {"outputs": ("y", "i"), "types": {"i": INT64}}, "its k"),
        ("CumSum", {"x": X, "axis": np.array(2)}, {}, "its axis 2 does not exist"),
        ("OneHot", {"i": ints(0), "d": ints(1, 2), "v": X[0, :2]}, {}, "its depth"),
    ],
)
def test_settings_that_have_no_meaning(op_type, inputs, options, message):
    names = set(inputs) & {"k", "axis", "d"}
    proto, _ = built(op_type, inputs, names, options)
    with pytest.raises(gg.ModelError, match=message):
        gg.from_onnx(proto)


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_depth_of_another_dtype_is_a_setting(dtype):
    inputs = {"i": ints(1, -1, 0), "depth": np.array(3, dtype), "v": np.array([2.0, 5.0], "f4")}
    proto = node_model("OneHot", inputs, types={"y": FLOAT}, ranks={"y": 2})
    (y,) = forward(*with_constants(proto, inputs, ["depth"]))
    np.testing.assert_array_equal(y, [[2, 5, 2], [2, 2, 5], [5, 2, 2]])


def test_what_a_known_condition_chooses_has_a_known_shape():
    inputs = {"x": X, "c": np.array([True, False, True])}
    proto, _ = built("Compress", inputs, ("c",), {"axis": 0})
    (output,) = specialize(gg.from_onnx(proto), None)["main"].ret_ty.fields[0].fields
    assert list(map(int, output.shape)) == [2, *X.shape[1:]]
