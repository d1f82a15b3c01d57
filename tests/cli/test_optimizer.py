"""From settings of the command line to an optimizer and a schedule."""

import pytest

import graphgrad as gg
from graphgrad.cli.job import new_settings
from graphgrad.cli.main import parser
from graphgrad.cli.optimizer import DEFAULTS, SCHEDULES, build_optimizer, build_schedule
from graphgrad.cli.train import Settings


def settings(optimizer="sgd", **given):
    return Settings(**{"optimizer": optimizer, **DEFAULTS[optimizer], **given})


@pytest.mark.parametrize("name, expected", [
    ("sgd", gg.optim.SGD(0.01, momentum=0.9, nesterov=True)),
    ("adam", gg.optim.Adam(1e-3)),
    ("adamw", gg.optim.AdamW(1e-3, weight_decay=1e-2)),
    ("adagrad", gg.optim.Adagrad(1e-2)),
    ("rmsprop", gg.optim.RMSprop(1e-3)),
])  # fmt: skip
def test_defaults(name, expected):
    assert build_optimizer(settings(name)) == expected


@pytest.mark.parametrize("arguments, lr", [
    ("", 0.2), ("m.onnx", 0.01), ("m.onnx --lr 0.5", 0.5), ("--optimizer adam", 1e-3),
])  # fmt: skip
def test_the_rate_of_the_built_in_network_is_its_own(arguments, lr):
    """At the rate of the digits, whose network has batch norms, a plain perceptron diverges."""
    assert new_settings(parser().parse_args(["train", *arguments.split()])).lr == lr


@pytest.mark.parametrize("given, expected", [
    ({"momentum": 0.0}, gg.optim.SGD(0.01)),
    ({"nesterov": False}, gg.optim.SGD(0.01, momentum=0.9)),
    ({"clip_norm": 2.0, "optimizer": "adamw"},
     gg.optim.AdamW(1e-3, weight_decay=1e-2, clip_norm=2.0)),
    ({"momentum": 0.5, "optimizer": "rmsprop"}, gg.optim.RMSprop(1e-3, momentum=0.5)),
], ids=["plain", "heavy ball", "clipped", "momentum"])  # fmt: skip
def test_what_is_given(given, expected):
    assert build_optimizer(settings(**given)) == expected


@pytest.mark.parametrize("given, text", [
    ({"optimizer": "adam", "momentum": 0.9}, "--momentum belongs to sgd and rmsprop, not to adam"),
    ({"optimizer": "rmsprop", "nesterov": True}, "--nesterov belongs to sgd, not to rmsprop"),
], ids=["momentum", "nesterov"])  # fmt: skip
def test_settings_of_another_optimizer(given, text):
    with pytest.raises(gg.ArgumentError, match=text):
        build_optimizer(settings(**given))


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_highest_rate_is_the_one_given(name):
    schedule = build_schedule(settings(schedule=name, lr=0.5), steps=200, steps_per_epoch=10)
    rates = [schedule(step) for step in range(200)]
    assert max(rates) == pytest.approx(0.5, rel=1e-3)
    assert name == "constant" or rates[-1] < 0.01
