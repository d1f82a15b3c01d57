"""Time of forward mode and second order: beside the forward pass, and what the contractions count.

    python bench/forward_mode.py [--json] [--models resnet18_cifar] [--rounds 5]

A forward pass of one contraction a layer has that contraction once. Its tangent by inputs has
another one, by inputs and weights two more; a gradient has 2 by weights, and its tangent all of
these and their like again. So counted in forward passes: a jvp by inputs 2, by weights 3; a
Hessian-vector product by inputs 4, by weights 8. The functions take turns in one process, all of
them compiled as a training step is; the figure is the median over rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from field import positive, some_of
from machine import facts, usable_cores, versions
from specs import SPECS, shape_of
from table import table
from tvm import relax

import graphgrad as gg
from graphgrad.autodiff.hvp import hvp_of_program
from graphgrad.autodiff.jvp import jvp_of_program
from graphgrad.autodiff.vjp import vjp_of_program
from graphgrad.ir.tensor import type_shape
from graphgrad.ir.write import write_program
from graphgrad.train.forward import FORWARD, Forward
from graphgrad.train.recipe import objective

COUNTED = {"jvp by weights": 3, "jvp by inputs": 2, "hvp by weights": 8, "hvp by inputs": 4}
"""Contractions of each function, in forward passes."""

HEADER = ["model", "function", "ms", "forward passes", "counted", "ratio"]


def forward_of(name: str) -> tuple[Forward, list[str]]:
    """Return the forward pass of a model with its loss, and the names of its weights."""
    spec = SPECS[name]
    proto = spec.proto()
    model = gg.from_onnx(proto)
    wrt = model.trainable()
    checked = objective(
        model, "cross_entropy", wrt, "llvm", "auto", True, "float32", None, True, lambda *_: wrt
    )
    return checked.forward([shape_of(proto.graph.input[0])]), wrt


def functions_of(forward: Forward, wrt: Sequence[str]) -> dict[str, tuple[tvm.IRModule, str]]:
    """Return the functions that are timed: by label, a module and the name of one in it."""
    program = forward.program
    chosen = {"weights": forward.weights(wrt), "inputs": forward.arguments[:1]}
    functions = {
        "forward": (write_program(program, FORWARD), FORWARD),
        "gradient": (vjp_of_program(program, chosen["weights"]), f"{FORWARD}_vjp"),
    }
    for kind, variables in chosen.items():
        jvp, hvp = jvp_of_program(program, variables), hvp_of_program(program, variables)
        functions[f"jvp by {kind}"] = jvp, f"{FORWARD}_jvp"
        functions[f"hvp by {kind}"] = hvp, f"{FORWARD}_hvp"
    return functions


def call_of(mod: tvm.IRModule, name: str, classes: int) -> Callable[[], Any]:
    """Return a call of a compiled function, with arguments that are drawn."""
    generator = np.random.default_rng(0)

    def drawn(ty: Any) -> np.ndarray:
        shape, dtype = type_shape(ty), str(ty.dtype)
        if dtype.startswith("int"):
            return generator.integers(0, classes, shape).astype(dtype)
        # Positive, as variances are.
        return generator.uniform(0.05, 0.15, shape).astype(dtype)

    function = relax.VirtualMachine(gg.compile(mod), tvm.cpu())[name]
    arguments = [tvm.runtime.tensor(drawn(param.ty)) for param in mod[name].params]
    return lambda: function(*arguments)


def measure(name: str, rounds: int) -> dict[str, Any]:
    """Return the milliseconds of each function of a model: medians over rounds."""
    forward, wrt = forward_of(name)
    calls = {
        label: call_of(mod, function, SPECS[name].classes)
        for label, (mod, function) in functions_of(forward, wrt).items()
    }
    for call in calls.values():
        call()
    times: dict[str, list[float]] = {label: [] for label in calls}
    for _ in range(rounds):
        for label, call in calls.items():
            call()  # what the function before left in caches
            start = time.perf_counter()
            call()
            times[label].append(1e3 * (time.perf_counter() - start))
    return {label: statistics.median(values) for label, values in times.items()}


def rows_of(name: str, medians: dict[str, float]) -> list[list[str]]:
    """Return the lines of the table for a model."""
    rows = []
    for label, ms in medians.items():
        passes = ms / medians["forward"]
        counted = COUNTED.get(label)
        beside = ["", ""] if counted is None else [str(counted), f"{passes / counted:.2f}"]
        rows.append([name, label, f"{ms:.1f}", f"{passes:.2f}", *beside])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--models", type=some_of(SPECS), default=["resnet18_cifar"])
    parser.add_argument("--rounds", type=positive, default=5)
    parser.add_argument("--threads", type=positive, default=usable_cores())
    settings = parser.parse_args()
    gg.set_threads(settings.threads)
    medians = {name: measure(name, settings.rounds) for name in settings.models}
    if settings.json:
        result = {"machine": facts(), "versions": versions(), "threads": settings.threads}
        print(json.dumps(result | {"milliseconds": medians, "counted": COUNTED}))
        return
    print(table(HEADER, [row for name in medians for row in rows_of(name, medians[name])]))


if __name__ == "__main__":
    main()
