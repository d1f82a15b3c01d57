"""What a training step takes beyond its kernels: Python's and the virtual machine's own work.

    python bench/overhead.py [--json] [--models mlp] [--cpu-time]

The same step is compiled twice, as it is and with kernels that do nothing. The time of the latter
is the overhead; the machine's share of it is a call of the compiled function alone. A batch comes
as numpy arrays, and is copied: that counts as overhead too. Microseconds, the least of some rounds.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import onnx
import tvm
import tvm_ffi
from field import positive, some_of
from machine import facts, usable_cores, versions
from table import table
from tvm import relax, tirx

import graphgrad as gg
from graphgrad.lower.pipeline import lower
from graphgrad.models import mlp, resnet_digits
from graphgrad.train import on_device

CALLS = 200
HEADER = ["model", "step", "overhead", "machine", "python", "kernels called"]


@dataclass(frozen=True)
class Small:
    """A network whose kernels take little time, and the shape of its batches."""

    build: Callable[[], onnx.ModelProto]
    shape: tuple[int, ...]

    def batch(self) -> tuple[np.ndarray, np.ndarray]:
        """Return seeded inputs, and labels of ten classes."""
        inputs = np.random.default_rng(0).random(self.shape, "float32")
        return inputs, np.arange(self.shape[0]) % 10


MODELS = {
    "mlp": Small(functools.partial(mlp, (784, 256, 256, 10)), (64, 784)),
    "resnet_digits": Small(resnet_digits, (64, 1, 8, 8)),
}


class Measured:
    """A step of a model, and how often its function calls kernels."""

    def __init__(self, small: Small, kernels: bool):
        self._batch = small.batch()
        self.calls = 0

        def lowered(mod: tvm.IRModule, *arguments: Any, **options: Any) -> tvm.IRModule:
            done = lower(mod, *arguments, **options)
            self.calls = _calls(done)
            return done if kernels else _without_kernels(done)

        self._step = gg.train_step(gg.from_onnx(small.build()))
        with mock.patch.object(on_device, "lower", lowered):
            self._step(*self._batch)

    def step(self) -> None:
        """Make a step."""
        self._step(*self._batch)

    def machine(self) -> Callable[[], Any]:
        """Return a call of the compiled function alone."""
        step, (inputs, labels) = self._step, self._batch
        call_inputs = step._call_inputs(inputs)
        forward = step._forward(call_inputs)
        targets = step._targets(labels, forward)
        owned = [step._tensors.rate, *step._tensors.everything()]
        function = step._functions.step(call_inputs.shapes, forward, step._compile_updating)
        return functools.partial(function, *call_inputs.tensors.values(), *targets, *owned)


def _calls(mod: tvm.IRModule) -> int:
    """Return how many calls of kernels a lowered module makes."""
    found: list[Any] = []

    def visit(call: Any) -> None:
        if isinstance(call.op, tvm.ir.GlobalVar) and isinstance(mod[call.op], tirx.PrimFunc):
            found.append(call)

    for function in mod.functions.values():
        if isinstance(function, relax.Function):
            tvm_ffi.structural_walk(function.body, (tvm.ir.Call, visit))
    return len(found)


def _without_kernels(mod: tvm.IRModule) -> tvm.IRModule:
    """Return a lowered module with kernels that do nothing."""
    changed = mod.clone()
    for variable, func in mod.functions.items():
        if isinstance(func, tirx.PrimFunc):
            empty = tirx.PrimFunc(func.params, tirx.Evaluate(0), func.ret_type, func.attrs)
            changed.update_func(variable, empty)
    return changed


def microseconds(work: Callable[[], Any], calls: int, clock: Callable[[], float]) -> float:
    """Return what a call takes, the mean of some."""
    start = clock()
    for _ in range(calls):
        work()
    return (clock() - start) / calls * 1e6


def measure(small: Small, rounds: int, clock: Callable[[], float]) -> dict[str, float]:
    """Return the figures of one model."""
    whole, empty = Measured(small, kernels=True), Measured(small, kernels=False)
    work = {"step": whole.step, "overhead": empty.step, "machine": empty.machine()}
    least = dict.fromkeys(work, float("inf"))
    for _ in range(rounds):
        for name, call in work.items():
            calls = CALLS // 10 if name == "step" else CALLS
            least[name] = min(least[name], microseconds(call, calls, clock))
    return {
        **least,
        "python": least["overhead"] - least["machine"],
        "kernels_called": whole.calls,
    }


def main() -> None:
    arguments = _parser().parse_args()
    # Every step is to be lowered here.
    os.environ["GRAPHGRAD_CACHE"] = "0"
    gg.set_threads(arguments.threads)
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    results = {name: measure(MODELS[name], arguments.rounds, clock) for name in arguments.models}
    if arguments.json:
        document = {"machine": facts(), "versions": versions(), "threads": arguments.threads}
        print(json.dumps({**document, "cpu_time": arguments.cpu_time, "models": results}, indent=1))
    else:
        print(table(HEADER, [_row(name, figures) for name, figures in results.items()]))


def _row(name: str, figures: dict[str, float]) -> list[str]:
    times = [f"{figures[key]:.0f}" for key in ("step", "overhead", "machine", "python")]
    return [name, *times, str(figures["kernels_called"])]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--json", action="store_true", help="print one JSON object")
    add("--models", type=some_of(MODELS), default=list(MODELS), help=", ".join(MODELS))
    add("--rounds", type=positive, default=15)
    add("--threads", type=positive, default=min(2, usable_cores()))
    add("--cpu-time", action="store_true", help="time the processor, not the wall clock")
    return parser


if __name__ == "__main__":
    main()
