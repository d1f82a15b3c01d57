"""Steps of optimizers from ONNX: outputs as onnx's reference gives them, and their gradients."""

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import graphgrad as gg
from tests.frontend.converters.nodes import drawn, forward

ATTRIBUTES = {
    "adagrad": ("Adagrad", 1, {"norm_coefficient": 0.01, "epsilon": 1e-3, "decay_factor": 0.1}),
    "adam": ("Adam", 2, {"norm_coefficient": 0.01, "alpha": 0.5, "norm_coefficient_post": 0.25}),
    "momentum": (
        "Momentum",
        1,
        {"norm_coefficient": 0.01, "alpha": 0.5, "beta": 0.75, "mode": "standard"},
    ),
    "nesterov": (
        "Momentum",
        1,
        {"norm_coefficient": 0.01, "alpha": 0.5, "beta": 0.75, "mode": "nesterov"},
    ),
}
"""The operator, how many moments it keeps, and its attributes."""


def optimizer(name, count):
    """Return a model that takes a step of two tensors, and its inputs."""
    operator, moments, attributes = ATTRIBUTES[name]
    kinds = ["x", "g", *(f"m{k}" for k in range(moments))]
    tensors = {
        f"{kind}{place}": drawn((3,), 0.25, 1.0, seed=7 * row + place)
        for row, kind in enumerate(kinds)
        for place in (0, 1)
    }
    inputs = {"r": np.float32(0.125), "t": np.int64(count), **tensors}
    outputs = [f"{kind}{place}_new" for kind in [kinds[0], *kinds[2:]] for place in (0, 1)]
    domain = "ai.onnx.preview.training"
    node = helper.make_node(operator, list(inputs), outputs, "step", domain=domain, **attributes)
    elements = {"t": TensorProto.INT64}
    graph = helper.make_graph(
        [node],
        "graph",
        [
            helper.make_tensor_value_info(n, elements.get(n, TensorProto.FLOAT), a.shape)
            for n, a in inputs.items()
        ],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, (3,)) for n in outputs],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), inputs


@pytest.mark.parametrize("count", [0, 3], ids=["first", "later"])
@pytest.mark.parametrize("name", ATTRIBUTES)
def test_step(name, count):
    proto, inputs = optimizer(name, count)
    ours, theirs = forward(proto, inputs), ReferenceEvaluator(proto).run(None, inputs)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_gradient(name):
    proto, inputs = optimizer(name, 3)
    gg.check_grads(gg.from_onnx(proto), inputs)


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_a_rate_of_another_dtype(name):
    """The rate and the tensors have types of their own: a float32 rate steps float64 tensors."""
    proto, inputs = optimizer(name, 3)
    wide = {n: a.astype("float64") if n[0] not in "rt" else a for n, a in inputs.items()}
    for value in [*proto.graph.input, *proto.graph.output]:
        if value.name[0] not in "rt":
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    narrow = forward(optimizer(name, 3)[0], inputs)
    for a, b in zip(forward(proto, wide), narrow, strict=True):
        assert a.dtype == np.float64
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
