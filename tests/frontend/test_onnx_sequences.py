"""Sequences and optionals that a model takes and returns."""

import numpy as np
import pytest
from onnx import TensorProto, helper

import graphgrad as gg
from tests.frontend.graphs import random

FLOAT = TensorProto.FLOAT


def sequence_type(shape=None):
    return helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, shape))


def model_of_types(nodes, inputs, outputs):
    """Return a model; inputs and outputs are types by name."""
    sides = [[helper.make_value_info(*item) for item in side.items()] for side in (inputs, outputs)]
    graph = helper.make_graph(nodes, "graph", *sides)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def doubled(shape=("n", 2)):
    """Return a model that doubles each tensor of the sequence s."""
    element = helper.make_tensor_value_info("e", FLOAT, shape)
    twice = helper.make_tensor_value_info("t", FLOAT, None)
    add = helper.make_node("Add", ["e", "e"], ["t"])
    body = helper.make_graph([add], "body", [element], [twice])
    node = helper.make_node("SequenceMap", ["s"], ["r"], body=body)
    return model_of_types([node], {"s": sequence_type(shape)}, {"r": sequence_type(shape)})


def test_the_tensors_of_a_sequence_are_inputs_and_outputs():
    model = gg.from_onnx(doubled(), shapes={"s": [(3, 2), (1, 2)]})
    assert (model.inputs, model.outputs) == (["s[0]", "s[1]"], ["r[0]", "r[1]"])
    assert any("sequences taken apart into their tensors: s" in note for note in model.notes)
    inputs = {"s[0]": random(3, 2), "s[1]": random(1, 2)}
    cotangents = {"r[0]": random(3, 2), "r[1]": random(1, 2)}
    outputs, grads = gg.value_and_grad(model, wrt=list(inputs))(inputs, cotangents)
    for index in range(2):
        np.testing.assert_array_equal(outputs[f"r[{index}]"], 2 * inputs[f"s[{index}]"])
        np.testing.assert_array_equal(grads[f"s[{index}]"], 2 * cotangents[f"r[{index}]"])


def test_dimensions_of_a_tensor_may_stay_symbolic():
    model = gg.from_onnx(doubled(), shapes={"s": [(None, 2), (None, 2)]})
    outputs, _ = gg.value_and_grad(model, wrt=["s[0]"])(
        {"s[0]": random(3, 2), "s[1]": random(4, 2)},
        {"r[0]": random(3, 2), "r[1]": random(4, 2)},
    )
    assert [value.shape for value in outputs.values()] == [(3, 2), (4, 2)]


def test_a_sequence_of_unknown_length_is_refused():
    with pytest.raises(gg.ModelError, match=r"input 's' is a sequence.*shapes=\{'s': \[\(2, 3\)"):
        gg.from_onnx(doubled())


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (3, "expected a list of shapes"),
        ([3], "expected whole numbers"),
        ([(3,)], r"'s\[0\]' is \['\?', 2\] by the file, given \(3,\)"),
        ([(3, 2), (3, 4)], r"'s\[1\]' is"),
    ],
)
def test_shapes_that_are_not_those_of_the_tensors_are_refused(shapes, message):
    with pytest.raises(gg.InputError, match=message):
        gg.from_onnx(doubled(), shapes={"s": shapes})


def test_an_empty_sequence_has_no_inputs():
    node = helper.make_node("SequenceInsert", ["s", "x"], ["r"])
    tensor = helper.make_tensor_type_proto(FLOAT, (2,))
    proto = model_of_types([node], {"s": sequence_type(), "x": tensor}, {"r": sequence_type()})
    model = gg.from_onnx(proto, shapes={"s": []})
    assert (model.inputs, model.outputs) == (["x"], ["r[0]"])


def test_a_model_that_returns_no_tensor_is_refused():
    with pytest.raises(gg.ModelError, match="sequences that hold no tensors"):
        gg.from_onnx(doubled(), shapes={"s": []})


def test_an_optional_is_taken_as_given():
    tensor = helper.make_tensor_type_proto(FLOAT, (2,))
    node = helper.make_node("OptionalGetElement", ["x"], ["y"])
    inputs = {"x": helper.make_optional_type_proto(tensor)}
    model = gg.from_onnx(model_of_types([node], inputs, {"y": tensor}))
    assert model.notes == ["optional inputs taken as given: x"]
    gg.check_grads(model, {"x": random(2)})
