"""Passes that say where they belong, and pipelines that check it.

A pass is a plain function of a module, or of one kernel, under the decorator `compiler_pass`. It
says in which phase of lowering it runs, to which it leads, and which passes it must follow or
precede, each with the reason. A `Pipeline` is a list of passes, checked when it is made.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from functools import cached_property
from typing import Any, Literal, TypeAlias, TypeVar

import tvm
from tvm import tirx

from .rewrite import map_kernels

F = TypeVar("F", bound=Callable[..., Any])
Entry: TypeAlias = "Pass | Callable[..., Any] | When"

Over = Literal["module", "kernel", "stock"]
Reasons = Mapping[str, str]

TARGETS = ("llvm", "cuda")
"""The kinds of targets that programs are lowered for."""

_RECORD = "compiler_pass"
"""The attribute of a function that holds its `Pass`."""

_KERNEL_NAME = "kernel_name"
"""The parameter by which a pass over kernels is given the name of the one at hand."""


class Phase(Enum):
    """What a program consists of, in the order in which it becomes an executable."""

    GRAPH = "ops of Relax, and the kernels that the program brings along"
    KERNELS = "calls of kernels, one for each op"
    FUSED = "calls of fused kernels, made of stages that no schedule has seen"
    SCHEDULED = "calls of scheduled kernels, each to memory of its own"
    DONATED = "calls of scheduled kernels, some of which overwrite what callers give away"
    ALLOCATED = "calls of kernels with their outputs, each allocated by itself"
    PLANNED = "calls of kernels with their outputs, in memory that they use in turn"
    MACHINE = "instructions of the virtual machine"

    def precedes(self, other: Phase) -> bool:
        """Whether a program is in this phase earlier than in another one."""
        order = list(Phase)
        return order.index(self) < order.index(other)


class PassOrderError(Exception):
    """A pipeline whose passes are not in an order that they allow."""


@dataclass(frozen=True)
class Pass:
    """A pass and its place.

    Attributes
    ----------
    function : callable
        Given a module or a kernel, and by name what else its parameters ask for, it returns what
        takes its place; None if it only looks, for something to refuse. Of a stock pass, what makes
        it.
    phases : tuple of Phase
        Those in which it may run.
    to : Phase or None
        The phase to which it leads; None if the phase stays as it is.
    over : "module", "kernel" or "stock"
        What the function is given; passes over kernels that follow each other are applied to one
        kernel after the other. A stock pass is TVM's.
    targets : tuple of str
        Kinds of targets that it is for.
    requires : mapping of str to str
        Names of the passes that must have run, and why.
    after, before : mapping of str to str
        Names of the passes that it follows or precedes where a pipeline has them, and why.
    because : str
        Why it has its phase, where its first line of documentation does not say that.
    provides : str or None
        The name of what it finds out for passes that follow: it is returned as second result, and
        given to those that have a parameter of that name.
    repeatable : bool
        Whether a pipeline may have it more than once.
    runs : tuple of Pipeline
        The pipelines that a pass over kernels runs itself.
    """

    function: Callable[..., Any]
    phases: tuple[Phase, ...]
    to: Phase | None = None
    over: Over = "module"
    targets: tuple[str, ...] = TARGETS
    requires: Reasons = field(default_factory=dict)
    after: Reasons = field(default_factory=dict)
    before: Reasons = field(default_factory=dict)
    because: str = ""
    provides: str | None = None
    repeatable: bool = False
    runs: tuple[Pipeline, ...] = ()

    @property
    def name(self) -> str:
        """What it does, in the imperative; of a stock pass, TVM's name."""
        return str(self.function.__name__)

    @property
    def module(self) -> str:
        """The Python module that it is in."""
        return str(self.function.__module__)

    @property
    def summary(self) -> str:
        """The first sentence of its documentation."""
        paragraph = (inspect.getdoc(self.function) or "").partition("\n\n")[0]
        return " ".join(paragraph.split()).partition(". ")[0]

    @cached_property
    def takes(self) -> list[inspect.Parameter]:
        """What it is given beside the module or the kernel."""
        if self.over == "stock":
            return []
        return list(inspect.signature(self.function).parameters.values())[1:]


def compiler_pass(*phases: Phase, **place: Any) -> Callable[[F], F]:
    """A decorator that declares a function to be a pass; the function stays what it is.

    Parameters
    ----------
    phases : Phase
        Those in which it may run.
    place
        Further attributes of `Pass`.
    """

    def declare(function: F) -> F:
        vars(function)[_RECORD] = Pass(function, phases, **place)
        return function

    return declare


@dataclass(frozen=True)
class When:
    """Passes of a pipeline that run only if something holds.

    Attributes
    ----------
    condition : str
        The name of a field or a property of the context, or of what an earlier pass provides.
    passes : sequence of function or Pass
    """

    condition: str
    passes: Sequence[Pass | Callable[..., Any]]


@dataclass(frozen=True)
class Step:
    """A pass at its place in a pipeline.

    Attributes
    ----------
    number : int
        From 1.
    own : Pass
    condition : str or None
        As of `when`; None if it always runs.
    """

    number: int
    own: Pass
    condition: str | None

    def __str__(self) -> str:
        return f"{self.own.name} ({self.number})"


class Pipeline:
    """Passes in an order that is checked.

    Parameters
    ----------
    passes : sequence of function, Pass or When
        In order, for all targets.
    target : str
        A kind of target: passes for others are left out.
    context : type, optional
        A dataclass. Parameters of passes, beside the first one, are named as its fields or
        properties, or as what earlier passes provide.
    start : Phase
        What the pipeline is given.

    Raises
    ------
    PassOrderError
        A pass runs in another phase than its own, without what it requires, or on the wrong side of
        another one; it asks for what nobody provides, names a pass that does not exist, or is there
        twice.
    """

    def __init__(
        self,
        passes: Sequence[Entry],
        target: str,
        context: type | None = None,
        start: Phase = Phase.GRAPH,
    ):
        entries = list(_entries(passes))
        self.target, self.start = target, start
        own = [(each, condition) for each, condition in entries if target in each.targets]
        self.steps = [Step(n, each, condition) for n, (each, condition) in enumerate(own, 1)]
        self._given = set(dir(context)) | {f.name for f in fields(context)} if context else set()
        self._check_names({each.name for each, _ in entries})
        self._check_phases()
        self._check_order()
        self._check_facts()

    def run(self, mod: tvm.IRModule, context: Any) -> tvm.IRModule:
        """The module that the passes make of one.

        Each is a pass of TVM too, which instruments see and a pass context may disable; passes over
        kernels that follow each other are one.

        Parameters
        ----------
        mod : IRModule
        context : object
            Of the type that was named when the pipeline was made.
        """
        facts: dict[str, Any] = {}
        for steps in self._together():
            if _holds(steps[0], facts, context):
                mod = tvm.transform.Sequential([_as_tvm_pass(steps, facts, context)])(mod)
        return mod

    def run_on_kernel(self, kernel: tirx.PrimFunc) -> tuple[tirx.PrimFunc, dict[str, Any]]:
        """What passes over kernels make of one, and what they provide."""
        facts: dict[str, Any] = {}
        for step in self.steps:
            kernel = _applied(step.own, kernel, facts, None)
        return kernel, facts

    def _together(self) -> Iterator[list[Step]]:
        """Yield the steps; passes over kernels that follow each other at once.

        So a kernel is finished, and may be built, before the next one is scheduled.
        """
        waiting: list[Step] = []
        for step in self.steps:
            if waiting and (step.own.over != "kernel" or step.condition != waiting[0].condition):
                yield waiting
                waiting = []
            if step.own.over == "kernel":
                waiting.append(step)
            else:
                yield [step]
        if waiting:
            yield waiting

    def _check_names(self, known: set[str]) -> None:
        seen: dict[str, Step] = {}
        for step in self.steps:
            own = step.own
            for name in {**own.requires, **own.after, **own.before}:
                if name not in known:
                    raise PassOrderError(f"{step} names {name!r}, and there is no such pass")
            if own.name in seen and not own.repeatable:
                raise PassOrderError(f"{step} is not repeatable, and is {seen[own.name]} too")
            seen[own.name] = step

    def _check_phases(self) -> None:
        phase, led_by = self.start, "the beginning"
        for step in self.steps:
            own = step.own
            if phase not in own.phases:
                allowed = " or ".join(each.name for each in own.phases)
                raise PassOrderError(
                    f"{step} runs in the phase {allowed}, but {led_by} leads to {phase.name}"
                )
            if own.to is not None:
                if not phase.precedes(own.to):
                    raise PassOrderError(f"{step} leads back, from {phase.name} to {own.to.name}")
                phase, led_by = own.to, str(step)

    def _check_order(self) -> None:
        named: dict[str, list[Step]] = {}
        for step in self.steps:
            named.setdefault(step.own.name, []).append(step)
        for step in self.steps:
            for name, reason in step.own.requires.items():
                met = [s for s in named.get(name, []) if s.condition in (None, step.condition)]
                if not met or met[0].number > step.number:
                    raise PassOrderError(f"{step} requires {name} before it: {reason}")
            for name, reason in step.own.after.items():
                for other in named.get(name, []):
                    if other.number > step.number:
                        raise PassOrderError(f"{step} must come after {other}: {reason}")
            for name, reason in step.own.before.items():
                for other in named.get(name, []):
                    if other.number < step.number:
                        raise PassOrderError(f"{step} must come before {other}: {reason}")

    def _check_facts(self) -> None:
        """Raise unless what each pass asks for is in the context, or provided before."""
        providers = {step.own.provides: step for step in self.steps}
        facts = set(self._given)
        for step in self.steps:
            own = {_KERNEL_NAME} if step.own.over == "kernel" else set()
            asked = [p.name for p in step.own.takes if p.default is p.empty]
            for name in [*asked, *([step.condition] if step.condition else [])]:
                if name not in facts | own:
                    later = f"{providers[name]} is later" if name in providers else "there is none"
                    raise PassOrderError(f"{step} needs what provides {name!r}, and {later}")
            if step.own.provides is not None:
                facts.add(step.own.provides)


def declaration(function: Pass | Callable[..., Any]) -> Pass:
    """What is declared of a pass.

    Raises
    ------
    PassOrderError
        The function is no pass.
    """
    if isinstance(function, Pass):
        return function
    record: Pass | None = getattr(function, _RECORD, None)
    if record is None:
        raise PassOrderError(f"{function.__name__} is no pass; decorate it with compiler_pass")
    return record


def _entries(passes: Sequence[Entry]) -> Iterator[tuple[Pass, str | None]]:
    for entry in passes:
        if isinstance(entry, When):
            yield from ((declaration(each), entry.condition) for each in entry.passes)
        else:
            yield declaration(entry), None


def _holds(step: Step, facts: Mapping[str, Any], context: Any) -> bool:
    return step.condition is None or bool(_value(step.condition, facts, context))


def _as_tvm_pass(steps: Sequence[Step], facts: dict[str, Any], context: Any) -> Any:
    """A pass of TVM that applies one pass, or some passes to each kernel."""
    own = steps[0].own
    if own.over == "stock":
        return own.function()

    def changed(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        if own.over == "module":
            return _applied(own, mod, facts, context)
        return map_kernels(mod, kernel_changed)

    def kernel_changed(variable: Any, kernel: tirx.PrimFunc) -> tirx.PrimFunc:
        facts[_KERNEL_NAME] = variable.name_hint
        for step in steps:
            kernel = _applied(step.own, kernel, facts, context)
        return kernel

    name = "+".join(step.own.name for step in steps)
    return tvm.transform.module_pass(changed, opt_level=0, name=f"graphgrad.{name}")


def _applied(own: Pass, subject: Any, facts: dict[str, Any], context: Any) -> Any:
    """What a pass makes of a module or a kernel; what it provides becomes a fact."""
    given = {p.name: _value(p.name, facts, context, p.default) for p in own.takes}
    result = own.function(subject, **given)
    if own.provides is not None:
        result, facts[own.provides] = result
    return subject if result is None else result


def _value(name: str, facts: Mapping[str, Any], context: Any, default: Any = None) -> Any:
    return facts[name] if name in facts else getattr(context, name, default)
