"""Gradients in mixed precision, beside those of ``torch.autocast`` of the same networks.

The gradient in float64 is the reference. Distances are norms over the whole gradient, medians over
several batches, or means; ours is at most twice that of torch by one of them. In a batch in which
the largest of some values are as near to each other as the dtype tells numbers apart, it is chance
who takes the right one. Where they are equal, each of them gets its share of our gradient, which is
half wrong every time, and one of them torch's, which is right half of the time: that shows in
medians, not in means.
"""

import numpy as np
import pytest

import graphgrad as gg
from tests import torch_export
from tests import torch_sequence_nets as sequences
from tests.models import test_exported_families as families
from tests.peers import peer

BATCHES = 32
QUICK = ["vgg_bn", "vit", sequences.pointnet]
"""Of each kind one: convolutions with batch norm, attention, maxima."""


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
    """Return our distances and torch's, relative to the gradient, one row a batch."""
    torch = peer("torch")
    net, inputs_of = build(family)
    training = is_trained(family)
    single = as_dtype(inputs_of(1), torch.float32)
    is_batched = family is not sequences.graph
    proto = torch_export.export(net.float(), single, training, dynamic=is_batched)
    names = [name for name, _ in net.named_parameters()]
    f = gg.value_and_grad(gg.from_onnx(proto), wrt=names, training=training, precision=dtype)
    by_batch = []
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
        arrays = {k: x.numpy() for k, x in single.items()}
        # A dynamic scale finds the largest that does not overflow; float16 needs one.
        for scale in (1024.0, 64.0, 4.0, 0.25) if dtype == "float16" else (1.0,):
            theirs = torch_gradient(net, single, scale * cotangent, getattr(torch, dtype))
            net.load_state_dict(state)
            ours = f(arrays, (scale * cotangent.float()).numpy())[1]
            if np.isfinite(families.norm(ours) + families.norm(theirs)):
                break
        errors = [
            families.norm({k: gradients[k].astype("float64") / scale - exact[k] for k in exact})
            for gradients in (ours, theirs)
        ]
        by_batch.append(np.array(errors) / families.norm(exact))
    return np.array(by_batch)


def _case(family, dtype):
    name = family if isinstance(family, str) else family.__name__
    is_quick = family in QUICK and dtype == "bfloat16"
    marks = () if is_quick else pytest.mark.slow
    return pytest.param(family, dtype, id=f"{name}-{dtype}", marks=marks)


@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        _case(family, dtype)
        for family in [*torch_export.NETWORKS, *families.SHAPES]
        for dtype in ("bfloat16", "float16")
        if (family, dtype) != (sequences.lstm, "float16")  # torch has no kernel for it
    ],
)
def test_gradient_is_as_good_as_that_of_autocast(family, dtype):
    by_batch = distances(family, dtype)
    median, mean = np.median(by_batch, axis=0), np.mean(by_batch, axis=0)
    print(
        f"{median[0]:.2e} {median[1]:.2e} {median[0] / median[1]:.2f}; {mean[0]:.2e} {mean[1]:.2e}"
    )
    assert np.isfinite(by_batch).all()
    assert any(ours <= 2 * theirs for ours, theirs in (median, mean))
