"""Plans: which of cuDNN's engines computes a problem, chosen with or without a device."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TypeAlias

from . import backend
from .backend import Attribute, CudnnError, Descriptor, Kind, Note, Type
from .graphs import operation_graph
from .problem import Problem

_NEVER = frozenset({Note.NONDETERMINISTIC, Note.REDUCED_PRECISION_REDUCTION})
"""What no plan may do: two runs differ, or sums are rounded more than the numeric policy allows."""

_TRANSFORMED = frozenset(
    {
        Note.FFT,
        Note.WINOGRAD,
        Note.WINOGRAD_TILE_4X4,
        Note.WINOGRAD_TILE_6X6,
        Note.WINOGRAD_TILE_13X13,
    }
)
"""Nor this, beside that: rounding errors of another size than those of the sums."""

_EXACT = _TRANSFORMED | {Note.TENSOR_CORE, Note.DOWN_CONVERT_INPUTS}
"""What a plan for float32 may not do, where TF32 is not asked for."""

NO_PLAN = "cuDNN has no plan"
"""In the error where cuDNN works, but serves a problem by no engine that may be taken."""

WORKSPACE_LIMIT = 512 << 20
"""Bytes of scratch memory that a plan may ask for."""


Configuration: TypeAlias = tuple[int, tuple[tuple[str, int], ...]]
"""An engine of cuDNN by its number, and its settings by name, sorted."""


@dataclass(frozen=True)
class Plan:
    """How a problem is computed.

    Attributes
    ----------
    problem : Problem
    workspace : int
        Bytes of scratch memory.
    engine : int
        cuDNN's number of the engine.
    notes : tuple of str
        What it does to numbers.
    cudnn : int
        The version that has planned it, which alone can read `serialized`.
    architecture : int
        The compute capability of the device, such as 90.
    serialized : str
        cuDNN's own text.
    constants : tuple of (int, float)
        Numbers that it is given where it is executed, by their tensors' numbers.
    scratches : tuple of (int, int)
        Where in the workspace further tensors begin, in bytes, by their numbers.
    scratch_bytes : int
        What these take; cuDNN's own workspace is behind it.
    """

    problem: Problem
    workspace: int
    engine: int
    notes: tuple[str, ...]
    cudnn: int
    architecture: int
    serialized: str
    constants: tuple[tuple[int, float], ...] = ()
    scratches: tuple[tuple[int, int], ...] = ()
    scratch_bytes: int = 0

    @property
    def configuration(self) -> Configuration:
        """The engine and its settings, by which a plan is known among all of its problem."""
        engine = json.loads(self.serialized)["engine"]
        return engine["engineId"], tuple(sorted(engine["knobChoices"].items()))

    def to_json(self) -> str:
        """A text that `from_json` reads."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> Plan:
        """The plan that `to_json` has written."""
        described = json.loads(text)
        problem = Problem.from_json(described.pop("problem"))
        described["notes"] = tuple(described["notes"])
        for name in ("constants", "scratches"):
            described[name] = tuple(map(tuple, described[name]))
        return Plan(problem=problem, **described)


def forbidden_notes(problem: Problem) -> frozenset[Note]:
    """What an engine may not do to the numbers of a problem."""
    halves = problem.inputs[0].dtype in ("float16", "bfloat16")
    return _NEVER | (_TRANSFORMED if halves or problem.tf32 else _EXACT)


def make_plan(
    problem: Problem,
    target: Descriptor,
    architecture: int,
    limit: int = WORKSPACE_LIMIT,
    order: Sequence[Configuration] = (),
) -> Plan:
    """The best plan that cuDNN proposes and that may be taken.

    Parameters
    ----------
    problem : Problem
    target : Descriptor
        The device's properties; see `graphs.device`.
    architecture : int
        Its compute capability, such as 90.
    limit : int
        Bytes of scratch memory that it may ask for.
    order : sequence of Configuration
        Those that were timed, the fastest first. Without one that is proposed, cuDNN's first plan.

    Raises
    ------
    CudnnError
        There is none; says how many were proposed, and why they were passed over.
    """
    passed_over: dict[str, int] = {}
    plans = plans_of(problem, target, architecture, limit, passed_over)
    best = next(plans, None)
    if best is None:
        reasons = ", ".join(f"{why} ({count}×)" for why, count in sorted(passed_over.items()))
        raise CudnnError(f"{NO_PLAN} for {problem.op}: {reasons or 'nothing is proposed'}")
    rank = _rank(best, order)
    while order and rank and (plan := next(plans, None)) is not None:
        if (new := _rank(plan, order)) < rank:
            best, rank = plan, new
    return best


def _rank(plan: Plan, order: Sequence[Configuration]) -> int:
    """The place of a plan among configurations; behind all if it is none of them."""
    return order.index(plan.configuration) if plan.configuration in order else len(order)


def plans_of(
    problem: Problem,
    target: Descriptor,
    architecture: int,
    limit: int = WORKSPACE_LIMIT,
    passed_over: dict[str, int] | None = None,
) -> Iterator[Plan]:
    """The plans that may be taken, in cuDNN's order of preference; as of `make_plan`.

    Counts those that may not, by the reason, in `passed_over`.
    """
    passed_over = {} if passed_over is None else passed_over
    graph = operation_graph(problem)
    for candidate in _candidates(problem, graph.descriptor, target, passed_over):
        workspace = graph.scratch_bytes + candidate.workspace
        if workspace > limit:
            _count(passed_over, f"more than {limit} bytes of workspace")
            continue
        serialized = bytes(candidate.descriptor.values(Attribute.PLAN_JSON, Type.CHAR))
        yield Plan(
            problem,
            workspace,
            candidate.engine,
            tuple(sorted(note.name for note in candidate.notes)),
            backend.version(),
            architecture,
            serialized.rstrip(b"\0").decode(),
            tuple(graph.constants.items()),
            tuple(graph.scratches.items()),
            graph.scratch_bytes,
        )


def load(plan: Plan, target: Descriptor) -> Descriptor:
    """The execution plan of a plan, on a device.

    Raises
    ------
    CudnnError
        Another version has made it, or cuDNN refuses it.
    """
    if plan.cudnn != backend.version():
        raise CudnnError(f"a plan of cuDNN {plan.cudnn}, but this is {backend.version()}")
    loaded = Descriptor(Kind.EXECUTION_PLAN)
    loaded.set(Attribute.PLAN_DEVICE, Type.DESCRIPTOR, [target])
    text = plan.serialized.encode() + b"\0"
    return loaded.set(Attribute.PLAN_JSON, Type.CHAR, text).finish()


@dataclass(frozen=True)
class _Candidate:
    descriptor: Descriptor
    workspace: int
    engine: int
    notes: frozenset[Note]


def _candidates(
    problem: Problem, graph: Descriptor, target: Descriptor, passed_over: dict[str, int]
) -> Iterator[_Candidate]:
    """Plans in cuDNN's order of preference; counts those that are passed over, by the reason."""
    forbidden = forbidden_notes(problem)
    for mode in (backend.HEURISTIC_A, backend.HEURISTIC_FALLBACK):
        for config in _configs(graph, mode, target, passed_over):
            engine = Descriptor(Kind.ENGINE)
            config.fill(Attribute.CONFIG_ENGINE, [engine])
            numbers = engine.values(Attribute.ENGINE_NUMERICAL_NOTES, Type.NUMERICAL_NOTE)
            if unknown := set(numbers) - set(Note):  # of a later version: whatever it means
                _count(passed_over, f"its notes {sorted(unknown)} are not known")
                continue
            notes = frozenset(map(Note, numbers))
            if notes & forbidden:
                _count(passed_over, "/".join(sorted(note.name for note in notes & forbidden)))
                continue
            descriptor = Descriptor(Kind.EXECUTION_PLAN)
            descriptor.set(Attribute.PLAN_CONFIG, Type.DESCRIPTOR, [config])
            descriptor.set(Attribute.PLAN_DEVICE, Type.DESCRIPTOR, [target])
            try:
                descriptor.finish()
            except CudnnError:
                _count(passed_over, "the engine does not serve it")
                continue
            (workspace,) = descriptor.values(Attribute.PLAN_WORKSPACE, Type.INT64)
            (number,) = engine.values(Attribute.ENGINE_INDEX, Type.INT64)
            yield _Candidate(descriptor, workspace, number, notes)


def _configs(
    graph: Descriptor, mode: int, target: Descriptor, passed_over: dict[str, int]
) -> list[Descriptor]:
    heuristic = Descriptor(Kind.ENGINE_HEURISTIC)
    heuristic.set(Attribute.HEURISTIC_GRAPH, Type.DESCRIPTOR, [graph])
    heuristic.set(Attribute.HEURISTIC_MODE, Type.HEURISTIC_MODE, [mode])
    heuristic.set(Attribute.HEURISTIC_DEVICE, Type.DESCRIPTOR, [target])
    try:
        heuristic.finish()
        proposed = heuristic.count(Attribute.HEURISTIC_RESULTS, Type.DESCRIPTOR)
        configs = [Descriptor(Kind.ENGINE_CONFIG) for _ in range(proposed)]
        return configs[: heuristic.fill(Attribute.HEURISTIC_RESULTS, configs)]
    except CudnnError as error:
        _count(passed_over, str(error))
        return []


def _count(passed_over: dict[str, int], why: str) -> None:
    passed_over[why] = passed_over.get(why, 0) + 1
