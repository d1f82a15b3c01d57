"""A budget for the memory of a step: what counts, what is predicted, and the error if it is short.

What counts is everything that a step holds while it runs:

- its arguments: parameters, statistics, the optimizer's buffers, inputs, targets;
- its tensors, which lie in one block of memory (`packing`);
- results in memory of their own;
- on processors, what kernels hold for themselves: threads keep that memory for the next kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import relax

from ..errors import ArgumentError
from ..ir.kernel_calls import bytes_of
from ..ir.visits import nodes_in
from .allocation import pooled_bytes
from .line import Line, PlannedRun, PlannedTensor
from .rematerialize import Program, Schedule

_UNKNOWN_SIZES = "the sizes of some tensors depend on values"

_LEAST_PACKED = 4
"""Of the schedules with the fewest bytes in use, how many are packed to tell the least budget."""

_WORTH_REPEATING = 0.96
"""Of its peak, what a step without a budget may take at most to have anything repeated."""


@dataclass(frozen=True)
class MemoryPlan:
    """What a step holds in memory, in bytes, as predicted before it runs.

    Attributes
    ----------
    arguments : int
        What it is given and owns: parameters, statistics, buffers of the optimizer, a batch.
    results : int
        Results in memory of their own; those that overwrite arguments take none.
    tensors : int
        The block of memory for all else that it computes.
    scratch : int
        What kernels hold for themselves.
    unconstrained : int
        The peak if nothing was computed twice.
    least : int
        The least budget that can be met.
    repeated : int
        How many calls of kernels are repeated.
    """

    arguments: int
    results: int
    tensors: int
    scratch: int
    unconstrained: int
    least: int
    repeated: int

    @property
    def peak(self) -> int:
        """The most bytes in use at a time."""
        return self.arguments + self.results + self.tensors + self.scratch

    def __str__(self) -> str:
        share = self.peak / max(self.unconstrained, 1)
        return (
            f"{megabytes(self.peak)} at the peak, {share:.2f} of {megabytes(self.unconstrained)}: "
            f"arguments {megabytes(self.arguments)}, results {megabytes(self.results)}, tensors "
            f"{megabytes(self.tensors)}, kernels {megabytes(self.scratch)}; {self.repeated} calls "
            "of kernels are repeated"
        )


@dataclass(frozen=True)
class MemoryBudget:
    """The most memory that a step may hold; ``memory=0.6`` is short for one of these.

    Attributes
    ----------
    limit : int or float
        An int is a number of bytes. A float, above 0 and at most 1, is a share of what the step
        would hold if nothing was computed twice.
    repeats : int
        By default a kernel may run twice, so that a step takes at most as much longer as a forward
        pass takes. 2 lets what has been repeated be dropped and repeated in turn, and so on: less
        memory is enough then, and choosing takes longer. 0 repeats nothing.

    Raises
    ------
    ArgumentError
        A value is none of these.

    Examples
    --------
    >>> step = gg.train_step(model, memory=gg.MemoryBudget(0.4, repeats=2))
    """

    limit: int | float
    repeats: int = 1

    def __post_init__(self) -> None:
        repeats = self.repeats
        if isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < 0:
            raise ArgumentError(f"memory: repeats={repeats!r} is no whole number of at least 0")
        limit = self.limit
        is_share = isinstance(limit, float) and 0 < limit <= 1
        is_bytes = isinstance(limit, int) and not isinstance(limit, bool) and limit > 0
        if not is_share and not is_bytes:
            raise ArgumentError(
                f"memory={limit!r}: give a whole number of bytes, or a share of the unconstrained "
                "peak as a float, above 0 and at most 1.0"
            )


def budget_of(choice: Any) -> MemoryBudget | None:
    """The budget that an argument ``memory=`` says; None if it is None.

    Raises
    ------
    ArgumentError
        It is none.
    """
    if choice is None or isinstance(choice, MemoryBudget):
        return choice
    return MemoryBudget(choice)


@dataclass
class FunctionBudget:
    """The budget of a function in a module that is to be lowered.

    Attributes
    ----------
    function : str
    budget : MemoryBudget or None
        None: nothing is repeated. A function that cannot have a plan of ours is left to TVM's then.
    beside : int
        Bytes that count too, and that the function is not given.
    plan : MemoryPlan or None
        What lowering has planned.
    runs : list of PlannedRun
        What the function runs, in order, by that plan.
    at_peak : list of PlannedTensor
        What of its tensors is in use where these take most.
    """

    function: str
    budget: MemoryBudget | None = None
    beside: int = 0
    plan: MemoryPlan | None = field(default=None, init=False)
    runs: list[PlannedRun] = field(default_factory=list, init=False)
    at_peak: list[PlannedTensor] = field(default_factory=list, init=False)

    @property
    def settings(self) -> list[Any]:
        """All that a plan depends on beside the module, as plain values."""
        limits = [self.budget.limit, self.budget.repeats] if self.budget is not None else None
        return [self.function, limits, self.beside]

    def apply(self, mod: tvm.IRModule, threads: int) -> tvm.IRModule:
        """The module with the memory of the function planned; `plan` says how.

        Parameters
        ----------
        mod : IRModule
            Of calls of kernels with their outputs, each allocated.
        threads : int
            Of the processor, where kernels take what they hold for themselves from the same memory;
            else 0.

        Raises
        ------
        ArgumentError
            The budget is less than the least that is possible; it says how much that is. Or the
            function has branches, or tensors of unknown size.
        """
        variable = mod.get_global_var(self.function)
        function = mod[variable]
        hindrance = _hindrance(function)
        line = Line(mod, variable) if hindrance is None else None
        sizes = [bytes_of(param.ty) for param in function.params]
        results = line.bytes_outside if line is not None else None
        if line is None or results is None or None in sizes:
            if self.budget is None:
                return mod
            what = hindrance or _UNKNOWN_SIZES
            raise ArgumentError(
                f"memory: {what}, so that no peak can be predicted; only memory=None is served for "
                "such a model"
            )
        arguments = self.beside + sum(size for size in sizes if size is not None)
        is_limited = self.budget is not None
        kernels = [mod[name] for name in line.kernels]
        scratch = pooled_bytes(kernels, threads) if threads and is_limited else 0
        fixed = arguments + results + scratch
        schedule, least = self._schedule(line.program, fixed, is_host=threads > 0)
        self.plan = MemoryPlan(
            arguments=arguments,
            results=results,
            tensors=schedule.block_bytes,
            scratch=scratch,
            unconstrained=fixed + line.program.whole.block_bytes,
            least=least,
            repeated=schedule.repeated,
        )
        self.runs = line.runs(schedule)
        self.at_peak = line.tensors(schedule, int(schedule.in_use.argmax()))
        planned = mod.clone()
        planned[variable] = line.function(schedule)
        return planned

    def _schedule(self, program: Program, fixed: int, is_host: bool) -> tuple[Schedule, int]:
        """The schedule of a program beside what else takes memory, and the least budget."""
        unconstrained = fixed + program.whole.block_bytes
        if self.budget is None:
            frugal = program.frugal() if is_host else program.whole
            saves = fixed + frugal.block_bytes <= _WORTH_REPEATING * unconstrained
            return (frugal if saves else program.whole), unconstrained
        schedules = program.schedules(self.budget.repeats)
        smallest = sorted(schedules, key=lambda schedule: schedule.least_bytes)[:_LEAST_PACKED]
        least = fixed + min(schedule.block_bytes for schedule in smallest)
        limit = self.budget.limit
        room = (limit if isinstance(limit, int) else int(limit * unconstrained)) - fixed
        schedule = _quickest(schedules, room)
        if schedule is None:
            raise ArgumentError(
                f"memory: the budget of {megabytes(fixed + room)} cannot be met. The least "
                f"possible is {least} bytes, {least / unconstrained:.3f} of what the step needs if "
                f"nothing is computed twice ({megabytes(unconstrained)}); {megabytes(fixed)} are "
                "arguments, results, and what kernels hold. Give more, or a smaller batch"
            )
        return schedule, least


def _hindrance(function: relax.Function) -> str | None:
    """What keeps a function from a plan of ours; None if nothing does."""
    if nodes_in(function.body, relax.If):
        return "the step has branches (If), so that what it holds depends on values"
    if nodes_in(function.body, relax.MatchCast):
        return _UNKNOWN_SIZES
    return None


def _quickest(schedules: list[Schedule], room: int) -> Schedule | None:
    """The first of some schedules whose block fits; None if there is none."""
    for schedule in schedules:
        if schedule.least_bytes <= room and schedule.block_bytes <= room:
            return schedule
    return None


def megabytes(count: int) -> str:
    """A number of bytes for people."""
    return f"{count / 1e6:.1f} MB"
