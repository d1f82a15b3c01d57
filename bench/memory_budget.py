"""Training steps within a budget of memory: their time, and the memory that they take.

    python bench/memory_budget.py [--json] [--models resnet50,unet] [--budgets 0.8,0.6,least]

Steps take turns in one process with steps without a budget; a budget ``0.4/2`` has ``repeats=2``.
Each peak is measured in a process of its own that finds the program in the cache: the growth of
resident memory over two steps, with what the step owns and was given.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from machine import facts, versions
from memory import resident
from table import table
from unet import unet

import graphgrad as gg
from graphgrad.models import resnet50, transformer_encoder

HEADER = ["model, budget", "ms per step", "ratio", "predicted MB", "measured", "repeated"]


class Subject(NamedTuple):
    """A model, the shape of its batch, and the number of its classes; none for a loss of values."""

    proto: Callable[[], onnx.ModelProto]
    shape: tuple[int, ...]
    classes: int | None


def encoder() -> onnx.ModelProto:
    return transformer_encoder(layers=12, width=512, heads=8, feed_forward=2048, sequence=512)


MODELS = {
    "resnet50": Subject(resnet50, (16, 3, 224, 224), 1000),
    "encoder": Subject(encoder, (4, 512, 512), 10),
    "unet": Subject(unet, (4, 3, 256, 256), None),
    "small": Subject(lambda: unet(4, 2, 16), (2, 3, 16, 16), None),
}


def batch_of(subject: Subject) -> tuple[np.ndarray, np.ndarray]:
    """Return a random batch and its targets."""
    generator = np.random.default_rng(0)
    x = generator.standard_normal(subject.shape, dtype=np.float32)
    if subject.classes is not None:
        return x, generator.integers(0, subject.classes, len(x))
    return x, generator.standard_normal((len(x), 1, *subject.shape[2:]), dtype=np.float32)


def budget_of(text: str, least: int = 0) -> Any:
    """Return the budget that a word says: of a share, of bytes, or of the least bytes."""
    share, _, repeats = text.partition("/")
    limit = least if share == "least" else float(share) if "." in share else int(share)
    return gg.MemoryBudget(limit, repeats=int(repeats or 1))


def step_of(subject: Subject, memory: Any) -> Any:
    loss = "mse" if subject.classes is None else "cross_entropy"
    return gg.train_step(gg.from_onnx(subject.proto()), loss, memory=memory)


def measure(name: str, settings: argparse.Namespace) -> list[dict[str, Any]]:
    """Compare budgets on one model."""
    subject = MODELS[name]
    batch = batch_of(subject)
    least = step_of(subject, 1.0).plan(*batch).least
    budgets = {"none": None, **{text: budget_of(text, least) for text in settings.budgets}}
    steps = {text: step_of(subject, budget) for text, budget in budgets.items()}
    losses = {text: float(step(*batch)) for text, step in steps.items()}
    assert len(set(losses.values())) == 1, losses
    seconds: dict[str, list[float]] = {text: [] for text in steps}
    for _ in range(settings.rounds):
        for text, step in steps.items():
            start = time.perf_counter()
            float(step(*batch))
            seconds[text].append(time.perf_counter() - start)
    reference = statistics.median(seconds["none"])
    rows = []
    for text, step in steps.items():
        budget = budgets[text]
        plan = None if budget is None else step.plan(*batch)
        median = statistics.median(seconds[text])
        memory = "none" if budget is None else f"{budget.limit}/{budget.repeats}"
        rows.append(
            {
                "model": name,
                "budget": text,
                "step_ms": 1e3 * median,
                "ratio": median / reference,
                "predicted_mb": None if plan is None else plan.peak / 1e6,
                "share": None if plan is None else plan.peak / plan.unconstrained,
                "repeated": 0 if plan is None else plan.repeated,
                "measured_mb": _peak_of_a_process(name, memory),
            }
        )
    return rows


def _peak_of_a_process(name: str, memory: str) -> float | None:
    """Return the growth of memory, as `peak_growth` measures it, in a process of its own."""
    command = [sys.executable, __file__, "--measure", name, memory]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def peak_growth(name: str, memory: str) -> float | None:
    """Return the peak in MB of two steps; None where only Linux tells.

    Parameters
    ----------
    name : str
    memory : str
        As of `budget_of`, or ``none``.
    """
    if resident() is None:
        return None
    subject = MODELS[name]
    step = step_of(subject, None if memory == "none" else budget_of(memory))
    x, y = batch_of(subject)
    forward = step._forward(step._call_inputs(x))
    step._function((x.shape,), forward)  # compiled, or read from the cache
    step._targets(y, forward)
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak is that of what follows
    before = resident()
    for _ in range(2):
        float(step(x, y))
    after = resident()
    assert before is not None and after is not None
    groups = [step.params, step.state, *step.optimizer_state.values()]
    owned = sum(array.nbytes for group in groups for array in group.values())
    return after["peak"] - before["current"] + (owned + x.nbytes + y.nbytes) / 1e6


def report(rows: list[dict[str, Any]]) -> str:
    """Return the comparison as a table."""
    return table(
        HEADER,
        [
            [
                f"{row['model']}, {row['budget']}",
                f"{row['step_ms']:.0f}",
                f"{row['ratio']:.2f}",
                "" if row["predicted_mb"] is None else f"{row['predicted_mb']:.0f}",
                "" if row["measured_mb"] is None else f"{row['measured_mb']:.0f}",
                str(row["repeated"]),
            ]
            for row in rows
        ],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--models", default="resnet50,encoder,unet")
    parser.add_argument("--budgets", default="0.8,0.6,least", type=lambda text: text.split(","))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--measure", nargs=2, metavar=("MODEL", "BYTES"), help="one peak alone")
    settings = parser.parse_args()
    if settings.measure:
        print(json.dumps(peak_growth(*settings.measure)))
        return
    rows = [row for name in settings.models.split(",") for row in measure(name, settings)]
    if settings.json:
        result = {"benchmark": "budget", "machine": facts(), "versions": versions(), "rows": rows}
        print(json.dumps(result))
    else:
        print(report(rows))


if __name__ == "__main__":
    main()
