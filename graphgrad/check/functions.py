"""Checking a Relax function part by part, and then as a whole."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..autodiff.activity import analyze, select
from ..errors import GradientMismatch
from ..ir.inline import inline_calls
from .compare import DEFAULT, Arrays, Tolerances, precision_of
from .compiler import Compiled, PartCompiler
from .machine import Machine
from .parts import VALUES, Part, split, values_function
from .point import check_orders
from .result import PartCheck
from .speed import Speed, measure_speed
from .subject import Subject

_MOST_SECONDS = 20.0
"""Seconds in a check after which the speed of no further rule is measured."""

Progress = Callable[[int, int, str], None]
"""Called with how many parts are done, how many there are, and the label of the next."""


@dataclass(frozen=True)
class Settings:
    """The settings of a check; see `check_grads`."""

    order: int = 1
    tolerances: Tolerances = DEFAULT
    jacobian: bool = False
    seed: int = 0
    modes: Sequence[str] = ("rev",)


def check_function(
    subject: Subject, settings: Settings, progress: Progress = lambda done, total, text: None
) -> Iterator[PartCheck]:
    """Check every part of a function, at the values that arise in it, and then the whole.

    A part whose gradient is wrong is yielded with its mismatch, and the next part follows.

    Raises
    ------
    MissingGradientError
        Some ops have no gradient; the error lists all of them.
    NotDifferentiableError
        There is nothing to differentiate.
    """
    program = inline_calls(subject.mod, subject.name)
    activity = analyze(program, select(program, subject.wrt))
    parts = split(program, activity, subject.mod)
    total = len(parts) + 1
    progress(0, total, "the values that arise")
    # In the dtypes of the function; each part promotes those that it takes.
    values = dict(zip(program.params, subject.arrays, strict=True))
    mod, variables = values_function(program, parts, subject.mod)
    if variables:
        values |= zip(variables, Machine(mod).call(VALUES, subject.arrays), strict=True)
    names = [param.name for param in program.params]
    positions = [names.index(name) for name in subject.wrt]
    # The last part is the whole, so that of a small function there is one compilation.
    whole = Part(subject.name, None, "", [], subject.mod, program.params, positions)
    compiler = PartCompiler([*parts, whole], settings.order, settings.modes)
    speeds = _Speeds()
    for index, part in enumerate(parts):
        progress(index, total, part.label)
        sources = [source.name for source in part.sources]
        point = [values[source] for source in part.sources]
        ops = ", ".join(part.ops)
        run = _Run(part.label, part.positions, sources, settings, ops, part.node, part.rule)
        checked = run.check(compiler[index], point)
        if part.rule is not None and checked.mismatch is None:
            checked = replace(checked, speed=speeds.of(compiler.keys[index], part, point))
        yield checked
    progress(len(parts), total, subject.label)
    run = _Run(subject.label, positions, names, settings)
    yield run.check(compiler[len(parts)], subject.arrays)
    progress(total, total, "")


class _Speeds:
    """The speed of users' rules: of parts that are equal it is measured once.

    Attributes
    ----------
    seconds : float
        What is left for measuring; each compiles two gradients.
    """

    def __init__(self) -> None:
        self.seconds = _MOST_SECONDS
        self._measured: dict[Any, Speed | None] = {}

    def of(self, key: Any, part: Part, arrays: Arrays) -> Speed | None:
        """The speed of the rules of a part at some values; None once time is up."""
        if key not in self._measured and self.seconds > 0:
            start = time.perf_counter()
            self._measured[key] = measure_speed(part.mod, part.name, part.positions, arrays)
            self.seconds -= time.perf_counter() - start
        return self._measured.get(key)


@dataclass(frozen=True)
class _Run:
    """The check of one function, with the names of the user's program for its errors."""

    label: str
    positions: list[int]
    names: list[str]
    settings: Settings
    op: str | None = None
    node: str | None = None
    rule: str | None = None

    def check(self, compiled: Compiled, arrays: Arrays) -> PartCheck:
        """Check a compiled function at values in its original dtypes."""
        point = compiled.point(arrays)
        result = PartCheck(
            self.label,
            precision_of(point).name,
            op=self.op,
            node=self.node,
            note=compiled.note,
            rule=self.rule,
        )
        rule = "" if self.rule is None else f", by the rule at {self.rule}"
        settings = self.settings
        try:
            checks = check_orders(
                compiled.machine,
                compiled.name,
                point,
                settings.order,
                np.random.default_rng(settings.seed),
                f"{self.label}{rule}",
                positions=self.positions,
                names=self.names,
                tolerances=settings.tolerances,
                jacobian=settings.jacobian,
                modes=settings.modes,
            )
        except GradientMismatch as error:
            error.op, error.node = self.op, self.node
            return replace(result, mismatch=error)
        return replace(result, inputs=checks)
