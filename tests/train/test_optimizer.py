import numpy as np
import pytest

import graphgrad as gg
from graphgrad.errors import ArgumentError
from tests.frontend.graphs import random
from tests.peers import peer
from tests.train.nets import module

VARIANTS = [
    {},
    {"weight_decay": 0.01},
    {"momentum": 0.9},
    {"momentum": 0.9, "weight_decay": 0.01},
    {"momentum": 0.9, "nesterov": True},
    {"momentum": 0.5, "nesterov": True, "weight_decay": 0.1},
]


def network():
    """tanh(x w1) w2 in float64."""
    from tvm import relax

    mod = module(
        lambda b, x, w1, w2: relax.op.matmul(
            b.emit(relax.op.tanh(b.emit(relax.op.matmul(x, w1)))), w2
        ),
        x=([6, 4], "float64"),
        w1=([4, 5], "float64"),
        w2=([5, 3], "float64"),
    )
    params = {"w1": random(4, 5, dtype="float64"), "w2": random(5, 3, dtype="float64", seed=1)}
    return gg.Model(mod, params)


@pytest.mark.parametrize("settings", VARIANTS, ids=str)
def test_sgd_follows_torch(settings):
    """Twenty steps in float64, with a learning rate that changes on the way."""
    torch = peer("torch")
    model = network()
    step = gg.train_step(model, "mse", gg.optim.SGD(0.1, **settings))
    weights = [torch.tensor(a, requires_grad=True) for a in model.params.values()]
    optimizer = torch.optim.SGD(weights, lr=0.1, **settings)
    for index in range(20):
        x, y = (
            random(6, 4, dtype="float64", seed=index),
            random(6, 3, dtype="float64", seed=-index % 7),
        )
        step.learning_rate = optimizer.param_groups[0]["lr"] = 0.1 if index < 8 else 0.3 / index
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(
            torch.tanh(torch.tensor(x) @ weights[0]) @ weights[1], torch.tensor(y)
        )
        loss.backward()
        optimizer.step()
        assert step(x, y) == pytest.approx(loss.item(), rel=1e-10)
    for ours, theirs in zip(step.params.values(), weights, strict=True):
        np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-10, atol=1e-12)
    if "momentum" in settings:
        for ours, theirs in zip(step.optimizer_state["momentum"].values(), weights, strict=True):
            buffer = optimizer.state[theirs]["momentum_buffer"].numpy()
            np.testing.assert_allclose(ours, buffer, rtol=1e-10, atol=1e-12)
    else:
        assert step.optimizer_state == {}


@pytest.mark.parametrize("name", ["learning_rate", "momentum", "weight_decay"])
@pytest.mark.parametrize("value", [-0.1, np.nan, np.inf, "0.1", None, True])
def test_bad_values(name, value):
    with pytest.raises(ArgumentError, match=f"SGD: {name}="):
        gg.optim.SGD(**{"learning_rate": 0.1, name: value})


def test_nesterov_needs_momentum():
    with pytest.raises(ArgumentError, match="nesterov=True needs momentum"):
        gg.optim.SGD(0.1, nesterov=True)


def test_an_optimiser_is_a_value():
    assert gg.optim.SGD(0.1) == gg.optim.SGD(0.1)
    with pytest.raises(AttributeError):
        gg.optim.SGD(0.1).momentum = 0.9
