"""graphgrad: the whole step is one Relax function."""

from __future__ import annotations

from collections.abc import Callable

from workload import LEARNING_RATE, MOMENTUM, Workload

import graphgrad as gg

INCLUDES = "train_step: forward, loss, backward, statistics, guarded SGD momentum, one function"


def prepare(
    workload: Workload, threads: int, rules: str = "auto", mcpu: str | None = None
) -> Callable[[], float]:
    """Return the step, with gradients by `rules`, compiled for `mcpu` or else this processor."""
    gg.set_threads(threads)
    step = gg.train_step(
        gg.from_onnx(workload.proto()),
        loss="cross_entropy",
        optimizer=gg.optim.SGD(LEARNING_RATE, momentum=MOMENTUM),
        rules=rules,
        target="llvm" if mcpu is None else {"kind": "llvm", "mcpu": mcpu},
    )
    images, labels = workload.batch()
    return lambda: float(step(images, labels))
