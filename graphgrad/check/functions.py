"""Checking a Relax function part by part, and then as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

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
from .subject import Subject

Progress = Callable[[int, int, str], None]
"""Called with how many parts are done, how many there are, and the label of the next."""


@dataclass(frozen=True)
class Settings:
    """The settings of a check; see `check_grads`."""

    order: int = 1
    tolerances: Tolerances = DEFAULT
    jacobian: bool = False
    seed: int = 0


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
    compiler = PartCompiler([*parts, whole], settings.order)
    for index, part in enumerate(parts):
        progress(index, total, part.label)
        sources = [source.name for source in part.sources]
        point = [values[source] for source in part.sources]
        run = _Run(part.label, part.positions, sources, settings, ", ".join(part.ops), part.node)
        yield run.check(compiler[index], point)
    progress(len(parts), total, subject.label)
    run = _Run(subject.label, positions, names, settings)
    yield run.check(compiler[len(parts)], subject.arrays)
    progress(total, total, "")


@dataclass(frozen=True)
class _Run:
    """The check of one function, with the names of the user's program for its errors."""

    label: str
    positions: list[int]
    names: list[str]
    settings: Settings
    op: str | None = None
    node: str | None = None

    def check(self, compiled: Compiled, arrays: Arrays) -> PartCheck:
        """Check a compiled function at values in its original dtypes."""
        point = compiled.point(arrays)
        result = PartCheck(
            self.label, precision_of(point).name, op=self.op, node=self.node, note=compiled.note
        )
        settings = self.settings
        try:
            checks = check_orders(
                compiled.machine,
                compiled.name,
                point,
                settings.order,
                np.random.default_rng(settings.seed),
                self.label,
                positions=self.positions,
                names=self.names,
                tolerances=settings.tolerances,
                jacobian=settings.jacobian,
            )
        except GradientMismatch as error:
            error.op, error.node = self.op, self.node
            return replace(result, mismatch=error)
        return replace(result, inputs=checks)
