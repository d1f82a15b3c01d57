"""Steps on exported networks follow torch's: their constants stay, their weights and norms move."""

import numpy as np
import pytest

import graphgrad as gg
from tests.peers import peer
from tests.torch_export import export, export_dynamo, role_network

STEPS = 5
RATE = 1e-2
EPSILON = 1e-3  # so large that a gradient that is rounding errors alone moves nothing
SLOW = pytest.mark.slow


def exported(net, inputs, exporter, training):
    if exporter == "dynamo":
        plain, _ = export_dynamo(net, inputs, training)
        return plain
    return export(net, inputs, training, dynamic=False)


def train_by_torch(net, inputs, target):
    torch = peer("torch")
    optimizer = torch.optim.Adam(net.parameters(), RATE, eps=EPSILON)
    net.train()
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(net(*inputs.values()), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(
    "name, exporter, training",
    [
        ("GroupNorms", "legacy", False),
        ("WindowAttention", "legacy", True),
        ("BatchNorms", "dynamo", True),
        pytest.param("BatchNorms", "dynamo", False, marks=SLOW),
        pytest.param("Gpt", "legacy", False, marks=SLOW),
        pytest.param("Rotary", "dynamo", False, marks=SLOW),
        pytest.param("Vit", "dynamo", False, marks=SLOW),
    ],
)
def test_steps_of_adam(name, exporter, training):
    net, inputs = role_network(name)
    net.double()
    inputs = {key: x.double() if x.is_floating_point() else x for key, x in inputs.items()}
    model = gg.from_onnx(exported(net, inputs, exporter, training))
    # Exports in training form may have moved the statistics.
    buffers = dict(net.named_buffers())
    model.state.update({key: buffers[key].numpy().copy() for key in model.state})
    before = {key: array.copy() for key, array in model.state.items()}
    target = net.train(False)(*inputs.values()).detach() + 1.0

    expected = train_by_torch(net, inputs, target)
    step = gg.train_step(model, "mse", gg.optim.Adam(RATE, epsilon=EPSILON))
    arrays = {key: x.numpy() for key, x in inputs.items()}
    losses = [float(step(arrays, target.numpy())) for _ in range(STEPS)]
    np.testing.assert_allclose(losses, expected, rtol=1e-9)
    assert losses[-1] < losses[0]
    for key, parameter in net.named_parameters():
        np.testing.assert_allclose(step.params[key], parameter.detach().numpy(), rtol=1e-7)
    for key in model.constants:
        np.testing.assert_array_equal(step.params[key], model.params[key])
    counts = {"norm": 4 * 4 * 4, "norm1": 4}  # numbers that a channel's statistics are taken of
    for key, array in step.state.items():
        layer, _, statistic = key.rpartition(".")
        wanted = buffers[key].numpy()
        if statistic == "running_var":  # torch divides by n - 1, ONNX by n
            kept = before[key] * (1 - getattr(net, layer).momentum) ** STEPS
            wanted = kept + (wanted - kept) * (1 - 1 / counts[layer])
        np.testing.assert_allclose(array, wanted, rtol=1e-7, atol=1e-9)
