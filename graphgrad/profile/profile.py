"""`profile`: where the time and the memory of a training step go, by op and by ONNX node."""

from __future__ import annotations

import json
import math
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np
import tvm
import tvm_ffi
from rich.console import Group
from tvm import relax

from ..errors import ArgumentError
from ..ir.tensor import is_float
from ..memory.budget import FunctionBudget
from ..report.graph import Subject
from ..report.table import plain
from ..train.inputs import Inputs
from ..train.step import TrainStep
from .html import report_page, write_report
from .memory import MemoryTimeline, memory_timeline, planned_calls, planned_timeline
from .origins import (
    KernelCall,
    Origin,
    OriginRecorder,
    classes_of,
    nodes_of,
    phases_of,
    recorded_origins,
)
from .text import profile_tables

UNKNOWN = "unknown"

_BUILTIN = "vm.builtin."

_Class = tuple[str, str, tuple[str, ...], tuple[str, ...]]
"""Phase, op class, gradients and dtypes of kernels."""


@dataclass(frozen=True)
class KernelTime:
    """One kernel call of a step.

    Attributes
    ----------
    kernel : str
        Its name in the compiled module; calls of equal form share a kernel.
    seconds : float
        The median over the steps that were timed.
    phase : str
        ``"forward"``, ``"backward"``, ``"update"``, or several where the kernel joins them; or
        ``"unknown"``.
    op_class : str
        What it computes, as operators of the ONNX file, ``loss`` or ``update``; joined by `` + ``
        where it is several, and ``"unknown"`` where that is not known. An op that belongs to no
        node of a file is named as Relax names it.
    nodes : tuple of str
        Names of the ONNX nodes that it belongs to.
    gradients : tuple of str
        Who wrote the gradients in it: ``"hand"``, ``"derived"`` or ``"user"``.
    call : int or None
        Its number in the memory timeline; None if it is not in it.
    bytes : int
        The sizes of the tensors that it is called with, each memory once: what it moves at least.
    dtypes : tuple of str
        Those of the floats among these tensors: several where it reads one and writes another.
    """

    kernel: str
    seconds: float
    phase: str
    op_class: str
    nodes: tuple[str, ...]
    gradients: tuple[str, ...]
    call: int | None
    bytes: int
    dtypes: tuple[str, ...]


@dataclass(frozen=True)
class ClassTime:
    """The time of all kernel calls of a step that have the same class, phase, gradients and dtypes.

    Attributes
    ----------
    phase, op_class : str
    gradients, dtypes : tuple of str
        As of `KernelTime`.
    calls : int
    seconds : float
    bytes : int
        As of `KernelTime`, of all calls.
    """

    phase: str
    op_class: str
    gradients: tuple[str, ...]
    dtypes: tuple[str, ...]
    calls: int
    seconds: float
    bytes: int


@dataclass(frozen=True)
class Profile:
    """Where the time and the memory of a step go; returned by `profile`.

    Attributes
    ----------
    target : str
    compile_seconds : float
        How much longer the first step took: the program was written, lowered and compiled.
    step_seconds : tuple of float
        Of steps that nobody watched.
    kernels : tuple of KernelTime
        In the order in which they run.
    machine_seconds : float
        What the virtual machine needs itself, for memory, shapes and checks of arguments.
    memory : MemoryTimeline or None
        None where the order of kernels depends on values.
    subject : Subject
        The model, and what of it trains.
    """

    target: str
    compile_seconds: float
    step_seconds: tuple[float, ...]
    kernels: tuple[KernelTime, ...]
    machine_seconds: float
    memory: MemoryTimeline | None
    subject: Subject = field(repr=False, compare=False)

    @property
    def kernel_seconds(self) -> float:
        """The time of all kernels together."""
        return sum(kernel.seconds for kernel in self.kernels)

    @property
    def classes(self) -> list[ClassTime]:
        """The kernels by class, those that take most time first."""
        kernels_of_class: dict[_Class, list[KernelTime]] = defaultdict(list)
        for kernel in self.kernels:
            key = kernel.phase, kernel.op_class, kernel.gradients, kernel.dtypes
            kernels_of_class[key].append(kernel)
        classes = [
            ClassTime(
                *key,
                len(members),
                sum(kernel.seconds for kernel in members),
                sum(kernel.bytes for kernel in members),
            )
            for key, members in kernels_of_class.items()
        ]
        return sorted(classes, key=lambda class_time: -class_time.seconds)

    @property
    def phases(self) -> dict[str, float]:
        """The seconds of each phase, in the order in which they begin."""
        seconds_of_phase: dict[str, float] = defaultdict(float)
        for kernel in self.kernels:
            seconds_of_phase[kernel.phase] += kernel.seconds
        return dict(seconds_of_phase)

    def facts(self) -> dict[str, Any]:
        """Everything in plain values, but for the model."""
        return {
            **self.timing_facts(),
            "kernels": [asdict(kernel) for kernel in self.kernels],
            "machine_seconds": self.machine_seconds,
            "memory": None if self.memory is None else asdict(self.memory),
            "kernel_seconds": self.kernel_seconds,
            "phases": self.phases,
            "classes": [asdict(class_time) for class_time in self.classes],
        }

    def timing_facts(self) -> dict[str, Any]:
        """The figures of the step as a whole, as plain values."""
        return {
            "target": self.target,
            "compile_seconds": self.compile_seconds,
            "step_seconds": self.step_seconds,
            "median_seconds": statistics.median(self.step_seconds),
            "peak_bytes": None if self.memory is None else self.memory.peak_bytes,
        }

    def to_json(self) -> str:
        """`facts` as JSON."""
        return json.dumps(self.facts())

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """The report of the step: one HTML page that needs no network and no other file.

        It has the graph by ONNX node, colored by the gradient's origin, by time or by memory; the
        memory timeline; the slowest nodes; and what does not train, and why.

        Parameters
        ----------
        path : path, optional
            Where it is written too, ``.html``. Beside it, ``.trace.json``, comes a trace of the
            step for Perfetto. Files that stand there are replaced.

        Returns
        -------
        str
            The text of the page.

        Raises
        ------
        ArgumentError
            The path does not end in ``.html``, or has no folder to be in.
        OutputError
            A file cannot be written.

        Examples
        --------
        >>> page = gg.profile(step, images, labels).to_html("step.html")
        """
        proto = self.subject.model.skeleton
        title = proto.graph.name if proto is not None else ""
        text = report_page(title or "model", self.subject, self.subject.coverage(), self)
        if path is not None:
            write_report(path, text, self)
        return text

    def __rich__(self) -> Group:
        return profile_tables(self)

    def __str__(self) -> str:
        return plain(self)


def profile(step: TrainStep, inputs: Inputs, targets: Any = None, *, steps: int = 10) -> Profile:
    """Say where the time and the memory of a training step go.

    The step is compiled once more, and 2 · `steps` + 1 steps are made on the batch given: they move
    the parameters as any other. What is timed are the kernels of the compiled step as they are; a
    kernel that joins several nodes is listed with all of them, and one of which it is not known
    what it computes as ``"unknown"``. On a GPU each kernel is waited for.

    Parameters
    ----------
    step : TrainStep
        With ``accumulate=1``.
    inputs, targets : arrays
        As of a step.
    steps : int
        How many steps are timed, and how many are made besides that nobody watches.

    Returns
    -------
    Profile
        ``print`` shows tables, ``.to_json()`` gives it to programs, ``.to_html(path)`` writes a
        page with the graph; `write_profile_figure` of `graphgrad.profile.text` draws it.

    Raises
    ------
    ArgumentError
        `step` is none that can be profiled, or `steps` is no whole number from 1.
    InputError, DeviceError
        As of a step.

    Examples
    --------
    >>> step = gg.train_step(gg.from_onnx("model.onnx"))
    >>> print(gg.profile(step, images, labels))
    """
    if not isinstance(step, TrainStep):
        raise ArgumentError(
            f"expected a step made by graphgrad.train_step, given a {type(step).__name__}"
        )
    if step.accumulate != 1:
        raise ArgumentError(
            f"the step adds up {step.accumulate} micro-batches; profile one made with accumulate=1"
        )
    if isinstance(steps, bool) or not isinstance(steps, int | np.integer) or steps < 1:
        raise ArgumentError(f"steps={steps!r} must be a whole number, at least 1")
    watch = _Watch()
    with step.watched(watch):
        first_seconds = _seconds(step, inputs, targets)
        unwatched_seconds = tuple(_seconds(step, inputs, targets) for _ in range(steps))
        runs = [watch.times(lambda: _seconds(step, inputs, targets)) for _ in range(steps)]
    made_of = step.recipe
    subject = Subject(made_of.model, tuple(made_of.wrt), made_of.inlined.program.rules)
    return watch.profile(
        first_seconds - statistics.median(unwatched_seconds), unwatched_seconds, runs, subject
    )


def _seconds(step: TrainStep, inputs: Inputs, targets: Any) -> float:
    """Make a step and return how long it took, until its loss was read."""
    start = time.perf_counter()
    float(step(inputs, targets))
    return time.perf_counter() - start


class Called(NamedTuple):
    """A function that the virtual machine called in a step, and what it was given."""

    name: str
    seconds: float
    bytes: int
    dtypes: tuple[str, ...]


Run = list[Called]
"""What the virtual machine called in one step, in order."""


class _Watch:
    """An observer of a step's compilation, which then times what its virtual machine calls."""

    def __init__(self) -> None:
        self._recorder: OriginRecorder | None = None
        self._budget: FunctionBudget | None = None
        self._function = ""
        self._machine: Any = None
        self._device: Any = None
        self._run: Run = []
        self._start = 0.0

    @contextmanager
    def lowering(self, name: str, budget: FunctionBudget) -> Iterator[None]:
        """Watch the passes that lower a function, inside the ``with`` block."""
        self._function, self._budget = name, budget
        with recorded_origins(name) as recorder:
            yield
        self._recorder = recorder

    def loaded(self, machine: relax.VirtualMachine, device: tvm.runtime.Device) -> None:
        """Take the machine that runs what was lowered."""
        self._machine, self._device = machine, device

    def times(self, step: Any) -> Run:
        """Make a step and return what it called, in order."""
        self._run = []
        self._machine.set_instrument(self._called)
        step()
        return self._run

    def _called(self, _: Any, name: str, before: bool, __: Any, *arguments: Any) -> int:
        """The machine's instrument: called before and after each function that it calls."""
        # A GPU's kernels are only queued by their call: waited for, each time is its own.
        if self._device.type != "cpu":
            self._device.sync()
        if before:
            self._start = time.perf_counter()
        else:
            seconds = time.perf_counter() - self._start
            self._run.append(Called(name, seconds, _bytes(name, arguments), _dtypes(arguments)))
        return tvm.runtime.vm.VMInstrumentReturnKind.NO_OP

    def profile(
        self,
        compile_seconds: float,
        step_seconds: tuple[float, ...],
        runs: list[Run],
        subject: Subject,
    ) -> Profile:
        """The profile, of the recorded calls and the times of unwatched steps."""
        assert self._recorder is not None and self._recorder.module is not None
        mod, calls = self._recorder.module, self._recorder.calls
        kernels = {str(variable.name_hint) for variable in mod.get_global_vars()}
        checks = self._recorder.added
        budget = self._budget
        if budget is not None and budget.plan is not None:
            calls = planned_calls(budget, calls, kernels)
        names = [call.name for call in runs[0]]
        if any([call.name for call in run] != names for run in runs):
            runs = runs[-1:]  # which functions are called depends on values
            names = [call.name for call in runs[0]]
        # The k-th call of all runs is one and the same: of its times the median counts.
        seconds = [statistics.median(times) for times in zip(*map(_times, runs), strict=True)]
        # Kernels are matched with the recorded calls by order alone, which branches would change.
        is_recorded_order = [name for name in names if name in kernels] == [
            call.kernel for call in calls
        ]
        called = [
            call._replace(seconds=median_seconds)
            for call, median_seconds in zip(runs[0], seconds, strict=True)
        ]
        machine_seconds = sum(call.seconds for call in called if _is_machine(call.name, checks))
        program_calls = [call for call in called if not _is_machine(call.name, checks)]
        kernel_times = _kernel_times(program_calls, kernels, calls if is_recorded_order else None)
        is_host = self._device.type == "cpu"
        memory = None
        if is_recorded_order and budget is not None and budget.plan is not None:
            memory = planned_timeline(budget, mod, kernels, counts_scratch=is_host)
        elif is_recorded_order:
            memory = memory_timeline(mod, self._function, calls, counts_scratch=is_host)
        return Profile(
            str(self._device),
            max(0.0, compile_seconds),
            step_seconds,
            tuple(kernel_times),
            machine_seconds,
            memory,
            subject,
        )


def _times(run: Run) -> list[float]:
    """The seconds of each call of a run."""
    return [call.seconds for call in run]


def _bytes(name: str, arguments: Sequence[Any]) -> int:
    """The bytes of the tensors among arguments, each memory once."""
    if name.startswith(_BUILTIN):
        return 0
    sizes: dict[int, int] = {}
    for argument in arguments:
        if isinstance(argument, tvm.runtime.Tensor):
            bits = tvm_ffi.dtype(str(argument.dtype)).bits
            size = -(-bits // 8) * math.prod(int(extent) for extent in argument.shape)
            sizes[argument.data_ptr()] = max(size, sizes.get(argument.data_ptr(), 0))
    return sum(sizes.values())


def _dtypes(arguments: Sequence[Any]) -> tuple[str, ...]:
    """The dtypes of the float tensors among arguments, by name."""
    tensors = [argument for argument in arguments if isinstance(argument, tvm.runtime.Tensor)]
    return tuple(sorted({str(x.dtype) for x in tensors if is_float(str(x.dtype))}))


def _is_machine(name: str, checks: frozenset[str]) -> bool:
    """Whether a function does nothing of the program; `own` are checks of arguments."""
    return name.startswith(_BUILTIN) or name in checks


def _kernel_times(
    called: Run, kernels: set[str], calls: Sequence[KernelCall] | None
) -> Iterator[KernelTime]:
    """Yield the kernels and packed functions of a step; without `calls` they are unknown."""
    number = 0
    for function in called:
        call_origins: tuple[Origin, ...] = ()
        call = None
        if function.name in kernels and calls is not None:
            call_origins, call = calls[number].origins, number
            number += 1
        yield _described(function, call_origins, call)


def _described(called: Called, origins: Sequence[Origin], call: int | None) -> KernelTime:
    """A called function with what its origins say of it; without origins it is unknown."""
    name, seconds, size, dtypes = called
    if not origins:
        return KernelTime(name, seconds, UNKNOWN, UNKNOWN, (), (), call, size, dtypes)
    provenances = [origin.provenance for origin in origins]
    return KernelTime(
        name,
        seconds,
        phases_of(origins),
        classes_of(origins),
        nodes_of(origins),
        tuple(sorted({p.origin for p in provenances if p.origin and not p.primal})),
        call,
        size,
        dtypes,
    )
