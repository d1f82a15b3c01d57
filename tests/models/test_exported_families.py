"""Further families from torch's exporter: every gradient follows torch's, by the accuracy policy.

The cotangent is random. In float64 each gradient, of the weights and of the float inputs, is within
1e-8 of torch's by norm, relative to max(‖r‖, 1e-6 · ‖whole gradient‖). In float32 the whole
gradient is at most four times as far from the float64 gradient as torch's own float32 gradient is.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

import graphgrad as gg
from tests import torch_image_nets as images
from tests import torch_sequence_nets as sequences
from tests.peers import peer
from tests.torch_export import as_if_trained, export

SHAPES = {
    images.mobilenet_v3: {"x": (3, 8, 8)},
    images.efficientnet: {"x": (3, 8, 8)},
    images.convnext: {"x": (3, 8, 8)},
    images.shufflenet: {"x": (3, 8, 8)},
    images.super_resolution: {"x": (1, 8, 8)},
    images.dcgan: {"x": (6, 1, 1)},
    sequences.gpt: {"tokens": (7,)},
    sequences.lstm: {"tokens": (7,)},
    sequences.gru: {"tokens": (7,)},
    sequences.wavenet: {"x": (2, 16)},
    sequences.pointnet: {"x": (3, 12)},
    sequences.graph: {"x": (4,), "sources": (), "targets": ()},
}
"""The shapes of the inputs without the first axis: the batch, or the nodes and edges of a graph."""

SIZES = {"sources": 20, "targets": 20}
INTEGERS = {"tokens": 30, "sources": 9, "targets": 9}
WITH_STATISTICS = {
    images.mobilenet_v3,
    images.efficientnet,
    images.shufflenet,
    images.dcgan,
    sequences.pointnet,
}
SMOOTH = [images.super_resolution, sequences.gpt, sequences.wavenet, sequences.graph]
"""Whose gradients in float32 are compared: no kink can be passed on the other side."""


def inputs_of(net, dtype, seed=1):
    torch = peer("torch")
    generator = torch.Generator().manual_seed(seed)
    inputs = {}
    for name, rest in SHAPES[net].items():
        shape = (SIZES.get(name, 9 if net is sequences.graph else 3), *rest)
        if name in INTEGERS:
            inputs[name] = torch.randint(0, INTEGERS[name], shape, generator=generator)
        else:
            x = torch.randn(shape, generator=generator, dtype=torch.float64)
            inputs[name] = x.to(dtype)
    return inputs


def torch_gradients(net, inputs, cotangent):
    torch = peer("torch")
    floats = {k: x.requires_grad_() for k, x in inputs.items() if x.is_floating_point()}
    wanted = dict(net.named_parameters()) | floats
    found = torch.autograd.grad(net(*inputs.values()), list(wanted.values()), cotangent)
    return {k: g.double().numpy() for k, g in zip(wanted, found, strict=True)}


def our_gradients(proto, inputs, cotangent, names):
    f = gg.value_and_grad(gg.from_onnx(proto), wrt=names)
    arrays = {name: tensor.detach().numpy() for name, tensor in inputs.items()}
    return f(arrays, cotangent.numpy())[1]


def cotangent_of(net, inputs):
    """Return what to weight the outputs with; the running statistics stay as they are."""
    torch = peer("torch")
    state = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    with torch.no_grad():
        shape = net(*inputs.values()).shape
    net.load_state_dict(state)
    generator = torch.Generator().manual_seed(2)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


@dataclass
class Run:
    """A network in a dtype, with what it is fed, and the cotangent of its output."""

    make: Callable
    dtype: str
    training: bool = False

    def __post_init__(self):
        dtype = getattr(peer("torch"), self.dtype)
        self.net = as_if_trained(self.make).to(dtype).train(self.training)
        self.inputs = inputs_of(self.make, dtype)
        self.cotangent = cotangent_of(self.net, self.inputs).to(dtype)

    def by_torch(self):
        """Return torch's gradients of the weights and of the float inputs, as float64."""
        self.net.train(self.training)
        return torch_gradients(self.net, self.inputs, self.cotangent)

    def by_graphgrad(self, names):
        """Return the gradients by an ONNX file."""
        is_batched = self.make is not sequences.graph
        proto = export(self.net, self.inputs, self.training, dynamic=is_batched)
        return our_gradients(proto, self.inputs, self.cotangent, names)


def _case(make):
    """Return a network as a parameter; those that take long run by `pytest -m slow`."""
    is_large = make in (images.mobilenet_v3, images.efficientnet, images.convnext)
    return pytest.param(make, marks=pytest.mark.slow) if is_large else make


def norm(gradients):
    return np.sqrt(sum(np.sum(g.astype("float64") ** 2) for g in gradients.values()))


@pytest.mark.parametrize("make", list(map(_case, SHAPES)), ids=lambda make: make.__name__)
def test_gradients(make):
    run = Run(make, "float64", training=make in WITH_STATISTICS)
    reference = run.by_torch()
    ours = run.by_graphgrad(list(reference))
    floor = 1e-6 * norm(reference)
    for name, expected in reference.items():
        error = np.linalg.norm(ours[name] - expected)
        assert error <= 1e-8 * max(np.linalg.norm(expected), floor), name


@pytest.mark.parametrize("make", SMOOTH, ids=lambda make: make.__name__)
def test_gradients_in_float32(make):
    exact = Run(make, "float64").by_torch()
    run = Run(make, "float32")
    theirs, ours = run.by_torch(), run.by_graphgrad(list(exact))
    distance = [norm({k: g[k] - exact[k] for k in exact}) for g in (ours, theirs)]
    assert distance[0] <= 4 * distance[1]
