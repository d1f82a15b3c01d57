"""Hessian-vector products of the families from torch's exporter, beside ``torch.func``, in float64.

A product takes forward mode through the forward pass and through every gradient. In float64 it is
within 1e-8 of torch's by norm.
"""

import numpy as np
import pytest

import graphgrad as gg
from tests import torch_export
from tests import torch_image_nets as images
from tests import torch_sequence_nets as sequences
from tests.models import test_exported_families as families
from tests.peers import peer

QUICK = ["vit", images.dcgan, sequences.pointnet]
"""Attention; transposed convolutions with batch norm; maxima."""


def build(family):
    """Return a network in float64, its inputs, and whether its batch norms train."""
    torch = peer("torch")
    if isinstance(family, str):
        inputs, _ = torch_export.inputs_of(family, torch.float64)
        training = family in ("vgg_bn", "densenet", "mobilenet_v2")
        return torch_export.build(family), inputs, training
    inputs = families.inputs_of(family, torch.float64)
    return torch_export.as_if_trained(family), inputs, family in families.WITH_STATISTICS


def theirs(net, inputs, vectors, cotangent):
    """Return torch's products: by forward mode, or by a second reverse pass where it has none."""
    torch = peer("torch")
    params = {name: p.detach().clone().requires_grad_() for name, p in net.named_parameters()}
    buffers = {name: b.clone() for name, b in net.named_buffers()}
    output = torch.func.functional_call(net, (params, buffers), tuple(inputs.values()))
    gradients = torch.autograd.grad(output, list(params.values()), cotangent, create_graph=True)
    total = sum((g * vectors[name]).sum() for name, g in zip(params, gradients, strict=True))
    products = torch.autograd.grad(total, list(params.values()), allow_unused=True)
    return {
        name: np.zeros(p.shape) if product is None else product.numpy()
        for (name, p), product in zip(params.items(), products, strict=True)
    }


def _case(family):
    name = family if isinstance(family, str) else family.__name__
    marks = () if family in QUICK else pytest.mark.slow
    return pytest.param(family, id=name, marks=marks)


@pytest.mark.parametrize("family", [*map(_case, [*torch_export.NETWORKS, *families.SHAPES])])
def test_products_are_those_of_torch(family):
    torch = peer("torch")
    net, inputs, training = build(family)
    proto = torch_export.export(net, inputs, training, dynamic=False)
    names = [name for name, _ in net.named_parameters()]
    f = gg.hvp(gg.from_onnx(proto), wrt=names, training=training)
    net.train(training)
    generator = torch.Generator().manual_seed(3)
    vectors = {
        name: torch.randn(p.shape, generator=generator, dtype=torch.float64)
        for name, p in net.named_parameters()
    }
    cotangent = families.cotangent_of(net, inputs)
    expected = theirs(net, inputs, vectors, cotangent)
    arrays = {name: tensor.detach().numpy() for name, tensor in inputs.items()}
    given = f(arrays, {n: v.numpy() for n, v in vectors.items()}, cotangent.numpy())[2]
    error = families.norm({name: given[name] - expected[name] for name in names})
    assert error <= 1e-8 * families.norm(expected)
