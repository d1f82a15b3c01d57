"""The zoo models of the installed onnx ("light"): do they differentiate, and rightly?

    python bench/zoo.py [--match REGEX] [--json]

Nine networks of 1.4 to 144 million weights, at full size. Each file is imported as it is: its
weights are the outputs of ConstantOfShape nodes, and must have become parameters. Equal weights
would hide errors; so every value that feeds a weight slot (weights, biases, and the scales, shifts,
means and variances of norms) is redrawn at random. The model is promoted to float64, and the
gradients of the input and of all those values, for a random cotangent, are compared with central
differences:

- along a random direction of each group of values. A group holds values that weigh about the same,
  so that none hides behind a heavier one, and every value that has a gradient is in one group;
- a value whose gradient is zero is moved alone: the outputs must not move.

Every ReLU and every pooling window that changes sides within a step adds an error in proportion to
it. So the steps are tiny, 1e-6 to 1e-9 of each value's size, and agreement with one of them counts.
The tolerance is 1e-5 of the derivative that a random direction of the group has, plus what rounding
adds, which must be below 1e-3 of it.

agrees   every gradient agrees
missing  the import, the lowering or a gradient is missing
wrong    a gradient disagrees, or the process died

The stock relax.transform.Gradient manages 2 of the 9. On two cores the command takes about ten
minutes, and vgg19 takes 11 GB of memory.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tvm
from judges import WRONG, first_line
from machine import facts, versions
from memory import resident
from table import table
from tvm import relax
from zoo_weights import random_weights

import graphgrad as gg
from graphgrad.check import flat
from graphgrad.check.promote import promote_to_float64
from graphgrad.frontend.mode import specialize
from graphgrad.ir.arrays import to_tensor

AGREES, MISSING = "agrees", "missing"

_STEPS = (1e-6, 1e-7, 1e-8, 1e-9)
_TOLERANCE = 1e-5
_ROUNDINGS = 8
"""How many roundings of the summed terms' size a difference may be off by."""
_MEMBERS = 16
"""A group has at most so many values."""
_SPREAD = 10.0
"""The heaviest value of a group weighs at most so many times what the lightest does."""
_LARGEST_NOISE = 1e-3
"""What rounding adds may be at most this share of a derivative, else nothing is checked."""
_SEED = 0

Arrays = dict[str, np.ndarray]


@dataclass
class Report:
    """What came of one model.

    Attributes
    ----------
    model, status, reason : str
    values : int
        Gradients that were checked: of the input and of every value that feeds a weight slot.
    elements : int
        Numbers in them.
    zero : int
        Gradients that are zero, and rightly.
    groups : int
    error : float or None
        The largest disagreement, relative to the derivative of its group.
    seconds : dict of str to float
        Of each part of the work.
    peak_mb : float or None
    """

    model: str
    status: str = AGREES
    reason: str = ""
    values: int = 0
    elements: int = 0
    zero: int = 0
    groups: int = 0
    error: float | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    peak_mb: float | None = None


class Disagreement(Exception):
    """A gradient and a difference are not the same."""


def models() -> dict[str, Path]:
    """Return the files of the zoo models by name."""
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    return {path.stem.removeprefix("light_"): path for path in sorted(folder.glob("*.onnx"))}


def judge(name: str) -> Report:
    """Check one model."""
    report = Report(name)
    try:
        _check(onnx.load(models()[name]), report)
    except gg.GraphGradError as error:
        report.status = MISSING
        report.reason = first_line(error, int(isinstance(error, gg.MissingGradientError)))
    except Disagreement as error:
        report.status, report.reason = WRONG, str(error)
    memory = resident()
    report.peak_mb = memory and memory["peak"]
    return report


def _check(proto: onnx.ModelProto, report: Report) -> None:
    clock = _Clock(report)
    model = gg.from_onnx(proto)
    clock.lap("import")
    weights = random_weights(proto.graph, _SEED)
    lost = sorted(weights.keys() - {*model.params, *model.state})
    if lost:
        raise gg.ModelError(f"the import makes no parameter of {', '.join(lost)}")
    point = _point(model, weights)
    module, obstacles = promote_to_float64(specialize(model, training=False))
    if obstacles:
        raise gg.ModelError(f"no float64: {obstacles[0]}")
    wrt = [*model.inputs, *weights]
    module = gg.vjp(module, wrt=wrt)
    clock.lap("differentiate")
    executable = gg.compile(module)
    function = Weighted(executable, point)
    clock.lap("compile")  # with a first call, which links the kernels
    function({})
    clock.lap("forward")
    gradients = function.gradients(wrt)
    clock.lap("gradient")
    report.values = len(gradients)
    report.elements = sum(array.size for array in gradients.values())
    compare(function, point, gradients, report)
    clock.lap("differences")


def _point(model: gg.Model, weights: Arrays) -> Arrays:
    """Return the values of all parameters, in the order of main's parameters."""
    generator = np.random.default_rng(_SEED + 1)
    inputs = {name: generator.standard_normal(ty[0]) for name, ty in model.input_types().items()}
    return {**inputs, **model.params, **model.state, **weights}


class _Clock:
    """Writes down how long each part of the work took, and says so while it goes on."""

    def __init__(self, report: Report):
        self._report = report
        self._start = time.perf_counter()

    def lap(self, part: str) -> None:
        now = time.perf_counter()
        self._report.seconds[part] = now - self._start
        print(f"{self._report.model}: {part} {now - self._start:.1f} s", file=sys.stderr)
        self._start = now


class Weighted:
    """A compiled model whose outputs are weighted with random cotangents and summed."""

    def __init__(self, executable: Any, point: Arrays):
        self._machine = relax.VirtualMachine(executable, tvm.cpu())
        self._tensors = {name: to_tensor(array) for name, array in point.items()}
        generator = np.random.default_rng(_SEED + 2)
        outputs = flat(self._machine["main"](*self._tensors.values()))
        self._cotangents = [generator.uniform(-1, 1, output.shape) for output in outputs]
        self.size = self._sum(outputs, np.abs)

    def __call__(self, moved: Mapping[str, np.ndarray]) -> float:
        """Return the sum where some values are others."""
        tensors = [
            to_tensor(moved[name]) if name in moved else tensor
            for name, tensor in self._tensors.items()
        ]
        return self._sum(flat(self._machine["main"](*tensors)), lambda term: term)

    def gradients(self, names: Sequence[str]) -> Arrays:
        """Return the gradients, which have these names."""
        cotangents = map(to_tensor, self._cotangents)
        _, gradients = self._machine["main_vjp"](*self._tensors.values(), *cotangents)
        return dict(zip(names, flat(gradients), strict=True))

    def _sum(self, outputs: list[np.ndarray], shaped: Callable[[np.ndarray], np.ndarray]) -> float:
        pairs = zip(self._cotangents, outputs, strict=True)
        return float(sum(np.sum(shaped(cotangent * output)) for cotangent, output in pairs))


def compare(function: Weighted, point: Arrays, gradients: Arrays, report: Report) -> None:
    """Compare gradients with differences; write to the report what came of it.

    Raises
    ------
    Disagreement
        Names the values.
    """
    generator = np.random.default_rng(_SEED + 3)
    scales = {name: _size(point[name]) or 1.0 for name in gradients}
    weights = {
        name: scales[name] * float(np.linalg.norm(gradient.reshape(-1)))
        for name, gradient in gradients.items()
    }
    unfit = [name for name, weight in weights.items() if not np.isfinite(weight)]
    if unfit:
        raise Disagreement(f"the gradient of {unfit[0]} is not finite")
    report.error = 0.0
    for names in groups(weights):
        line = _Line(function, point, names, scales, generator)
        given = line.product(gradients)
        size = float(np.linalg.norm([weights[name] for name in names]))
        error = line.error(given, size)
        report.groups += 1
        report.zero += not size
        report.error = max(report.error, error)


class _Line:
    """A random direction of a group of values."""

    def __init__(
        self,
        function: Weighted,
        point: Arrays,
        names: list[str],
        scales: dict[str, float],
        generator: np.random.Generator,
    ):
        self._function = function
        self._point = point
        self._directions = {
            name: scales[name] * generator.standard_normal(point[name].shape) for name in names
        }
        self._label = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"

    def product(self, gradients: Arrays) -> float:
        """Return the derivative that gradients give."""
        pairs = ((gradients[name], moves) for name, moves in self._directions.items())
        return float(sum(np.vdot(gradient, moves) for gradient, moves in pairs))

    def error(self, given: float, size: float) -> float:
        """Return by how much a derivative is off, relative to what is typical of the group.

        Raises
        ------
        Disagreement
        """
        tried = []
        for step in _STEPS:
            noise = _ROUNDINGS * np.finfo("float64").eps * self._function.size / step
            if size and noise > _LARGEST_NOISE * size:
                break
            found = (self._value(step) - self._value(-step)) / (2 * step)
            tried.append(f"{found:.9g}")
            if abs(found - given) <= _TOLERANCE * size + noise:
                return abs(found - given) / size if size else 0.0
        if not tried:
            raise Disagreement(f"{self._label}: too flat to be checked")
        found = ", ".join(tried)
        raise Disagreement(f"{self._label}: differences give {found}; the gradient {given:.9g}")

    def _value(self, step: float) -> float:
        moved = {name: self._point[name] + step * m for name, m in self._directions.items()}
        return self._function(moved)


def groups(weights: Mapping[str, float]) -> Iterator[list[str]]:
    """Yield the names of values that weigh about the same; a value of no weight is alone."""
    group: list[str] = []
    for name in sorted(weights, key=lambda name: weights[name]):
        lightest = weights[group[0]] if group else 0.0
        if group and (len(group) == _MEMBERS or weights[name] > _SPREAD * lightest or not lightest):
            yield group
            group = []
        group.append(name)
    if group:
        yield group


def _size(array: np.ndarray) -> float:
    """Return the root of the mean square."""
    return float(np.sqrt(np.mean(np.square(array)))) if array.size else 0.0


def _in_own_process(name: str) -> Report:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        try:
            return pool.submit(judge, name).result()
        except BrokenProcessPool:
            return Report(name, WRONG, "the process died")


def _text(reports: Sequence[Report]) -> str:
    parts = ["import", "differentiate", "compile", "forward", "gradient", "differences"]
    header = ["model", "status", "values", "zero", "groups", "error", *parts, "peak GB"]
    rows = [
        [
            report.model,
            report.status,
            str(report.values),
            str(report.zero),
            str(report.groups),
            "" if report.error is None else f"{report.error:.1e}",
            *(f"{report.seconds[part]:.1f} s" if part in report.seconds else "" for part in parts),
            "" if report.peak_mb is None else f"{report.peak_mb / 1e3:.1f}",
        ]
        for report in reports
    ]
    reasons = [f"{report.model}: {report.reason}" for report in reports if report.reason]
    agreeing = sum(report.status == AGREES for report in reports)
    total = f"{agreeing} of {len(reports)} differentiate"
    return "\n".join([table(header, rows), *reasons, total])


def main() -> int:
    """Check all models; return 1 if one is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--match", default="", help="only models whose name matches")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    reports = [_in_own_process(name) for name in models() if re.search(arguments.match, name)]
    if arguments.json:
        found = {
            "models": [asdict(report) for report in reports],
            "machine": facts(),
            "versions": versions(),
        }
        print(json.dumps(found))
    else:
        print(_text(reports))
    return int(any(report.status == WRONG for report in reports))


if __name__ == "__main__":
    sys.exit(main())
