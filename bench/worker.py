"""The process of one contender: makes steps when asked to, and says how long they took.

    python worker.py MODULE OPTIONS FOLDER THREADS CLOCK

Speaks JSON, one object a line: first the facts of the initial step, then one answer for each
``{"untimed": n, "timed": n}`` it reads. For ``{"gradients": FILE}`` it leaves those of the initial
step in a file of numpy. An ``error`` ends it.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from channel import private_output, send, told
from memory import resident
from workload import Workload


def main() -> None:
    module, options, folder, threads, clock = sys.argv[1:]
    channel, workload = private_output(), Workload(Path(folder))
    try:
        serve(module, json.loads(options), workload, int(threads), getattr(time, clock), channel)
    except Exception as error:
        send(channel, {"error": told(error)})


def serve(
    module: str,
    options: dict[str, Any],
    workload: Workload,
    threads: int,
    clock: Callable[[], float],
    channel: TextIO,
) -> None:
    """Make the initial step, then those asked for, until the input ends."""
    contender = importlib.import_module(module)
    baseline = resident()
    start = time.perf_counter()
    step = contender.prepare(workload, threads, **options)
    loss = step()
    first_step = {
        "includes": contender.INCLUDES,
        "initial_loss": loss,
        "first_step_seconds": time.perf_counter() - start,
    }
    send(channel, first_step | {"memory": growth(baseline)})
    for line in sys.stdin:
        request = json.loads(line)
        if "gradients" in request:
            np.savez(request["gradients"], **step.gradients())
            send(channel, {})
            continue
        timed_steps(step, request["untimed"])
        seconds = timed_steps(step, request["timed"], clock)
        send(channel, {"seconds": seconds, "memory": growth(baseline)})


def timed_steps(
    step: Callable[[], Any], count: int, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Make steps and return the seconds that each took."""
    seconds = []
    for _ in range(count):
        start = clock()
        step()
        seconds.append(clock() - start)
    return seconds


def growth(baseline: dict[str, float] | None) -> dict[str, float] | None:
    """Return how resident memory has grown, in MB, since the libraries were loaded."""
    now = resident()
    if baseline is None or now is None:
        return None
    return {
        "baseline_mb": baseline["current"],
        "peak_growth_mb": now["peak"] - baseline["current"],
        "growth_mb": now["current"] - baseline["current"],
    }


if __name__ == "__main__":
    main()
