"""How a training step would scale to more cores than are here, by the tasks of its kernels.

    python bench/scaling.py [--json] [--models resnet18_cifar] [--cores 1,2,4] [--saturating 12]

The step runs on one core, where each kernel is timed, and on two, which the prediction for two is
compared with. The parallel loops of a kernel are those of its schedule; `parallel_regions.py` says
what they take on more cores, docs/scaling.md what that assumes. The kernels that lose most on the
largest number of cores are listed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from field import positive, say, some_of
from machine import facts, usable_cores, versions
from parallel_regions import Cores, Prediction, Region, predicted, regions_of
from peak import compiled
from roofline import peak
from specs import FAMILIES, SPECS, Spec, write
from table import table
from tvm import tirx
from tvm.script.parser import tirx as T
from workload import Workload

import graphgrad as gg
from graphgrad.ir.arrays import to_tensor
from graphgrad.lower.cpu.tuning import processor_of
from graphgrad.train import on_device

CORES = (1, 2, 4, 8, 16, 32, 64)
CHECKED = 2
"""The cores of the measurement that a prediction is compared with."""
SATURATING = 12.0
WAKE = 0.25
WORST = 10
LAUNCHES = 1000
LOSSES = ("serial", "imbalance", "barriers", "memory")


def measure(spec: Spec, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what a model's step takes on one core and on two, and on more by prediction."""
    with tempfile.TemporaryDirectory() as folder:
        write(spec, Path(folder))
        one, two = (_profiled(folder, threads, arguments.steps) for threads in (1, CHECKED))
    machine = Cores(
        one["bytes_per_second"],
        arguments.saturating,
        one["launch_seconds"],
        max(two["launch_seconds"] - one["launch_seconds"], 0.0),
        1e-6 * arguments.wake,
    )
    # Of the machine here the bandwidth of two cores is known.
    ratio = two["bytes_per_second"] / one["bytes_per_second"]
    here = dataclasses.replace(machine, saturating=ratio)
    calls = one["calls"]
    # What a step does beside its kernels is serial: of both measurements, that with less noise.
    other = max(
        0.0, min(each["step_seconds"] - _kernel_seconds(each["calls"]) for each in (one, two))
    )
    return {
        "batch": spec.batch,
        "machine": vars(machine),
        "cores": {cores: totals(calls, other, cores, machine) for cores in arguments.cores},
        "check": check(calls, two["calls"], here),
        "worst": worst(calls, max(arguments.cores), machine),
    }


def totals(
    calls: Sequence[dict[str, Any]], other: float, cores: int, machine: Cores
) -> dict[str, float]:
    """Return the seconds of a step on some cores, and what is lost to what.

    `other` is what the step takes beside its kernels, which is serial.
    """
    predictions = [_predicted(call, cores, machine) for call in calls]
    lost = {name: sum(getattr(each, name) for each in predictions) for name in LOSSES}
    lost["serial"] += other - other / cores
    even = sum(each.even for each in predictions) + other / cores
    return {"seconds": even + sum(lost.values()), "even": even, **lost}


def check(
    one: Sequence[dict[str, Any]], two: Sequence[dict[str, Any]], machine: Cores
) -> dict[str, Any]:
    """Return how a prediction compares with what the kernels took on as many cores.

    Raises
    ------
    SystemExit
        The steps call different kernels.
    """
    if [call["kernel"] for call in one] != [call["kernel"] for call in two]:
        raise SystemExit("the kernels on one core and on two differ, so the times compare nothing")
    expected = [_predicted(call, CHECKED, machine).total for call in one]
    measured = [call["seconds"] for call in two]
    errors = [abs(mine - true) for mine, true in zip(expected, measured, strict=True)]
    return {
        "cores": CHECKED,
        "one_core_seconds": _kernel_seconds(one),
        "predicted_seconds": sum(expected),
        "measured_seconds": sum(measured),
        "mean_error_of_kernels": sum(errors) / sum(measured),
        "bandwidth_ratio": machine.saturating,
    }


def _kernel_seconds(calls: Sequence[dict[str, Any]]) -> float:
    return sum(call["seconds"] for call in calls)


def worst(calls: Sequence[dict[str, Any]], cores: int, machine: Cores) -> list[dict[str, Any]]:
    """Return the kernels that lose most time on some cores, all calls of each together."""
    calls_of: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for call in calls:
        calls_of[call["kernel"]].append(call)
    kernels = []
    for kernel, same in calls_of.items():
        predictions = [_predicted(call, cores, machine) for call in same]
        lost = {name: sum(getattr(each, name) for each in predictions) for name in LOSSES}
        kernels.append(
            {
                "kernel": kernel,
                "calls": len(same),
                "one_core_seconds": sum(call["seconds"] for call in same),
                "seconds": sum(each.total for each in predictions),
                "lost_seconds": sum(each.lost for each in predictions),
                "mostly": max(lost, key=lambda name: lost[name]),
                "regions": same[0]["regions"],
            }
        )
    return sorted(kernels, key=lambda entry: -entry["lost_seconds"])[:WORST]


def _predicted(call: dict[str, Any], cores: int, machine: Cores) -> Prediction:
    regions = [Region(*region) for region in call["regions"]]
    return predicted(call["seconds"], call["bytes"], regions, cores, machine)


def _profiled(folder: str, threads: int, steps: int) -> dict[str, Any]:
    """Return what `profiled` does, of a process of its own."""
    say(f"  {threads} {'core' if threads == 1 else 'cores'}")
    command = [sys.executable, __file__, "--profile", folder, str(threads), str(steps)]
    environment = os.environ | {"TVM_NUM_THREADS": str(threads)}
    profile: dict[str, Any] = json.loads(subprocess.check_output(command, env=environment))
    profile["bytes_per_second"] = 1e9 * peak(threads, "perf_counter")["gb_per_s"]
    return profile


def profiled(workload: Workload, threads: int, steps: int) -> dict[str, Any]:
    """Return the calls of a training step in order: their times, bytes and parallel regions.

    And what a whole step takes without anybody watching, and a launch of a parallel loop.
    """
    gg.set_threads(threads)
    step = gg.train_step(gg.from_onnx(workload.proto()), optimizer=gg.optim.SGD(0.01, momentum=0.9))
    kernels: dict[str, tirx.PrimFunc] = {}
    generate = on_device.generate

    def record(mod: Any, *arguments: Any) -> Any:
        functions = {variable.name_hint: func for variable, func in mod.functions.items()}
        kernels.update({n: f for n, f in functions.items() if isinstance(f, tirx.PrimFunc)})
        return generate(mod, *arguments)

    with mock.patch.object(on_device, "generate", record):
        profile = gg.profile(step, *workload.batch(), steps=steps)
    lanes = processor_of(gg.target("llvm")).lanes("float32")
    regions = {name: regions_of(kernel, lanes) for name, kernel in kernels.items()}
    return {
        "calls": [
            {
                "kernel": call.kernel,
                "seconds": call.seconds,
                "bytes": call.bytes,
                "regions": [
                    (region.tasks, region.launches, region.share)
                    for region in regions.get(call.kernel, ())
                ],
            }
            for call in profile.kernels
        ],
        "step_seconds": float(np.median(profile.step_seconds)),
        "launch_seconds": launch_seconds(threads),
    }


def launch_seconds(threads: int) -> float:
    """Return what it takes to launch a parallel loop whose tasks do nothing, and to wait for it."""

    @T.prim_func(s_tir=True)
    def launches(trips: T.Buffer((threads, 16), "int32")):
        for _ in T.serial(LAUNCHES):
            for task in T.parallel(threads):
                trips[task, 0] = trips[task, 0] + 1

    run, trips = compiled(launches), to_tensor(np.zeros((threads, 16), np.int32))
    seconds = []
    for _ in range(9):
        start = time.perf_counter()
        run(trips)
        seconds.append(time.perf_counter() - start)
    return min(seconds) / LAUNCHES


def report(result: dict[str, Any]) -> str:
    """Return the figures as text."""
    parts = []
    for name, entry in result["models"].items():
        first = min(entry["cores"], key=int)
        alone = entry["cores"][first]["seconds"] * int(first)
        rows = [_cells(int(cores), each, alone) for cores, each in entry["cores"].items()]
        header = [f"{name}, batch {entry['batch']}", "ms", "speed-up", "efficiency"]
        check = entry["check"]
        parts += [
            table([*header, *(f"{loss} ms" for loss in LOSSES)], rows),
            "",
            f"kernels take {1e3 * check['one_core_seconds']:.1f} ms on one core; on "
            f"{check['cores']} predicted {1e3 * check['predicted_seconds']:.1f}, measured "
            f"{1e3 * check['measured_seconds']:.1f}, each off by "
            f"{check['mean_error_of_kernels']:.0%} on average",
            f"a launch takes {1e6 * entry['machine']['round_trip']:.2f} µs with a second core; a "
            f"core copies {entry['machine']['core_bandwidth'] / 1e9:.0f} GB/s, two "
            f"{check['bandwidth_ratio']:.1f} times that",
            "",
            table(
                ["lose most", "calls", "ms on one core", "ms", "mostly", "tasks"],
                [_worst_cells(each) for each in entry["worst"]],
            ),
            "",
        ]
    machine = result["machine"]
    load = machine["load_average"][0]
    parts.append(f"{machine['processor']}, {machine['cores']} cores; load average {load}")
    return "\n".join(parts)


def _cells(cores: int, entry: dict[str, float], alone: float) -> list[str]:
    speed_up = alone / entry["seconds"]
    figures = [f"{1e3 * entry['seconds']:.1f}", f"{speed_up:.1f}", f"{speed_up / cores:.0%}"]
    return [f"{cores} cores", *figures, *(f"{1e3 * entry[loss]:.1f}" for loss in LOSSES)]


def _worst_cells(entry: dict[str, Any]) -> list[str]:
    tasks = [
        f"{tasks}{f' × {launches}' if launches > 1 else ''}" if launches else "serial"
        for tasks, launches, share in entry["regions"]
        if share >= 0.05
    ]
    return [
        entry["kernel"][:48],
        str(entry["calls"]),
        f"{1e3 * entry['one_core_seconds']:.2f}",
        f"{1e3 * entry['seconds']:.2f}",
        entry["mostly"],
        ", ".join(tasks) or "serial",
    ]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--json", action="store_true", help="print one JSON object")
    add(
        "--models",
        type=some_of(SPECS | FAMILIES),
        default=["resnet18_cifar"],
        help=f"of {', '.join(SPECS | FAMILIES)}; default: resnet18_cifar",
    )
    add("--cores", type=_numbers, default=CORES, help="to predict")
    add(
        "--saturating",
        type=float,
        default=SATURATING,
        help="how many cores' bandwidth the memory has; default: %(default)s",
    )
    add(
        "--wake",
        type=float,
        default=WAKE,
        help="microseconds that a launch takes longer for each core beyond two; %(default)s",
    )
    add("--steps", type=positive, default=10, help="timed steps of each")
    add("--profile", nargs=3, help=argparse.SUPPRESS)
    return parser.parse_args()


def _numbers(text: str) -> Sequence[int]:
    return [positive(part) for part in text.split(",")]


def main() -> None:
    arguments = parse_arguments()
    if arguments.profile is not None:
        folder, threads, steps = arguments.profile
        print(json.dumps(profiled(Workload(Path(folder)), int(threads), int(steps))))
        return
    if usable_cores() < CHECKED:
        raise SystemExit(f"the prediction is checked on {CHECKED} cores, and there are fewer")
    models = {}
    for name in arguments.models:
        say(name)
        models[name] = measure((SPECS | FAMILIES)[name], arguments)
    result = {
        "benchmark": "scaling",
        "machine": facts(),
        "versions": versions(),
        "models": models,
    }
    print(json.dumps(result, indent=2) if arguments.json else report(result))


if __name__ == "__main__":
    main()
