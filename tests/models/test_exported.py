"""Models from torch's exporter: every gradient follows torch's, by the accuracy policy.

In float64 each gradient is within 1e-8 of torch's by norm, relative to
max(‖r‖, 1e-6 · ‖whole gradient‖). In float32 the whole gradient is at most four times as far from
the float64 gradient as torch's own float32 gradient is; networks with ReLU are left out of that,
for the reason that `tests/train/test_resnet_follows_torch.py` gives.
"""

import numpy as np
import pytest
import tvm

import graphgrad as gg
from tests.peers import peer
from tests.torch_export import IMAGES, NETWORKS, build, export, inputs_of


def torch_gradients(net, inputs, labels):
    torch = peer("torch")
    net.zero_grad()
    torch.nn.functional.cross_entropy(net(*inputs.values()), labels).backward()
    return {name: p.grad.double().numpy() for name, p in net.named_parameters()}


def our_gradients(proto, inputs, labels, names):
    f = gg.value_and_grad(gg.from_onnx(proto), wrt=names, loss="cross_entropy")
    arrays = {name: tensor.numpy() for name, tensor in inputs.items()}
    return f({**arrays, "targets": labels.numpy()})[1]


def norm(gradients):
    return np.sqrt(sum(np.sum(g.astype("float64") ** 2) for g in gradients.values()))


def assert_close(ours, reference, tolerance=1e-8):
    floor = 1e-6 * norm(reference)
    for name, expected in reference.items():
        error = np.linalg.norm(ours[name] - expected)
        assert error <= tolerance * max(np.linalg.norm(expected), floor), name


@pytest.mark.parametrize(
    "training", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["training", "inference"]
)
@pytest.mark.parametrize("name", NETWORKS)
def test_gradients(name, training):
    torch = peer("torch")
    net = build(name)
    inputs, labels = inputs_of(name, torch.float64)
    proto = export(net, inputs, training)
    reference = torch_gradients(net, inputs, labels)
    assert_close(our_gradients(proto, inputs, labels, list(reference)), reference)


@pytest.mark.parametrize("name", ["vit", "bert"])
def test_gradients_in_float32(name):
    torch = peer("torch")
    net = build(name)
    inputs, labels = inputs_of(name, torch.float64)
    exact = torch_gradients(net.train(False), inputs, labels)
    net.float()
    inputs, labels = inputs_of(name, torch.float32)
    theirs = torch_gradients(net, inputs, labels)
    ours = our_gradients(export(net, inputs, False), inputs, labels, list(exact))
    distance = [norm({k: g[k] - exact[k] for k in exact}) for g in (ours, theirs)]
    assert distance[0] <= 4 * distance[1]


@pytest.mark.parametrize(
    ("name", "opset"),
    [
        ("mobilenet_v2", 11),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (("vit", 13), ("bert", 15))),
    ],
)
def test_opsets(name, opset):
    torch = peer("torch")
    net = build(name)
    inputs, labels = inputs_of(name, torch.float64)
    proto = export(net, inputs, True, opset)
    reference = torch_gradients(net, inputs, labels)
    assert_close(our_gradients(proto, inputs, labels, list(reference)), reference)


@pytest.mark.parametrize(("name", "opset"), [("mobilenet_v2", 20), ("vit", 18)])
def test_later_opsets_are_the_same_program(name, opset):
    torch = peer("torch")
    net = build(name)
    inputs, _ = inputs_of(name, torch.float64)
    usual, later = (gg.from_onnx(export(net, inputs, True, *more)) for more in ((), (opset,)))
    tvm.ir.assert_structural_equal(later.mod, usual.mod)
    assert list(later.params) == list(usual.params)


@pytest.mark.parametrize("name", IMAGES)
def test_input_gradients(name):
    """With the batch fixed at export."""
    torch = peer("torch")
    net = build(name)
    inputs, labels = inputs_of(name, torch.float64)
    x = inputs["x"].requires_grad_()
    proto = export(net, {"x": x.detach()}, False, dynamic=False)
    (expected,) = torch.autograd.grad(torch.nn.functional.cross_entropy(net(x), labels), x)
    ours = our_gradients(proto, {"x": x.detach()}, labels, ["x"])["x"]
    assert_close({"x": ours}, {"x": expected.numpy()})
