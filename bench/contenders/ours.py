"""graphgrad: the whole step is one Relax function."""

from __future__ import annotations

from collections.abc import Callable

from workload import LEARNING_RATE, MOMENTUM, Workload

import graphgrad as gg

INCLUDES = "train_step: forward, loss, backward, statistics, guarded SGD momentum, one function"

_DEFAULTS = {"rules": "auto", "precision": "float32"}
"""Of `graphgrad.train_step`, which are not told: an older checkout may not know of them."""


def prepare(
    workload: Workload,
    threads: int,
    rules: str = _DEFAULTS["rules"],
    mcpu: str | None = None,
    precision: str = _DEFAULTS["precision"],
) -> Callable[[], float]:
    """Return the step.

    Parameters
    ----------
    workload : Workload
    threads : int
    rules, precision : str
        As of `graphgrad.train_step`.
    mcpu : str, optional
        The processor that it is compiled for; else this one.
    """
    gg.set_threads(threads)
    settings = {"rules": rules, "precision": precision}
    step = gg.train_step(
        gg.from_onnx(workload.proto()),
        loss="cross_entropy",
        optimizer=gg.optim.SGD(LEARNING_RATE, momentum=MOMENTUM),
        **{name: value for name, value in settings.items() if value != _DEFAULTS[name]},
        target="llvm" if mcpu is None else {"kind": "llvm", "mcpu": mcpu},
    )
    images, labels = workload.batch()
    return lambda: float(step(images, labels))
