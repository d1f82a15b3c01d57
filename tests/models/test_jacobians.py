"""Jacobians and gradients per example of the families from torch's exporter, in float64.

Jacobians are by the smallest parameter, in both modes where the output is small; they and the
gradients of each example are within 1e-8 of torch's by norm.
"""

import numpy as np
import pytest

import graphgrad as gg
from tests import torch_export
from tests import torch_image_nets as images
from tests import torch_sequence_nets as sequences
from tests.models import test_exported_families as families
from tests.models.test_second_order import build
from tests.peers import peer

QUICK = [images.dcgan, sequences.gpt, "vit"]
FEW = 64
"""Elements of an output of which reverse mode computes a row each."""

TOGETHER = [sequences.graph]
"""Whose first axis is not that of examples."""


def _case(family):
    name = family if isinstance(family, str) else family.__name__
    marks = () if family in QUICK else pytest.mark.slow
    return pytest.param(family, id=name, marks=marks)


CASES = [*map(_case, [*torch_export.NETWORKS, *families.SHAPES])]


def exported(family):
    """Return a network for inference, its inputs, and the same as a model."""
    net, inputs, _ = build(family)
    dynamic = family not in TOGETHER
    model = gg.from_onnx(torch_export.export(net, inputs, training=False, dynamic=dynamic))
    net.eval()
    return net, inputs, model


def arrays_of(inputs):
    return {name: tensor.detach().numpy() for name, tensor in inputs.items()}


@pytest.mark.parametrize("family", CASES)
def test_jacobian(family):
    torch = peer("torch")
    net, inputs, model = exported(family)
    params = dict(net.named_parameters())
    name = min((n for n in model.params if n in params), key=lambda n: params[n].numel())
    others = {n: p.detach() for n, p in params.items()}
    buffers = dict(net.named_buffers())

    def output(w):
        state = (others | {name: w}, buffers)
        return torch.func.functional_call(net, state, tuple(inputs.values()))

    expected = torch.autograd.functional.jacobian(output, others[name]).numpy()
    is_small = np.prod(expected.shape[: expected.ndim - others[name].ndim]) <= FEW
    for mode in ("fwd", "rev") if is_small else ("fwd",):
        f = gg.jacobian(model, wrt=name, mode=mode, training=False)
        given = f(arrays_of(inputs))[1][name]
        assert given.shape == expected.shape
        assert np.linalg.norm(given - expected) <= 1e-8 * np.linalg.norm(expected)


@pytest.mark.parametrize("family", [c for c in CASES if c.values[0] not in TOGETHER])
def test_gradients_per_example(family):
    torch = peer("torch")
    net, inputs, model = exported(family)
    with torch.no_grad():
        shape = net(*inputs.values()).shape
    generator = torch.Generator().manual_seed(5)
    targets = torch.randn(shape, generator=generator, dtype=torch.float64)
    names = [name for name, _ in net.named_parameters()]
    f = gg.per_example_grads(model, wrt=names, loss="mse", training=False)
    losses, gradients = f({**arrays_of(inputs), "targets": targets.numpy()})
    for index in range(shape[0]):
        row = slice(index, index + 1)
        output = net(*(tensor[row] for tensor in inputs.values()))
        loss = torch.nn.functional.mse_loss(output, targets[row])
        expected = torch.autograd.grad(loss, list(net.parameters()), allow_unused=True)
        np.testing.assert_allclose(losses[index], float(loss.detach()), rtol=1e-12)
        error = {
            name: gradients[name][index] - (0.0 if g is None else g.numpy())
            for name, g in zip(names, expected, strict=True)
        }
        whole = {n: g.numpy() for n, g in zip(names, expected, strict=True) if g is not None}
        assert families.norm(error) <= 1e-8 * families.norm(whole)
