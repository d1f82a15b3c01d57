"""The memory timeline of a lowered function: how many bytes are in use at each of its kernels.

Counted are the tensors that the program still needs, memory that several share once
(`memory/alias.py`), and what a kernel holds for itself while it runs. The plan of memory lets
tensors use the same memory one after another; it needs at least this much.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from ..memory.alias import Aliases, Module
from ..memory.allocation import scratch_bytes
from ..memory.budget import FunctionBudget
from ..memory.regions import OUTSIDE
from .origins import KernelCall


@dataclass(frozen=True)
class LiveTensor:
    """Memory that is in use at the peak.

    Attributes
    ----------
    name : str
        Of the argument, or of the first value that it holds.
    bytes : int
    kind : "argument", "constant", "result" or "value"
        Arguments are in use all the time. A result is returned in memory of its own.
    call : int or None
        Which kernel call computes it first; None if none does.
    """

    name: str
    bytes: int
    kind: str
    call: int | None


@dataclass(frozen=True)
class MemoryTimeline:
    """How many bytes are in use at each kernel call.

    Attributes
    ----------
    tensors : tuple of int
        Bytes of all tensors that are in use, for each call.
    scratch : tuple of int
        Bytes that the kernel of each call holds for itself; those of its threads count once.
    arguments : int
        Bytes of the function's arguments, which are part of `tensors`.
    peak : int
        The call at which most is in use.
    at_peak : tuple of LiveTensor
        The tensors in use there, the largest first.
    """

    tensors: tuple[int, ...]
    scratch: tuple[int, ...]
    arguments: int
    peak: int
    at_peak: tuple[LiveTensor, ...]

    @property
    def totals(self) -> list[int]:
        """Bytes in use at each call, by tensors and by its kernel."""
        return [a + b for a, b in zip(self.tensors, self.scratch, strict=True)]

    @property
    def peak_bytes(self) -> int:
        """Bytes in use at the peak."""
        return self.tensors[self.peak] + self.scratch[self.peak] if self.tensors else self.arguments


def memory_timeline(
    mod: tvm.IRModule, function: str, calls: Sequence[KernelCall], *, counts_scratch: bool = True
) -> MemoryTimeline:
    """The memory timeline of a function.

    Parameters
    ----------
    mod : IRModule
        Of scheduled kernels, before memory is planned.
    function : str
        A function of concrete shapes, without branches.
    calls : sequence of KernelCall
        Those of the function.
    counts_scratch : bool
        Whether kernels are those of a processor, which take what they hold for themselves from the
        same memory.
    """
    variable = mod.get_global_var(function)
    aliases = Module(mod.functions, views=True).function(variable)
    spans = list(_spans(aliases, mod[variable]))
    positions = [aliases.bound[call.binding.var] for call in calls]
    tensors = _sums(spans, positions)
    scratch_of_kernel: dict[str, int] = {}
    scratch = [
        _scratch(mod, call.kernel, scratch_of_kernel) if counts_scratch else 0 for call in calls
    ]
    totals = [a + b for a, b in zip(tensors, scratch, strict=True)]
    peak = totals.index(max(totals)) if totals else 0
    computed = {position: index for index, position in enumerate(positions)}
    in_use = [span for span in spans if positions and span.first <= positions[peak] <= span.last]
    return MemoryTimeline(
        tuple(tensors),
        tuple(scratch),
        sum(span.bytes for span in spans if span.kind == "argument"),
        peak,
        tuple(
            LiveTensor(span.name, span.bytes, span.kind, computed.get(span.first))
            for span in sorted(in_use, key=lambda span: -span.bytes)
        ),
    )


def planned_calls(
    budget: FunctionBudget, calls: Sequence[KernelCall], kernels: Collection[str]
) -> list[KernelCall]:
    """The kernel calls of a function whose memory has a budget, in the order of the plan.

    Parameters
    ----------
    budget : FunctionBudget
    calls : sequence of KernelCall
        Those of the function before it was planned.
    kernels : collection of str
        Names of the program's own kernels: others check arguments.
    """
    runs = [run for run in budget.runs if run.kernel in kernels]
    positions = sorted({run.position for run in runs})
    call_of = dict(zip(positions, calls, strict=True))
    return [call_of[run.position] for run in runs]


def planned_timeline(
    budget: FunctionBudget, mod: tvm.IRModule, kernels: Collection[str], *, counts_scratch: bool
) -> MemoryTimeline:
    """The memory timeline of a function whose memory has a budget; see `memory_timeline`."""
    assert budget.plan is not None
    fixed = budget.plan.arguments + budget.plan.results
    runs = [(index, run) for index, run in enumerate(budget.runs) if run.kernel in kernels]
    scratch_of_kernel: dict[str, int] = {}
    tensors = [fixed + run.bytes for _, run in runs]
    scratch = [
        _scratch(mod, run.kernel, scratch_of_kernel) if counts_scratch else 0 for _, run in runs
    ]
    totals = [a + b for a, b in zip(tensors, scratch, strict=True)]
    computed = {index: call for call, (index, _) in enumerate(runs)}
    at_peak = [
        *(LiveTensor(p.name, _bytes(p.ty), "argument", None) for p in mod[budget.function].params),
        *(LiveTensor(t.name, t.bytes, "value", computed.get(t.run)) for t in budget.at_peak),
    ]
    return MemoryTimeline(
        tuple(tensors),
        tuple(scratch),
        budget.plan.arguments,
        totals.index(max(totals)) if totals else 0,
        tuple(sorted(at_peak, key=lambda tensor: -tensor.bytes)),
    )


@dataclass
class _Span:
    """The lifetime of some memory: its first and last use, as positions in `Aliases`."""

    name: str
    bytes: int
    kind: str
    first: int
    last: float


def _spans(aliases: Aliases, function: relax.Function) -> Iterator[_Span]:
    """Yield the lifetime of each region of memory that values of the function are in."""
    span_of_region: dict[int, _Span] = {}
    for var, tree in aliases.values.items():
        first = aliases.bound.get(var, 0)
        for leaf, ty in _leaves(tree, var.ty):
            region = aliases.region(leaf)
            span = span_of_region.setdefault(region, _Span(var.name, 0, "value", first, first))
            span.bytes = max(span.bytes, _bytes(ty))
            span.last = max(span.last, first)
    # In this order: what is returned lives to the end, and an argument stays one if returned.
    for use in aliases.uses:
        span_used = span_of_region.get(aliases.region(use.leaf))
        if span_used is not None:
            span_used.last = max(span_used.last, use.position)
    for region in aliases.returned():
        if region in span_of_region:
            span_of_region[region].kind, span_of_region[region].last = "result", math.inf
    for constant in aliases.constants:
        size = _bytes(constant.value.ty)
        region = aliases.region(constant.leaf)
        span_of_region[region] = _Span("constant", size, "constant", 0, math.inf)
    for param, tree in zip(function.params, aliases.params, strict=True):
        for leaf, _ in _leaves(tree, param.ty):
            span = span_of_region[aliases.region(leaf)]
            span.name, span.kind, span.first, span.last = param.name, "argument", 0, math.inf
    # Memory that something outside of the function may hold is none that it takes.
    span_of_region.pop(OUTSIDE, None)
    yield from span_of_region.values()


def _leaves(tree: Any, ty: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the leaves of a value that have memory, each with its type."""
    if isinstance(tree, list):
        for branch, field in zip(tree, ty.fields, strict=True):
            yield from _leaves(branch, field)
    elif tree is not None:
        yield tree, ty


def _bytes(ty: Any) -> int:
    """The size of a tensor; 0 for a value that is no tensor of known shape."""
    if not isinstance(ty, relax.TensorType) or ty.shape is None:
        return 0
    elements = math.prod(int(extent) for extent in ty.shape.values)
    return elements * tvm.DataType(str(ty.dtype)).itemsize


def _sums(spans: Iterable[_Span], positions: Sequence[int]) -> list[int]:
    """How many bytes are in use at each position."""
    changes: list[tuple[float, int]] = []
    for span in spans:
        changes += [(span.first, span.bytes), (span.last + 1, -span.bytes)]
    changes.sort(reverse=True)  # the earliest last, where `pop` takes it
    sums, total = [], 0
    for position in positions:
        while changes and changes[-1][0] <= position:
            total += changes.pop()[1]
        sums.append(total)
    return sums


def _scratch(mod: tvm.IRModule, kernel: str, scratch_of_kernel: dict[str, int]) -> int:
    """The bytes that a kernel holds for itself, counted once for each kernel."""
    if kernel not in scratch_of_kernel:
        scratch_of_kernel[kernel] = sum(scratch_bytes(mod[kernel]))
    return scratch_of_kernel[kernel]
