"""graphgrad: the whole step is one Relax function."""

from __future__ import annotations

from collections.abc import Callable

from workload import LEARNING_RATE, MOMENTUM, Workload

import graphgrad as gg

INCLUDES = "train_step: forward, loss, backward, statistics, guarded SGD momentum, one function"


def prepare(
    workload: Workload,
    threads: int,
    rules: str = "auto",
    mcpu: str | None = None,
    precision: str = "float32",
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
    step = gg.train_step(
        gg.from_onnx(workload.proto()),
        loss="cross_entropy",
        optimizer=gg.optim.SGD(LEARNING_RATE, momentum=MOMENTUM),
        rules=rules,
        precision=precision,
        target="llvm" if mcpu is None else {"kind": "llvm", "mcpu": mcpu},
    )
    images, labels = workload.batch()
    return lambda: float(step(images, labels))
