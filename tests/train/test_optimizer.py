import pickle

import numpy as np
import pytest

import graphgrad as gg
from graphgrad.errors import ArgumentError
from graphgrad.train.groups import by_parameter
from tests.frontend.graphs import random
from tests.peers import peer
from tests.train.nets import module

DECAYED = {"weight_decay": 0.05}
OPTIMIZERS = [
    ("SGD", {}, {}),
    ("SGD", DECAYED, DECAYED),
    ("SGD", {"momentum": 0.9}, {"momentum": 0.9}),
    ("SGD", {"momentum": 0.9, **DECAYED}, {"momentum": 0.9, **DECAYED}),
    ("SGD", {"momentum": 0.9, "nesterov": True}, {"momentum": 0.9, "nesterov": True}),
    ("SGD", {"momentum": 0.9, "dampening": 0.3}, {"momentum": 0.9, "dampening": 0.3}),
    ("Adam", {}, {}),
    ("Adam", {"betas": (0.7, 0.9), "epsilon": 1e-3, **DECAYED},
             {"betas": (0.7, 0.9), "eps": 1e-3, **DECAYED}),
    ("Adam", {"amsgrad": True, "betas": (0.1, 0.2)}, {"amsgrad": True, "betas": (0.1, 0.2)}),
    ("AdamW", {}, {}),
    ("AdamW", {"weight_decay": 0.5, "amsgrad": True}, {"weight_decay": 0.5, "amsgrad": True}),
    ("Adagrad", {}, {}),
    ("Adagrad", {"learning_rate_decay": 0.1, "initial_accumulator": 0.2, "epsilon": 1e-3,
                 **DECAYED},
                {"lr_decay": 0.1, "initial_accumulator_value": 0.2, "eps": 1e-3, **DECAYED}),
    ("RMSprop", {}, {}),
    ("RMSprop", {"alpha": 0.5, "epsilon": 1e-3, **DECAYED}, {"alpha": 0.5, "eps": 1e-3, **DECAYED}),
    ("RMSprop", {"centered": True}, {"centered": True}),
    ("RMSprop", {"centered": True, "momentum": 0.9}, {"centered": True, "momentum": 0.9}),
]  # fmt: skip
"""Class, settings here, the same settings in torch."""

BUFFERS = {
    "momentum": "momentum_buffer",
    "first_moment": "exp_avg",
    "second_moment": "exp_avg_sq",
    "largest_second_moment": "max_exp_avg_sq",
    "squares": "sum",
    "mean_square": "square_avg",
    "mean_gradient": "grad_avg",
}
"""What torch calls our buffers."""


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


def follow(ours, make_theirs, clip=lambda torch, weights: None):
    """Train with both for twenty steps in float64, with a rate that changes on the way."""
    torch = peer("torch")
    model = network()
    step = gg.train_step(model, "mse", ours)
    weights = [torch.tensor(a, requires_grad=True) for a in model.params.values()]
    optimizer = make_theirs(torch, weights)
    scales = [group["lr"] / 0.1 for group in optimizer.param_groups]
    for index in range(20):
        x, y = (
            random(6, 4, dtype="float64", seed=index),
            random(6, 3, dtype="float64", seed=-index % 7),
        )
        step.learning_rate = rate = 0.1 if index < 8 else 0.3 / index
        for group, scale in zip(optimizer.param_groups, scales, strict=True):
            group["lr"] = rate * scale
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(
            torch.tanh(torch.tensor(x) @ weights[0]) @ weights[1], torch.tensor(y)
        )
        loss.backward()
        clip(torch, weights)
        optimizer.step()
        assert step(x, y) == pytest.approx(loss.item(), rel=1e-10)
    for ours_now, theirs in zip(step.params.values(), weights, strict=True):
        np.testing.assert_allclose(ours_now, theirs.detach().numpy(), rtol=1e-10, atol=1e-12)
    for slot, members in step.optimizer_state.items():
        for buffer, theirs in zip(members.values(), weights, strict=True):
            expected = optimizer.state[theirs][BUFFERS[slot]].numpy()
            np.testing.assert_allclose(buffer, expected, rtol=1e-10, atol=1e-12)
    return step


@pytest.mark.parametrize("name, settings, theirs", OPTIMIZERS, ids=str)
def test_it_follows_torch(name, settings, theirs):
    ours = getattr(gg.optim, name)(0.1, **settings)
    step = follow(ours, lambda torch, w: getattr(torch.optim, name)(w, lr=0.1, **theirs))
    assert step.optimizer_state.keys() == ours.slots.keys()


def test_groups_follow_torch():
    ours = gg.optim.AdamW(
        0.1,
        weight_decay=0.3,
        groups=[gg.optim.group("*2", weight_decay=0.0, learning_rate_scale=0.5)],
    )

    def theirs(torch, weights):
        second = {"params": weights[1:], "weight_decay": 0.0, "lr": 0.05}
        return torch.optim.AdamW([{"params": weights[:1]}, second], lr=0.1, weight_decay=0.3)

    follow(ours, theirs)


@pytest.mark.parametrize("limits", [(None, 0.02), (0.01, None), (0.01, 0.02), (5.0, 5.0)], ids=str)
def test_clipping_follows_torch(limits):
    value, norm = limits

    def clip(torch, weights):
        if value is not None:
            torch.nn.utils.clip_grad_value_(weights, value)
        if norm is not None:
            torch.nn.utils.clip_grad_norm_(weights, norm)

    follow(
        gg.optim.SGD(0.1, momentum=0.9, clip_value=value, clip_norm=norm),
        lambda torch, weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9),
        clip,
    )


def test_a_gradient_whose_norm_overflows_changes_nothing():
    model = network()
    step = gg.train_step(model, "mse", gg.optim.SGD(0.1, clip_norm=1.0))
    step(random(6, 4, dtype="float64"), np.full((6, 3), 1e200))
    assert step.skipped == 1
    for name, array in step.params.items():
        np.testing.assert_array_equal(array, model.params[name])


def test_a_skipped_step_does_not_count_for_adam():
    """The corrections of both moments are those of the updates that were made."""
    plain, interrupted = (gg.train_step(network(), "mse", gg.optim.Adam(0.1)) for _ in range(2))
    x, y = random(6, 4, dtype="float64"), random(6, 3, dtype="float64", seed=1)
    for _ in range(3):
        plain(x, y)
        interrupted(x, y)
        interrupted(x, np.full_like(y, np.nan))
    for name, array in plain.params.items():
        np.testing.assert_array_equal(array, interrupted.params[name])


@pytest.mark.parametrize("name", ["learning_rate", "momentum", "weight_decay"])
@pytest.mark.parametrize("value", [-0.1, np.nan, np.inf, "0.1", None, True])
def test_bad_values(name, value):
    with pytest.raises(ArgumentError, match=f"SGD: {name}="):
        gg.optim.SGD(**{"learning_rate": 0.1, name: value})


@pytest.mark.parametrize("make, text", [
    (lambda: gg.optim.Adam(0.1, betas=(0.9, 1.0)), r"betas=.* must be a pair of numbers from 0"),
    (lambda: gg.optim.Adam(0.1, betas=0.9), "betas=0.9 must be a pair"),
    (lambda: gg.optim.RMSprop(0.1, alpha=1.5), "alpha=1.5 must be a number from 0"),
    (lambda: gg.optim.SGD(0.1, clip_norm=0.0), "clip_norm=0 would stop"),
    (lambda: gg.optim.SGD(0.1, clip_value=-1.0), "clip_value=-1.0 must be"),
    (lambda: gg.optim.SGD(0.1, momentum=0.9, dampening=0.1, nesterov=True), "needs dampening=0"),
    (lambda: gg.optim.SGD(0.1, momentum=2), "momentum=2 must be a number from 0, below 1"),
    (lambda: gg.optim.RMSprop(0.1, momentum=1.0), "momentum=1.0 must be a number from 0, below 1"),
    (lambda: gg.optim.SGD(0.1, momentum=0.9, dampening=1.5), "dampening=1.5 must be at most 1"),
    (lambda: gg.optim.SGD(0.1, momentum=0.9, nesterov="no"), "nesterov='no' must be True or False"),
    (lambda: gg.optim.Adam(0.1, amsgrad=1), "amsgrad=1 must be True or False"),
    (lambda: gg.optim.RMSprop(0.1, centered=None), "centered=None must be True or False"),
    (lambda: gg.optim.group(max_rank=-1, weight_decay=0.0), "max_rank=-1 must be a whole number"),
    (lambda: gg.optim.SGD(0.1, groups=["fc.bias"]), "is no group"),
    (lambda: gg.optim.group(weight_decay=0.0), "needs names"),
    (lambda: gg.optim.group("w"), "needs a setting"),
    (lambda: gg.optim.group(3, weight_decay=0.0), "must be text"),
    (lambda: gg.optim.SGD(0.1, groups=[gg.optim.group("w", betas=(0.1, 0.1))]), "cannot set"),
    (lambda: gg.optim.SGD(0.1, groups=[gg.optim.group("w", weight_decay=-1)]), "weight_decay=-1"),
    (lambda: gg.optim.SGD(0.1, groups=[gg.optim.group("w", learning_rate_scale=-1)]), "rate=-1"),
    (lambda: gg.optim.SGD(0.1, groups=[gg.optim.group("w", momentum=0.9)]), "which buffers"),
    (lambda: gg.train_step(network(), "mse", gg.optim.SGD(
        0.1, groups=[gg.optim.group("w1", "bias*", weight_decay=0.1)])), r"'bias\*' takes none"),
], ids=range(22))  # fmt: skip
def test_bad_settings(make, text):
    with pytest.raises(ArgumentError, match=text):
        make()


@pytest.mark.parametrize("optimizer", [
    gg.optim.SGD(0.1, momentum=0.9, clip_norm=1.0),
    gg.optim.AdamW(0.1, groups=[gg.optim.group("*.bias", max_rank=1, weight_decay=0.0)]),
], ids=["plain", "groups"])  # fmt: skip
def test_pickling(optimizer):
    assert pickle.loads(pickle.dumps(optimizer)) == optimizer


@pytest.mark.parametrize("member, taken", [
    (gg.optim.group("bn*", "fc.bias", weight_decay=0.0), {"bn.scale", "fc.bias"}),
    (gg.optim.group(max_rank=1, weight_decay=0.0), {"bn.scale", "fc.bias"}),
    (gg.optim.group("*.weight", max_rank=0, weight_decay=0.0), {"fc.weight"}),
], ids=["patterns", "rank", "both"])  # fmt: skip
def test_who_belongs_to_a_group(member, taken):
    ranks = {"fc.weight": 2, "fc.bias": 1, "bn.scale": 1}
    own = by_parameter(gg.optim.SGD(0.1, weight_decay=0.5, groups=[member]), ranks)
    assert {name for name, (chosen, _) in own.items() if not chosen.weight_decay} == taken


def test_the_first_group_that_takes_a_parameter_decides():
    groups = [gg.optim.group("a", weight_decay=0.1), gg.optim.group("*", weight_decay=0.2)]
    own = by_parameter(gg.optim.SGD(0.1, groups=groups), {"a": 1, "b": 1})
    assert [chosen.weight_decay for chosen, _ in own.values()] == [0.1, 0.2]


def test_nesterov_needs_momentum():
    with pytest.raises(ArgumentError, match="nesterov=True needs momentum"):
        gg.optim.SGD(0.1, nesterov=True)


def test_an_optimizer_is_a_value():
    assert gg.optim.SGD(0.1) == gg.optim.SGD(0.1)
    with pytest.raises(AttributeError):
        gg.optim.SGD(0.1).momentum = 0.9


def test_one_group_needs_no_list():
    member = gg.optim.group("w", weight_decay=1.0)
    assert gg.optim.SGD(0.1, groups=member) == gg.optim.SGD(0.1, groups=[member])


@pytest.mark.parametrize("wrt", [3, [None], [["w1"]], {"w1": 1}], ids=str)
def test_wrt_is_names(wrt):
    with pytest.raises(ArgumentError, match="must be a name or a list of names"):
        gg.train_step(network(), "mse", wrt=wrt)
    with pytest.raises(ArgumentError, match="must be a name or a list of names"):
        gg.value_and_grad(network(), wrt=wrt)
