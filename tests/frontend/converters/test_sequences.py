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
