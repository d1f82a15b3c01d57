"""The optimizer and the schedule that settings of the command line describe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import ArgumentError
from ..train.optimizer import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop
from ..train.schedule import Schedule, constant, cosine, one_cycle, warmup

if TYPE_CHECKING:
    from .job import Settings

DEFAULTS: dict[str, dict[str, Any]] = {
    "sgd": {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.0},
    "adam": {"lr": 1e-3, "momentum": 0.0, "weight_decay": 0.0},
    "adamw": {"lr": 1e-3, "momentum": 0.0, "weight_decay": 1e-2},
    "adagrad": {"lr": 1e-2, "momentum": 0.0, "weight_decay": 0.0},
    "rmsprop": {"lr": 1e-3, "momentum": 0.0, "weight_decay": 0.0},
}
"""The settings of each optimizer that the command line may leave out."""

BUILT_IN = {"lr": 0.2, "weight_decay": 5e-3}
"""Those of SGD for the built-in network: with its batch norms, a rate at which others diverge."""

SCHEDULES = ("cosine", "constant", "one-cycle")

_WITHOUT_MOMENTUM: dict[str, type[Adam] | type[Adagrad]] = {
    "adam": Adam,
    "adamw": AdamW,
    "adagrad": Adagrad,
}


def build_optimizer(settings: Settings) -> Optimizer:
    """The optimizer that the settings describe.

    Raises
    ------
    ArgumentError
        A setting does not belong to the optimizer.
    """
    name, rate, clip = settings.optimizer, settings.lr, settings.clip_norm
    momentum, decay = settings.momentum, settings.weight_decay
    if settings.nesterov and name != "sgd":
        raise ArgumentError(f"--nesterov belongs to sgd, not to {name}: leave it out")
    if name == "sgd":
        nesterov = momentum > 0 if settings.nesterov is None else settings.nesterov
        return SGD(rate, momentum, decay, nesterov, clip_norm=clip)
    if name == "rmsprop":
        return RMSprop(rate, momentum=momentum, weight_decay=decay, clip_norm=clip)
    if momentum:
        raise ArgumentError(f"--momentum belongs to sgd and rmsprop, not to {name}: leave it out")
    return _WITHOUT_MOMENTUM[name](rate, weight_decay=decay, clip_norm=clip)


def build_schedule(settings: Settings, steps: int, steps_per_epoch: int) -> Schedule:
    """The schedule that the settings describe, for a run of so many steps."""
    if settings.schedule == "constant":
        return constant(settings.lr)
    if settings.schedule == "one-cycle":
        return one_cycle(settings.lr, steps)
    # One epoch, but at most a tenth of a short run.
    warmup_steps = min(steps_per_epoch, steps // 10)
    return warmup(cosine(settings.lr, steps - warmup_steps), warmup_steps)
