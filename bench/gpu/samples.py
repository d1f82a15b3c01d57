"""The samples of all gradient rules on a GPU: whether they compile, and whether they are right.

    python bench/gpu/samples.py [--match REGEX] [--dtype float32 …] [--arch sm_90] [--json FILE]
    python bench/gpu/samples.py --run [--match REGEX] [--dtype float32 …] [--json FILE]

Each sample is a call of an op; compiled are the call and its gradient, many of them as one module,
because starting the CUDA compiler takes most of the time. A module that fails is compiled again in
halves, until what fails is known. Needs nvcc or NVRTC, and no GPU.

With `--run` each sample also runs on the CUDA device that is there, and its outputs and gradients
are compared with those of the same module on the CPU. On a machine without a GPU:

    python -m tests.emulator python bench/gpu/samples.py --run
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import paths  # noqa: F401 (where `machine` and `table` are found)
import tvm
from machine import facts, versions
from table import table

from graphgrad.autodiff.vjp import vjp
from graphgrad.check import flat, sample_inputs, sample_module
from graphgrad.ir.arrays import to_tensor
from graphgrad.lower.cuda.compiler import executable_sources, machine_code
from graphgrad.lower.cuda.schedule import Kernel
from graphgrad.lower.pipeline import compile as compile_module
from graphgrad.lower.pipeline import generate, lower
from graphgrad.lower.target import target as resolve
from graphgrad.registry import Rule, all_rules
from graphgrad.registry.sample import Sample

TOLERANCES = {"float64": 1e-10, "float32": 1e-5, "float16": 2e-2, "bfloat16": 5e-2}
"""Largest distance between GPU and CPU, by tensor norm and relative to the CPU's, or to 1."""

TOGETHER = 60
"""Samples of a module."""


class Case(NamedTuple):
    """One sample of a rule, in a dtype."""

    rule: Rule
    sample: Sample
    dtype: str

    def __str__(self) -> str:
        return f"{self.rule.op} [{self.sample}] {self.dtype}"


@dataclass
class Report:
    """What became of the cases: kernels by rule, and why cases failed."""

    cases: int = 0
    kernels: Counter[str] = field(default_factory=Counter)
    serial: set[str] = field(default_factory=set)
    compiling: dict[str, str] = field(default_factory=dict)
    running: dict[str, str] = field(default_factory=dict)

    def add(self, other: Report) -> None:
        """Take in what became of further cases, which are counted here already."""
        self.kernels += other.kernels
        self.serial |= other.serial
        self.compiling |= other.compiling
        self.running |= other.running


def main() -> int:
    """Compile what is asked for, run it if asked to, and print what fails."""
    arguments = _parser().parse_args()
    match = re.compile(arguments.match).search
    reports = {}
    for dtype in arguments.dtype:
        cases = [
            Case(rule, sample, dtype)
            for rule in all_rules()
            if match(rule.op)
            for sample in rule.samples
        ]
        reports[dtype] = check(cases, arguments.arch, arguments.run)
    print(_summary(reports, arguments.run))
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(_record(reports), indent=1) + "\n", "utf-8")
    return 1 if any(report.compiling or report.running for report in reports.values()) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--match", default="", metavar="REGEX", help="only of these ops")
    parser.add_argument("--dtype", nargs="+", choices=TOLERANCES, default=["float64"])
    parser.add_argument("--arch", default="sm_90", help="what is compiled for (default: sm_90)")
    parser.add_argument(
        "--run", action="store_true", help="run on the device, and compare with the CPU"
    )
    parser.add_argument("--json", metavar="FILE", help="write what is found")
    return parser


def check(cases: Sequence[Case], arch: str, run: bool) -> Report:
    """Compile all cases and, if asked to, run those that compile; say what fails as it does."""
    report = Report(cases=len(cases))
    for start in range(0, len(cases), TOGETHER):
        together = cases[start : start + TOGETHER]
        failed = Report()
        for group, executable in compiled(together, arch, failed):
            if run:
                failed.running |= differences(group, executable)
        _print_failures(failed)
        print(f"{start + len(together)} of {len(cases)}", file=sys.stderr, flush=True)
        report.add(failed)
    return report


def compiled(
    cases: Sequence[Case], arch: str, report: Report
) -> Iterator[tuple[Sequence[Case], Any]]:
    """Yield the cases in as few groups as compile, each with its executable."""
    kernels: list[Kernel] = []
    target = resolve({"kind": "cuda", "arch": arch})
    try:
        executable = generate(lower(module(cases), target, kernels), target)
        for source in executable_sources(executable):
            machine_code(source, arch)
    except Exception as error:  # passes of TVM raise whatever they like
        if len(cases) == 1:
            report.compiling[str(cases[0])] = _first_lines(error)
            return
        middle = len(cases) // 2
        yield from compiled(cases[:middle], arch, report)
        yield from compiled(cases[middle:], arch, report)
        return
    report.kernels.update(kernel.rule for kernel in kernels)
    report.serial.update(kernel.name for kernel in kernels if kernel.rule == "serial")
    yield cases, executable


def module(cases: Sequence[Case]) -> tvm.IRModule:
    """Return a module with the functions ``case0``, ``case0_vjp``, ``case1``, …."""
    mod = tvm.IRModule()
    for index, case in enumerate(cases):
        name = f"case{index}"
        mod.update(vjp(sample_module(case.rule.op, case.sample, name, case.dtype), name))
    return mod


def differences(cases: Sequence[Case], executable: Any) -> dict[str, str]:
    """Return what differs between the GPU and the CPU, by case."""
    gpu = _Machine(executable, tvm.cuda())
    cpu = _Machine(compile_module(module(cases)), tvm.cpu())
    found = {}
    for index, case in enumerate(cases):
        try:
            difference = _difference(gpu, cpu, index, case)
        except Exception as error:  # the runtime raises whatever it likes
            difference = _first_lines(error)
        if difference:
            found[str(case)] = difference
    return found


class _Machine:
    """The functions of a module, with numpy arrays in and out."""

    def __init__(self, executable: Any, device: tvm.runtime.Device):
        self._machine = tvm.relax.VirtualMachine(executable, device)
        self._device = device

    def call(self, name: str, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        return flat(self._machine[name](*(to_tensor(a, self._device) for a in arrays)))


def _difference(gpu: _Machine, cpu: _Machine, index: int, case: Case) -> str:
    inputs = sample_inputs(case.sample, np.random.default_rng(0), case.dtype)
    expected = cpu.call(f"case{index}", inputs)
    found = _compared("output", gpu.call(f"case{index}", inputs), expected, case.dtype)
    generator = np.random.default_rng(1)
    cotangents = [
        generator.uniform(-1, 1, output.shape).astype(output.dtype)
        for output in expected
        if _is_float(output)
    ]
    arguments = [*inputs, *cotangents]
    gradients = [machine.call(f"case{index}_vjp", arguments) for machine in (gpu, cpu)]
    return found or _compared("result of the gradient", *gradients, case.dtype)


def _compared(what: str, found: list[np.ndarray], expected: list[np.ndarray], dtype: str) -> str:
    """Return how two lists of arrays differ, in words; empty if they agree."""
    for position, (a, b) in enumerate(zip(found, expected, strict=True)):
        if a.dtype != b.dtype or a.shape != b.shape:
            return f"{what} {position}: {a.dtype}{a.shape} in place of {b.dtype}{b.shape}"
        if not _is_float(b):
            if not np.array_equal(a, b):
                return f"{what} {position}: other integers"
            continue
        distance = _distance(a.astype("float64"), b.astype("float64"))
        if not distance <= TOLERANCES[dtype]:
            return f"{what} {position}: off by {distance:.1e} of its norm"
    return ""


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    """Return how far `a` is from `b`, relative to b's norm or 1; infinite where b is not."""
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return math.inf
    return float(np.linalg.norm(a[finite] - b[finite]) / max(np.linalg.norm(b[finite]), 1.0))


def _is_float(array: np.ndarray) -> bool:
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


def _first_lines(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:3])}"


def _print_failures(report: Report) -> None:
    for what, failures in (("does not compile", report.compiling), ("differs", report.running)):
        for name, reason in failures.items():
            print(f"{name} {what}: {reason}", flush=True)


def _summary(reports: dict[str, Report], run: bool) -> str:
    header = ["dtype", "samples", "compile", *(["right"] if run else []), "kernels"]
    rules = sorted({rule for report in reports.values() for rule in report.kernels})
    rows = []
    for dtype, report in reports.items():
        good = report.cases - len(report.compiling)
        right = [str(good - len(report.running))] if run else []
        counts = [str(report.kernels[rule]) for rule in rules]
        total = str(sum(report.kernels.values()))
        rows.append([dtype, str(report.cases), str(good), *right, total, *counts])
    return table([*header, *rules], rows)


def _record(reports: dict[str, Report]) -> dict[str, Any]:
    return {
        "machine": facts(),
        "versions": versions(),
        "dtypes": {
            dtype: {
                "samples": report.cases,
                "kernels": dict(report.kernels),
                "serial": sorted(report.serial),
                "not compiled": report.compiling,
                "different": report.running,
            }
            for dtype, report in reports.items()
        },
    }


if __name__ == "__main__":
    sys.exit(main())
