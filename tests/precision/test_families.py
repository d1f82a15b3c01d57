"""Gradients in mixed precision, beside those of ``torch.autocast`` of the same networks.

The gradient in float64 is the reference. Distances are norms over the whole gradient, root mean
squares over several batches; ours is at most twice that of torch.
"""

import numpy as np
import pytest

import graphgrad as gg
from tests import torch_export
from tests import torch_sequence_nets as sequences
from tests.models import test_exported_families as families
from tests.peers import peer

BATCHES = 4
IMAGES = ["vgg_bn", "densenet", "mobilenet_v2", "inception", "vit", "unet", "bert"]
QUICK = ["vgg_bn", "vit", sequences.wavenet]
"""Of each kind one: convolutions with batch norm, attention, gated convolutions."""


def build(family):
    """Return a network in float64, and a function from a seed to its inputs in float64."""
    torch = peer("torch")
    if isinstance(family, str):
        return torch_export.build(family), lambda s: torch_export.inputs_of(
            family, torch.float64, seed=s
        )[0]
    return torch_export.as_if_trained(family), lambda s: families.inputs_of(
        family, torch.float64, seed=s
    )


def is_trained(family):
    return family in families.WITH_STATISTICS or family in ("vgg_bn", "densenet", "mobilenet_v2")


def as_dtype(inputs, dtype):
    return {k: x.to(dtype) if x.is_floating_point() else x for k, x in inputs.items()}


def torch_gradient(net, inputs, cotangent, low=None):
    torch = peer("torch")
    weights = dict(net.named_parameters())
    enabled = low is not None
    with torch.autocast("cpu", dtype=low or torch.bfloat16, enabled=enabled):
        output = net(*inputs.values())
    gradients = torch.autograd.grad(output, list(weights.values()), cotangent.to(output.dtype))
    return {k: g.double().numpy() for k, g in zip(weights, gradients, strict=True)}


def distances(family, dtype):
    """Return the root mean squares of our distance and of torch's, relative to the gradient."""
    torch = peer("torch")
    net, inputs_of = build(family)
    training = is_trained(family)
    scale = 1024.0 if dtype == "float16" else 1.0  # as a loss scale does
    proto = torch_export.export(
        net.float(),
        as_dtype(inputs_of(1), torch.float32),
        training,
        dynamic=family is not sequences.graph,
    )
    names = [name for name, _ in net.named_parameters()]
    f = gg.value_and_grad(gg.from_onnx(proto), wrt=names, training=training, precision=dtype)
    squares = np.zeros(2)
    for seed in range(1, BATCHES + 1):
        inputs = inputs_of(seed)
        state = {name: tensor.clone() for name, tensor in net.state_dict().items()}
        net.double().train(training)
        with torch.no_grad():
            shape = net(*inputs.values()).shape
        generator = torch.Generator().manual_seed(seed)
        cotangent = torch.randn(shape, generator=generator, dtype=torch.float64)
        exact = torch_gradient(net, inputs, cotangent)
        net.float().load_state_dict(state)
        single = as_dtype(inputs, torch.float32)
        theirs = torch_gradient(net, single, scale * cotangent, getattr(torch, dtype))
        net.load_state_dict(state)
        arrays = {k: x.numpy() for k, x in single.items()}
        ours = f(arrays, (scale * cotangent.float()).numpy())[1]
        size = families.norm(exact)
        for index, found in enumerate((ours, theirs)):
            error = {k: found[k].astype("float64") / scale - exact[k] for k in exact}
            squares[index] += (families.norm(error) / size) ** 2
    return np.sqrt(squares / BATCHES)


def _case(family, dtype):
    name = family if isinstance(family, str) else family.__name__
    is_quick = family in QUICK and dtype == "bfloat16"
    marks = () if is_quick else pytest.mark.slow
    return pytest.param(family, dtype, id=f"{name}-{dtype}", marks=marks)


@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        _case(family, dtype)
        for family in [*IMAGES, *families.SHAPES]
        for dtype in ("bfloat16", "float16")
    ],
)
def test_gradient_is_as_good_as_that_of_autocast(family, dtype):
    ours, theirs = distances(family, dtype)
    print(f"{ours:.2e} {theirs:.2e} {ours / theirs:.2f}")
    assert ours <= 2 * theirs
