"""Compiler passes that declare their place, and pipelines that check the declarations.

A pass is a plain function of a module, or of one kernel, under the decorator `compiler_pass`. The
decorator declares in which phase of lowering it runs, to which phase it leads, and which passes it
must follow or precede, each with the reason. A `Pipeline` is a list of passes, checked when it is
made. A *fact* is what one pass finds out and hands to later ones.
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
"""The parameter by which a pass over kernels is given the name of the current kernel."""


class Phase(Enum):
    """The phases of lowering, in order: what a program consists of in each."""

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
        It is given a module or a kernel, and by name whatever its further parameters ask for. It
        returns the new module or kernel; None if it changes nothing and only raises errors. Of a
        stock pass, the function that makes TVM's pass.
    phases : tuple of Phase
        The phases in which it may run.
    to : Phase or None
        The phase to which it leads; None if the phase stays as it is.
    over : "module", "kernel" or "stock"
        What the function is given. Of consecutive passes over kernels, all are applied to one
        kernel before the next kernel. A stock pass is TVM's.
    targets : tuple of str
        The kinds of targets that it is for.
    requires : mapping of str to str
        The names of passes that must have run before, and why.
    after, before : mapping of str to str
        The names of passes that it must follow or precede if the pipeline has them, and why.
    because : str
        Why it has its phase, where the first line of its docstring does not say that.
    provides : str or None
        The name of a fact for later passes: the function returns it as second result, and passes
        with a parameter of that name are given it.
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
        """The name of its function; of a stock pass, TVM's name."""
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
        """The parameters that it has beside the module or the kernel."""
        if self.over == "stock":
            return []
        return list(inspect.signature(self.function).parameters.values())[1:]


def compiler_pass(*phases: Phase, **declaration: Any) -> Callable[[F], F]:
    """A decorator that declares a function to be a pass; the function stays what it is.

    Parameters
    ----------
    phases : Phase
        The phases in which it may run.
    **declaration
        Further attributes of `Pass`.
    """

    def declare(function: F) -> F:
        vars(function)[_RECORD] = Pass(function, phases, **declaration)
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
    declared : Pass
    condition : str or None
        As of `When`; None if it always runs.
    """

    number: int
    declared: Pass
    condition: str | None

    def __str__(self) -> str:
        return f"{self.declared.name} ({self.number})"


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
        selected = [
            (declared, condition) for declared, condition in entries if target in declared.targets
        ]
        self.steps = [
            Step(number, declared, condition)
            for number, (declared, condition) in enumerate(selected, 1)
        ]
        self._given = (
            set(dir(context)) | {item.name for item in fields(context)} if context else set()
        )
        self._check_names({declared.name for declared, _ in entries})
        self._check_phases()
        self._check_order()
        self._check_facts()

    def run(self, mod: tvm.IRModule, context: Any, until: str | None = None) -> tvm.IRModule:
        """The module after all passes.

        Each pass is run as a pass of TVM, which instruments see and a pass context may disable;
        consecutive passes over kernels become one.

        Parameters
        ----------
        mod : IRModule
        context : object
            Of the type that was named when the pipeline was made.
        until : str, optional
            The name of a pass that is not run, and none behind it.
        """
        facts: dict[str, Any] = {}
        for steps in self._groups():
            if until in {step.declared.name for step in steps}:
                break
            if _holds(steps[0], facts, context):
                mod = tvm.transform.Sequential([_as_tvm_pass(steps, facts, context)])(mod)
        return mod

    def run_on_kernel(
        self, kernel: tirx.PrimFunc, context: Any = None
    ) -> tuple[tirx.PrimFunc, dict[str, Any]]:
        """One kernel after all passes, which must be over kernels, and the facts they provide."""
        facts: dict[str, Any] = {}
        for step in self.steps:
            kernel = _applied(step.declared, kernel, facts, context)
        return kernel, facts

    def _groups(self) -> Iterator[list[Step]]:
        """Yield groups of steps: consecutive passes over kernels, and each other pass alone.

        So a kernel goes through all passes of a group before the next kernel goes through any.
        """
        group: list[Step] = []
        for step in self.steps:
            if group and (step.declared.over != "kernel" or step.condition != group[0].condition):
                yield group
                group = []
            if step.declared.over == "kernel":
                group.append(step)
            else:
                yield [step]
        if group:
            yield group

    def _check_names(self, names: set[str]) -> None:
        """Raise if a pass refers to a name that is none of `names`, or is there twice."""
        seen: dict[str, Step] = {}
        for step in self.steps:
            declared = step.declared
            for name in {**declared.requires, **declared.after, **declared.before}:
                if name not in names:
                    raise PassOrderError(f"{step} names {name!r}, and there is no such pass")
            if declared.name in seen and not declared.repeatable:
                raise PassOrderError(f"{step} is not repeatable, and is {seen[declared.name]} too")
            seen[declared.name] = step

    def _check_phases(self) -> None:
        """Raise if a pass does not run in a phase that it declares, or leads to an earlier one."""
        phase, led_by = self.start, "the beginning"
        for step in self.steps:
            declared = step.declared
            if phase not in declared.phases:
                allowed = " or ".join(allowed_phase.name for allowed_phase in declared.phases)
                raise PassOrderError(
                    f"{step} runs in the phase {allowed}, but {led_by} leads to {phase.name}"
                )
            if declared.to is not None:
                if not phase.precedes(declared.to):
                    raise PassOrderError(
                        f"{step} leads back, from {phase.name} to {declared.to.name}"
                    )
                phase, led_by = declared.to, str(step)

    def _check_order(self) -> None:
        """Raise if a pass is on the wrong side of another one, or without one that it requires."""
        steps_by_name: dict[str, list[Step]] = {}
        for step in self.steps:
            steps_by_name.setdefault(step.declared.name, []).append(step)
        for step in self.steps:
            for name, reason in step.declared.requires.items():
                # A required pass that runs under another condition may not have run.
                candidates = [
                    candidate
                    for candidate in steps_by_name.get(name, [])
                    if candidate.condition in (None, step.condition)
                ]
                if not candidates or candidates[0].number > step.number:
                    raise PassOrderError(f"{step} requires {name} before it: {reason}")
            for name, reason in step.declared.after.items():
                for other in steps_by_name.get(name, []):
                    if other.number > step.number:
                        raise PassOrderError(f"{step} must come after {other}: {reason}")
            for name, reason in step.declared.before.items():
                for other in steps_by_name.get(name, []):
                    if other.number < step.number:
                        raise PassOrderError(f"{step} must come before {other}: {reason}")

    def _check_facts(self) -> None:
        """Raise unless each fact that a pass asks for is in the context, or provided before."""
        providers = {step.declared.provides: step for step in self.steps}
        facts = set(self._given)
        for step in self.steps:
            kernel_facts = {_KERNEL_NAME} if step.declared.over == "kernel" else set()
            required = [
                parameter.name
                for parameter in step.declared.takes
                if parameter.default is parameter.empty
            ]
            for name in [*required, *([step.condition] if step.condition else [])]:
                if name not in facts | kernel_facts:
                    later = f"{providers[name]} is later" if name in providers else "there is none"
                    raise PassOrderError(f"{step} needs what provides {name!r}, and {later}")
            if step.declared.provides is not None:
                facts.add(step.declared.provides)


def declaration(function: Pass | Callable[..., Any]) -> Pass:
    """The declaration of a pass.

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
    """Yield each pass with its condition, which is None if it always runs."""
    for entry in passes:
        if isinstance(entry, When):
            yield from ((declaration(each), entry.condition) for each in entry.passes)
        else:
            yield declaration(entry), None


def _holds(step: Step, facts: Mapping[str, Any], context: Any) -> bool:
    """Whether the condition of a step holds."""
    return step.condition is None or bool(_value(step.condition, facts, context))


def _as_tvm_pass(steps: Sequence[Step], facts: dict[str, Any], context: Any) -> Any:
    """A pass of TVM that applies one pass, or several passes to each kernel."""
    first_pass = steps[0].declared
    if first_pass.over == "stock":
        return first_pass.function()

    def changed(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        if first_pass.over == "module":
            return _applied(first_pass, mod, facts, context)
        return map_kernels(mod, kernel_changed)

    def kernel_changed(variable: Any, kernel: tirx.PrimFunc) -> tirx.PrimFunc:
        facts[_KERNEL_NAME] = variable.name_hint
        for step in steps:
            kernel = _applied(step.declared, kernel, facts, context)
        return kernel

    name = "+".join(step.declared.name for step in steps)
    # At level 0 no optimization level of a pass context leaves the pass out.
    return tvm.transform.module_pass(changed, opt_level=0, name=f"graphgrad.{name}")


def _applied(declared: Pass, subject: Any, facts: dict[str, Any], context: Any) -> Any:
    """A module or a kernel after a pass; the fact that the pass provides is added to `facts`."""
    arguments = {
        parameter.name: _value(parameter.name, facts, context, parameter.default)
        for parameter in declared.takes
    }
    result = declared.function(subject, **arguments)
    if declared.provides is not None:
        result, facts[declared.provides] = result
    return subject if result is None else result


def _value(name: str, facts: Mapping[str, Any], context: Any, default: Any = None) -> Any:
    """A fact by its name: of an earlier pass, else of the context, else the default."""
    return facts[name] if name in facts else getattr(context, name, default)
