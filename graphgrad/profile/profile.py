"""`profile`: where the time and the memory of a training step go, by op and by ONNX node."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import tvm
import tvm_ffi
from tvm import relax

from ..errors import ArgumentError
from ..train.inputs import Inputs
from ..train.step import TrainStep
from .memory import MemoryTimeline, memory_timeline
from .origins import KernelCall, Origin, OriginRecorder
from .text import profile_text

UNKNOWN = "unknown"

_BUILTIN = "vm.builtin."


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
    """

    kernel: str
    seconds: float
    phase: str
    op_class: str
    nodes: tuple[str, ...]
    gradients: tuple[str, ...]
    call: int | None
    bytes: int


@dataclass(frozen=True)
class ClassTime:
    """All kernel calls of a step that are of one class, phase and kind of gradient.

    Attributes
    ----------
    phase, op_class : str
    gradients : tuple of str
        As of `KernelTime`.
    calls : int
    seconds : float
    bytes : int
        As of `KernelTime`, of all calls.
    """

    phase: str
    op_class: str
    gradients: tuple[str, ...]
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
    """

    target: str
    compile_seconds: float
    step_seconds: tuple[float, ...]
    kernels: tuple[KernelTime, ...]
    machine_seconds: float
    memory: MemoryTimeline | None

    @property
    def kernel_seconds(self) -> float:
        """All kernels together."""
        return sum(kernel.seconds for kernel in self.kernels)

    @property
    def classes(self) -> list[ClassTime]:
        """The kernels by class, those that take most time first."""
        found: dict[tuple[str, str, tuple[str, ...]], list[KernelTime]] = defaultdict(list)
        for kernel in self.kernels:
            found[kernel.phase, kernel.op_class, kernel.gradients].append(kernel)
        classes = [
            ClassTime(*key, len(them), sum(k.seconds for k in them), sum(k.bytes for k in them))
            for key, them in found.items()
        ]
        return sorted(classes, key=lambda one: -one.seconds)

    @property
    def phases(self) -> dict[str, float]:
        """The seconds of each phase, in the order in which they begin."""
        found: dict[str, float] = defaultdict(float)
        for kernel in self.kernels:
            found[kernel.phase] += kernel.seconds
        return dict(found)

    def facts(self) -> dict[str, Any]:
        """Everything in plain values."""
        return {
            **self.timing_facts(),
            **asdict(self),
            "kernel_seconds": self.kernel_seconds,
            "phases": self.phases,
            "classes": [asdict(one) for one in self.classes],
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

    def __str__(self) -> str:
        return profile_text(self)


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
        ``print`` shows tables, ``.to_json()`` gives it to programs; `write_profile_figure` of
        `graphgrad.profile.text` draws it.

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
        first = _seconds(step, inputs, targets)
        plain = tuple(_seconds(step, inputs, targets) for _ in range(steps))
        runs = [watch.times(lambda: _seconds(step, inputs, targets)) for _ in range(steps)]
    return watch.profile(first - statistics.median(plain), plain, runs)


def _seconds(step: TrainStep, inputs: Inputs, targets: Any) -> float:
    """Make a step and return how long it took, until its loss was read."""
    start = time.perf_counter()
    float(step(inputs, targets))
    return time.perf_counter() - start


class Called(NamedTuple):
    """A function that the virtual machine called in a step, and the bytes that it was given."""

    name: str
    seconds: float
    bytes: int


Run = list[Called]
"""What the virtual machine called in one step, in order."""


class _Watch:
    """Sees a step being compiled, and times what its virtual machine calls."""

    def __init__(self) -> None:
        self._recorder: OriginRecorder | None = None
        self._function = ""
        self._machine: Any = None
        self._device: Any = None
        self._run: Run = []
        self._start = 0.0

    @contextmanager
    def lowering(self, name: str) -> Iterator[None]:
        """Watch the passes that lower a function, inside the ``with`` block."""
        self._function = name
        recorder = OriginRecorder(name)
        current = tvm.transform.PassContext.current()
        watched = tvm.transform.PassContext(
            opt_level=current.opt_level,
            required_pass=current.required_pass,
            disabled_pass=current.disabled_pass,
            instruments=[*current.instruments, recorder],
            config=current.config,
        )
        with watched:
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
        if self._device.type != "cpu":
            self._device.sync()
        if before:
            self._start = time.perf_counter()
        else:
            seconds = time.perf_counter() - self._start
            self._run.append(Called(name, seconds, _bytes(name, arguments)))
        return tvm.runtime.vm.VMInstrumentReturnKind.NO_OP

    def profile(self, first: float, plain: tuple[float, ...], runs: list[Run]) -> Profile:
        """The recorded calls."""
        assert self._recorder is not None and self._recorder.module is not None
        mod, calls = self._recorder.module, self._recorder.calls
        kernels = {str(v.name_hint) for v in mod.get_global_vars()}
        own = self._recorder.added
        names = [one.name for one in runs[0]]
        if any([one.name for one in run] != names for run in runs):
            runs = runs[-1:]  # what runs depends on values
            names = [one.name for one in runs[0]]
        seconds = [statistics.median(one) for one in zip(*map(_times, runs), strict=True)]
        follows = [name for name in names if name in kernels] == [call.kernel for call in calls]
        called = [one._replace(seconds=s) for one, s in zip(runs[0], seconds, strict=True)]
        machine = sum(one.seconds for one in called if _is_machine(one.name, own))
        others = [one for one in called if not _is_machine(one.name, own)]
        timed = _kernel_times(others, kernels, calls if follows else None)
        is_host = self._device.type == "cpu"
        memory = (
            memory_timeline(mod, self._function, calls, counts_scratch=is_host) if follows else None
        )
        return Profile(str(self._device), max(0.0, first), plain, tuple(timed), machine, memory)


def _times(run: Run) -> list[float]:
    return [one.seconds for one in run]


def _bytes(name: str, arguments: Sequence[Any]) -> int:
    """The bytes of the tensors among arguments, each memory once."""
    if name.startswith(_BUILTIN):
        return 0
    sizes: dict[int, int] = {}
    for one in arguments:
        if isinstance(one, tvm.runtime.Tensor):
            bits = tvm_ffi.dtype(str(one.dtype)).bits
            size = -(-bits // 8) * math.prod(int(extent) for extent in one.shape)
            sizes[one.data_ptr()] = max(size, sizes.get(one.data_ptr(), 0))
    return sum(sizes.values())


def _is_machine(name: str, own: frozenset[str]) -> bool:
    """Whether a function does nothing of the program; `own` are checks of arguments."""
    return name.startswith(_BUILTIN) or name in own


def _kernel_times(
    called: Run, kernels: set[str], calls: Sequence[KernelCall] | None
) -> Iterator[KernelTime]:
    """Yield the kernels and packed functions of a step; without `calls` nobody knows them."""
    number = 0
    for one in called:
        origins: tuple[Origin, ...] = ()
        call = None
        if one.name in kernels and calls is not None:
            origins, call = calls[number].origins, number
            number += 1
        yield _described(one, origins, call)


def _described(called: Called, origins: Sequence[Origin], call: int | None) -> KernelTime:
    name, seconds, size = called
    if not origins:
        return KernelTime(name, seconds, UNKNOWN, UNKNOWN, (), (), call, size)
    found = [origin.provenance for origin in origins]
    return KernelTime(
        name,
        seconds,
        " + ".join(dict.fromkeys(map(_phase, origins))),
        " + ".join(dict.fromkeys(map(_class, origins))),
        tuple(dict.fromkeys(one.node for one in found if one.node)),
        tuple(sorted({one.origin for one in found if one.origin})),
        call,
        size,
    )


def _phase(origin: Origin) -> str:
    if origin.provenance.origin is not None:
        return "backward"
    return "update" if origin.provenance.op_type == "update" else "forward"


def _class(origin: Origin) -> str:
    return origin.provenance.op_type or origin.op.removeprefix("relax.")
