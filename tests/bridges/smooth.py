"""A model that both bridges hand out."""

from onnx import helper

import graphgrad as gg
from tests.frontend.graphs import model_of, random
from tests.promoted_models import promoted


def smooth_model():
    """Return tanh(x · w) in float64, for any batch, with a second output that is its sum."""
    nodes = [
        helper.make_node("MatMul", ["x", "layer.weight"], ["z"]),
        helper.make_node("Tanh", ["z"], ["y"]),
        helper.make_node("ReduceSum", ["y"], ["total"], keepdims=0),
    ]
    weights = {"layer.weight": random(4, 3)}
    outputs = {"y": ["N", 3], "total": []}
    return promoted(gg.from_onnx(model_of(nodes, {"x": ["N", 4]}, outputs, weights)))
