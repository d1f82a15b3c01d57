"""Whether a process that makes and drops steps for a long time stays as it was.

    python bench/soak.py [--steps 200] [--json]

A training step is made, called with a batch, and dropped; of each four, one evaluates too, one is a
gradient of the model, and one calls a step that lives on with a batch size that it has no program
for any more. Programs come from the cache. After a warm-up, and at the end, what the process has is
counted: memory maps, libraries among them, open files, threads and resident memory. The exit code
is 1 if any of the first four has grown, or, of maps, by more than one in a hundred steps. A step
takes about a quarter of a second.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from field import positive
from table import table

import graphgrad as gg
from graphgrad.models import mlp

WARM_UP = 24
"""Steps before the first count: by then all that a process makes once is there."""

STEPS_PER_GROWTH = {"maps": 100, "libraries": None, "files": None, "threads": None}
"""In how many steps what is counted may grow by one, if ever: allocators map their memory."""

LIVES_ON = 2
"""Batch sizes that the step which lives on keeps, of the three that it is called with."""


def counts() -> dict[str, float]:
    """What this process has, by kind; resident memory in MB."""
    gc.collect()
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return {
        "maps": len(maps),
        "libraries": len({line.split(maxsplit=5)[-1] for line in maps if "program.so" in line}),
        "files": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "resident_mb": pages * os.sysconf("SC_PAGE_SIZE") / 1e6,
    }


def work() -> Callable[[int], None]:
    """A function that does the work of a step of some number."""
    model = gg.from_onnx(mlp((8, 6, 4)))
    labels = np.arange(16) % 4
    inputs = np.random.default_rng(0).random((16, 8), "float32")
    lasting = gg.train_step(model, optimizer=gg.optim.SGD(0.1))
    lasting.most_shapes = LIVES_ON

    def run(number: int) -> None:
        if number % 4 == 3:
            size = 4 + number // 4 % (LIVES_ON + 1)
            lasting(inputs[:size], labels[:size])
            return
        if number % 4 == 2:
            gg.value_and_grad(model, loss="cross_entropy")({"input": inputs, "targets": labels})
            return
        step = gg.train_step(model, optimizer=gg.optim.SGD(0.1))
        step(inputs, labels)
        if number % 4 == 1:
            step.evaluate(inputs)

    return run


def soak(steps: int) -> dict[str, object]:
    """The counts after the warm-up and at the end, and the seconds that a step took."""
    run = work()
    for number in range(WARM_UP):
        run(number)
    first, start = counts(), time.perf_counter()
    for number in range(steps):
        run(number)
    seconds = (time.perf_counter() - start) / steps
    last = counts()
    growth = {kind: last[kind] - first[kind] for kind in first}
    return {"steps": steps, "first": first, "last": last, "growth": growth, "seconds": seconds}


def main() -> int:
    """Run, print and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=positive, default=200)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        # Of its own: nothing that others keep is read, or makes room for this.
        os.environ |= {"GRAPHGRAD_CACHE": "1", "GRAPHGRAD_CACHE_DIR": folder}
        result = soak(arguments.steps)
    first, last, growth = result["first"], result["last"], result["growth"]
    assert isinstance(first, dict) and isinstance(last, dict) and isinstance(growth, dict)
    if arguments.json:
        print(json.dumps(result))
    else:
        rows = [[kind, f"{first[kind]:.0f}", f"{last[kind]:.0f}"] for kind in first]
        print(table(["", "after the warm-up", f"{arguments.steps} steps later"], rows))
    return int(
        any(
            growth[kind] > (arguments.steps // steps if steps else 0)
            for kind, steps in STEPS_PER_GROWTH.items()
        )
    )


if __name__ == "__main__":
    sys.exit(main())
