"""Gradients of chains of convolutions and batch norms in float32, compared with PyTorch's."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphgrad as gg
from tests.peers import peer

CHANNELS, SIZE = 16, 24


def weights():
    """The weights of a depthwise and a pointwise convolution, each with a batch norm behind it."""
    draw = np.random.default_rng(0)
    shapes = {"depthwise": (CHANNELS, 1, 3, 3), "pointwise": (CHANNELS, CHANNELS, 1, 1)}
    values = {name: 0.3 * draw.standard_normal(shape) for name, shape in shapes.items()}
    for name in shapes:
        values[f"{name} scale"] = draw.uniform(0.5, 1.5, CHANNELS)
        values[f"{name} shift"] = 0.1 * draw.standard_normal(CHANNELS)
    return values


def ours(order, dtype, x, ct):
    element = TensorProto.FLOAT if dtype == "float32" else TensorProto.DOUBLE
    state = {"mean": np.zeros(CHANNELS), "variance": np.ones(CHANNELS)}
    nodes, value = [], "x"
    for name in order:
        group = {"pads": [1, 1, 1, 1], "group": CHANNELS} if name == "depthwise" else {}
        norm = [f"{name} conv", f"{name} scale", f"{name} shift", "mean", "variance"]
        results = [f"{name} y", f"{name} mean", f"{name} variance"]
        nodes.append(helper.make_node("Conv", [value, name], norm[:1], **group))
        nodes.append(helper.make_node("BatchNormalization", norm, results, training_mode=1))
        value = results[0]
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", element, x.shape)],
        [helper.make_tensor_value_info(value, element, x.shape)],
        [numpy_helper.from_array(v.astype(dtype), n) for n, v in {**weights(), **state}.items()],
    )
    model = gg.from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    gradient = gg.value_and_grad(model, wrt=list(weights()), training=True)
    return gradient({"x": x.astype(dtype)}, cotangent={value: ct.astype(dtype)})[1]


def in_torch(order, dtype, x, ct):
    torch = peer("torch")
    f = torch.nn.functional
    w = {n: torch.tensor(v.astype(dtype), requires_grad=True) for n, v in weights().items()}
    y = torch.tensor(x.astype(dtype))
    for name in order:
        group = {"padding": 1, "groups": CHANNELS} if name == "depthwise" else {}
        y = f.conv2d(y, w[name], **group)
        y = f.batch_norm(y, None, None, w[f"{name} scale"], w[f"{name} shift"], training=True)
    y.backward(torch.tensor(ct.astype(dtype)))
    return {name: tensor.grad.numpy() for name, tensor in w.items()}


@pytest.mark.parametrize(
    "order", [("depthwise", "pointwise"), ("pointwise", "depthwise")], ids=" ".join
)
def test_as_near_to_float64_as_four_times_torch(order):
    """The first shift's gradient cancels: the second norm takes out what is constant."""
    draw = np.random.default_rng(1)
    x, ct = draw.standard_normal((2, 8, CHANNELS, SIZE, SIZE))
    exact, in_float32 = in_torch(order, "float64", x, ct), in_torch(order, "float32", x, ct)
    whole = np.sqrt(sum((g**2).sum() for g in exact.values()))
    for name, gradient in ours(order, "float32", x, ct).items():
        scale = max(np.linalg.norm(exact[name]), 1e-6 * whole)
        distances = [np.linalg.norm(g - exact[name]) / scale for g in (gradient, in_float32[name])]
        assert distances[0] <= 4 * distances[1], (name, distances)
