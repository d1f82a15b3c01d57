"""Values of nodes are compared with those of onnxruntime, and the first that differs is named."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import graphgrad as gg
from graphgrad.check import node_values
from graphgrad.check.node_values import compare_with_onnxruntime
from tests.frontend.converters.nodes import node_model
from tests.peers import peer

MIXED = """<ir_version: 8, opset_import: ["": 17]>
f (float[n, 3] x) => (double[n] y, int64[2] shape)
<float[3] bias = {0.5, -1.0, 2.0}, int64[1] axis = {1}>
{
    shape = Shape(x)
    biased = Add(x, bias)
    is_large = Greater(biased, x)
    chosen = Where(is_large, biased, x)
    parts = SequenceConstruct(chosen, biased)
    joined = ConcatFromSequence<axis = 1>(parts)
    best = ArgMax<axis = 1>(joined)
    unused = Exp(x)
    total = ReduceSum<keepdims = 0>(joined, axis)
    y = Cast<to = 11>(total)
}"""


def compared(proto, **arguments):
    peer("onnxruntime")
    return list(compare_with_onnxruntime(proto, **arguments))


def test_every_tensor_is_compared_in_its_dtype():
    values = compared(onnx.parser.parse_model(MIXED))
    assert [value.mismatch for value in values] == [""] * len(values)
    dtypes = {value.output: value.dtype for value in values}
    names = ["shape", "biased", "is_large", "chosen", "joined", "best", "unused", "total", "y"]
    assert list(dtypes) == names
    assert (dtypes["is_large"], dtypes["best"], dtypes["y"]) == ("bool", "int64", "float64")


@pytest.mark.parametrize(
    ("theirs", "index", "ulps", "text"),
    [
        ([1.0, 2.0, 3.0], (1,), 2**21, "at (1,) graphgrad has 2.5"),
        ([1.0, 2.5, np.nan], (2,), None, "onnxruntime nan"),
        ([1.0, 2.5, 3.0000002], (2,), 1.0, ""),
    ],
)
def test_the_worst_element_is_told(theirs, index, ulps, text):
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    ours = np.array([1.0, 2.5, 3.0], "float32")
    value = node_values._compared(node, "y", ours, np.array(theirs, "float32"), 1e-5)
    assert (value.node, value.index) == ("y", index)
    assert value.ulps == (ulps if ulps is None else pytest.approx(ulps))
    assert text in value.mismatch
    assert bool(value.mismatch) == bool(text)


@pytest.mark.parametrize("theirs", [np.zeros(3, "float64"), np.zeros(2, "float32")], ids=str)
def test_other_types_differ(theirs):
    node = onnx.helper.make_node("Relu", ["x"], ["y"], name="relu")
    value = node_values._compared(node, "y", np.zeros(3, "float32"), theirs, 1e-5)
    assert "in graphgrad" in value.mismatch
    assert value.to_json()["error"] is None


def test_large_integers_differ_by_one():
    node = onnx.helper.make_node("Add", ["x", "x"], ["y"])
    value = node_values._compared(node, "y", np.array([2**60]), np.array([2**60 + 1]), 1e-5)
    assert value.mismatch


def test_a_file_that_onnxruntime_refuses():
    proto = node_model("Sin", {"x": np.zeros(2, "float64")}, opset=22)
    proto.graph.node[0].op_type = "Mish"
    peer("onnxruntime")
    session = pytest.MonkeyPatch()
    with session.context() as patch:
        patch.setattr("onnxruntime.InferenceSession", _refuse)
        with pytest.raises(gg.ModelError, match="onnxruntime does not run the model: no kernel"):
            compared(proto)


def _refuse(*arguments, **options):
    raise RuntimeError("no kernel\nat some place")


def test_random_values_are_not_compared():
    inputs = {"x": np.zeros(4, "float32")}
    proto = node_model("Dropout", inputs)
    on = onnx.numpy_helper.from_array(np.array(True), "on")
    proto.graph.initializer.append(on)
    proto.graph.node[0].input.extend(["", "on"])
    assert proto.graph.output[0].type.tensor_type.elem_type == TensorProto.FLOAT
    with pytest.raises(gg.InputError, match="dropout in training form"):
        compared(proto)
