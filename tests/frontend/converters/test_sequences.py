"""Sequences of tensors from ONNX."""

import numpy as np
import pytest
from onnx import helper, numpy_helper

import graphgrad as gg
from graphgrad.errors import ModelError
from tests.frontend.converters.nodes import FLOAT, drawn, forward


def inserted(position, place):
    """Return a model of three tensors, a fourth inserted, and one taken out."""
    names = ["a", "b", "c", "d"]
    settings = {"place": place} | ({} if position is None else {"position": position})
    nodes = [
        helper.make_node("SequenceConstruct", names[:3], ["three"]),
        helper.make_node(
            "SequenceInsert", ["three", "d", *(["position"] if position is not None else [])], ["s"]
        ),
        helper.make_node("SequenceAt", ["s", "place"], ["taken"]),
        helper.make_node("Mul", ["taken", "taken"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(n, FLOAT, (2,)) for n in names],
        [helper.make_tensor_value_info("y", FLOAT, (2,))],
        [numpy_helper.from_array(np.int64(v), k) for k, v in settings.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return proto, {name: drawn((2,), seed=seed) for seed, name in enumerate(names)}


@pytest.mark.parametrize("position", [None, 0, 2, 3, -1, -3])
def test_insertion(position):
    order = ["a", "b", "c"]
    order.insert(3 if position is None else position, "d")
    for place, name in enumerate(order):
        proto, inputs = inserted(position, place)
        np.testing.assert_allclose(forward(proto, inputs)[0], inputs[name] ** 2, rtol=1e-6)


def test_gradient():
    proto, inputs = inserted(-1, 2)
    gg.check_grads(gg.from_onnx(proto), inputs)


@pytest.mark.parametrize("position", [4, -4])
def test_a_position_outside_is_refused(position):
    with pytest.raises(ModelError, match=f"its position {position}"):
        gg.from_onnx(inserted(position, 0)[0])


def split(extent, sizes, **attributes):
    """Return a model that returns the parts of a tensor."""
    node = helper.make_node("SplitToSequence", ["x", *(["k"] if sizes is not None else [])], ["s"])
    node.attribute.extend(helper.make_attribute(n, v) for n, v in attributes.items())
    element = helper.make_tensor_type_proto(FLOAT, None)
    graph = helper.make_graph(
        [node],
        "graph",
        [helper.make_tensor_value_info("x", FLOAT, (2, extent))],
        [helper.make_value_info("s", helper.make_sequence_type_proto(element))],
        [] if sizes is None else [numpy_helper.from_array(np.array(sizes), "k")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(
    ("sizes", "cuts"), [(4, [4, 8]), ([2, 7], [2]), ([9], []), (20, [])], ids=str
)
def test_parts_of_a_tensor(sizes, cuts):
    """Nine in parts of four are 4, 4 and 1; TVM's importer makes three of three."""
    x = drawn((2, 9))
    parts = forward(split(9, sizes, axis=-1), {"x": x})
    for ours, expected in zip(parts, np.split(x, cuts, 1), strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_parts_without_their_axis():
    x = drawn((2, 3))
    for ours, expected in zip(forward(split(3, None, keepdims=0), {"x": x}), x, strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_gradient_of_parts():
    gg.check_grads(gg.from_onnx(split(5, 2, axis=1)), {"x": drawn((2, 5))})


@pytest.mark.parametrize(
    ("extent", "sizes", "message"),
    [
        (9, [2, 3], r"its parts \[2, 3\] are not those of an axis of 9"),
        (9, 0, "1 or more is needed"),
        ("n", 2, "how many parts there are is not known"),
    ],
)
def test_parts_that_are_not_known_are_refused(extent, sizes, message):
    with pytest.raises(ModelError, match=message):
        gg.from_onnx(split(extent, sizes, axis=1))
