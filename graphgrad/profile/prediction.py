"""`predict`: what a training step takes on a GPU that need not be there, call by call."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group

from ..errors import ArgumentError
from ..lower.cuda.architecture import compute_capability
from ..lower.cuda.compiler import arch_of, check_compiler
from ..lower.cuda.costs import Cost, call_costs, library_cost
from ..lower.cuda.library.cost import RATES
from ..lower.cuda.library.devices import ARCHITECTURES, profile_of
from ..lower.cuda.library.select import absence
from ..lower.pipeline import check_sources, generate, lower
from ..memory.budget import FunctionBudget
from ..report.table import listed, plain, table
from ..runtime.cudnn.engine import NAME
from ..train.inputs import Inputs, bind_shapes, by_name, shapes_of
from ..train.recipe import Recipe
from .memory import planned_calls
from .origins import KernelCall, OriginRecorder, nodes_of, phases_of, recorded_origins
from .text import shortened

_SHOWN = 10


@dataclass(frozen=True)
class PredictedCall:
    """A call of a kernel, or of cuDNN, in a step.

    Attributes
    ----------
    cost : Cost
    phase : str
        As of `KernelTime`; empty where it is not known.
    nodes : tuple of str
        Names of the ONNX nodes that it belongs to.
    """

    cost: Cost
    phase: str = ""
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Prediction:
    """What a step takes on a GPU, predicted; see `predict`.

    Attributes
    ----------
    device, arch, precision : str
    libraries : str or None
        Why cuDNN computes nothing; None where it does.
    calls : tuple of PredictedCall
        In the order in which they run.
    """

    device: str
    arch: str
    precision: str
    libraries: str | None
    calls: tuple[PredictedCall, ...]

    @property
    def launches(self) -> int:
        """Kernels that a step launches."""
        return sum(call.cost.launches for call in self.calls)

    @property
    def library_calls(self) -> int:
        """Calls of cuDNN."""
        return sum(call.cost.is_of_library for call in self.calls)

    @property
    def bytes(self) -> int:
        """What a step reads and writes."""
        return sum(call.cost.bytes for call in self.calls)

    @property
    def milliseconds(self) -> float:
        """The sum over the calls of the largest of their times for memory, units and launches."""
        return 1e3 * sum(call.cost.seconds for call in self.calls)

    def costliest(self, count: int = _SHOWN) -> list[list[PredictedCall]]:
        """The calls that take most of a step; those of equal costs together."""
        groups: dict[Cost, list[PredictedCall]] = defaultdict(list)
        for call in self.calls:
            groups[call.cost].append(call)
        return sorted(groups.values(), key=_seconds, reverse=True)[:count]

    def facts(self) -> dict[str, Any]:
        """Everything in plain values."""
        return {
            "device": self.device,
            "arch": self.arch,
            "precision": self.precision,
            "libraries": self.libraries,
            "launches": self.launches,
            "library_calls": self.library_calls,
            "bytes": self.bytes,
            "predicted_milliseconds": self.milliseconds,
            "calls": [
                {**asdict(call.cost), "phase": call.phase, "nodes": call.nodes}
                for call in self.calls
            ],
        }

    def __rich__(self) -> Group:
        rates = RATES[compute_capability(self.arch)]
        head = [
            f"on an {self.device} ({self.arch}) in {self.precision} a step takes at least "
            f"{self.milliseconds:.2f} ms: {len(self.calls)} calls, {self.library_calls} of them of "
            f"cuDNN, {self.launches} launches, {self.bytes / 1e9:.2f} GB",
            f"the sum over calls of the largest of bytes / {rates.bytes / 1e12:g} TB/s, operations "
            f"/ rate, and {1e6 * rates.launch:g} us a launch: predicted, not measured",
        ]
        if self.libraries is not None:
            head.append(f"kernels of graphgrad's alone: {self.libraries}")
        return Group(*head, "", _table(self.costliest()))

    def __str__(self) -> str:
        return plain(self)


def _seconds(calls: Iterable[PredictedCall]) -> float:
    return sum(call.cost.seconds for call in calls)


def _table(groups: Sequence[Sequence[PredictedCall]]) -> Any:
    rows = []
    for calls in groups:
        cost = calls[0].cost
        nodes = tuple(dict.fromkeys(node for call in calls for node in call.nodes))
        milliseconds = 1e3 * _seconds(calls)
        phases = " + ".join(dict.fromkeys(call.phase for call in calls if call.phase))
        moved = f"{cost.bytes / 1e6:.1f}"
        figures = [f"{milliseconds:.3f}", str(len(calls)), moved]
        rows.append([shortened(cost.name), *figures, phases, listed(nodes)])
    header = ["calls that take most", "ms", "calls", "MB each", "phase", "nodes"]
    return table(header, rows, right=[1, 2, 3])


def predict(recipe: Recipe, inputs: Inputs, targets: Any = None) -> Prediction:
    """Compile a training step for a GPU, which need not be there, and predict what it takes.

    Parameters
    ----------
    recipe : Recipe
        For a CUDA target.
    inputs, targets : arrays
        As of a step, of numpy. Of them the shapes count.

    Raises
    ------
    ArgumentError
        The target is no GPU whose speed is known.
    InputError
        An array does not fit.
    LoweringError
        The step does not compile, or there is no compiler for CUDA.
    """
    profile = _profile(recipe)
    check_compiler()  # before what takes long
    arrays = by_name(inputs, recipe.model.inputs)
    bind_shapes(arrays, recipe.input_types)
    forward = recipe.forward(shapes_of(arrays))
    forward.target_array(targets)
    budget = recipe.step_budget() or FunctionBudget(recipe.step_name)
    with recorded_origins(recipe.step_name) as recorder:
        lowered = lower(
            recipe.step(forward),
            recipe.target,
            budget=budget,
            libraries=recipe.libraries,
            tf32=recipe.precision.is_tf32,
        )
    check_sources(generate(lowered, recipe.target), recipe.target)
    arch = arch_of(recipe.target)
    costs = call_costs(lowered, recipe.step_name, compute_capability(arch))
    calls = tuple(_named(costs, recorder, budget))
    libraries = None if recipe.libraries else absence(recipe.target)
    device = str(profile["deviceName"])
    return Prediction(device, arch, recipe.precision.dtype, libraries, calls)


def _profile(recipe: Recipe) -> Any:
    """What is known of the GPU of a recipe's target."""
    known = ", ".join(f"{name} ({arch})" for name, arch in ARCHITECTURES.items())
    if str(recipe.target.kind.name) != "cuda":
        raise ArgumentError(
            f"what a step takes is predicted for GPUs alone, of {known}; the target is "
            f"{recipe.target.kind.name}"
        )
    profile = profile_of(arch_of(recipe.target))
    if profile is None:
        raise ArgumentError(
            f"nothing is known of the speed of GPUs of {arch_of(recipe.target)}; predictions are "
            f"made for {known}"
        )
    return profile


def _named(
    costs: Sequence[Cost], recorder: OriginRecorder, budget: FunctionBudget
) -> Iterator[PredictedCall]:
    """Calls with the nodes that they belong to, where all are recognized by their order."""
    assert recorder.module is not None
    kernels = {str(variable.name_hint) for variable in recorder.module.get_global_vars()}
    calls = recorder.calls
    if budget.plan is not None:
        calls = planned_calls(budget, calls, kernels)
    of_libraries: dict[Cost, deque[KernelCall]] = defaultdict(deque)
    for call in recorder.packed_calls:
        # A budget may repeat calls of a library, and tells nothing of that.
        if call.kernel == NAME and budget.budget is None:
            of_libraries[library_cost(call.binding.value)].append(call)
    is_known = [cost.name for cost in costs if cost.name in kernels] == [c.kernel for c in calls]
    of_kernels = deque(calls if is_known else ())
    for cost in costs:
        waiting = of_libraries[cost] if cost.is_of_library else of_kernels
        is_origin_known = waiting and (cost.is_of_library or cost.name in kernels)
        origins = waiting.popleft().origins if is_origin_known else ()
        yield PredictedCall(cost, phases_of(origins), nodes_of(origins))
