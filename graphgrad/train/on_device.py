"""A model on its device: what `TrainStep` and `ValueAndGrad` share.

Inputs are checked and copied to the device; functions are lowered, compiled and loaded for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, NoReturn, Protocol

import numpy as np
import tvm
from tvm import relax

from ..errors import ArgumentError, OutOfMemoryError
from ..lower.codegen.cache import compiled_once
from ..lower.codegen.early import EarlyBuilds
from ..lower.device import device_of, reported
from ..lower.pipeline import generate, lower
from ..memory.allocation import allocated_bytes
from ..memory.budget import FunctionBudget, MemoryPlan
from ..memory.heap import give_back
from ..memory.workspace import take_to_record, take_workspace
from ..runtime.arena import RELEASE, Arena, Workspace
from ..runtime.results import NewResults, Returned, by_position
from ..runtime.synchronized import Synchronized, one_at_a_time
from ..runtime.threads import prepare as prepare_threads
from .forward import Forward
from .inputs import Array, Inputs, bind_shapes, by_name, placed, read_arrays, shapes_of
from .recent import Limit, Recent
from .recipe import Objective
from .results import drop_arguments
from .staging import Staging

_MOST_SHAPES = 64
"""Combinations of input shapes that are kept compiled, unless somebody says otherwise."""

Shapes = tuple[tuple[int, ...], ...]
Tensors = dict[str, tvm.runtime.Tensor]
BuildInfo = tuple[int, Any, Any, Any]
"""Bytes needed, and as plain values the `Workspace`, the `MemoryPlan` and what is `Returned`, None
for one that there is not."""


@dataclass(frozen=True)
class CallInputs:
    """The inputs of one call, on the device.

    Attributes
    ----------
    tensors, lent : dict of str to tensor
        All inputs, and those of them that are used in the caller's memory, without a copy.
    shapes : Shapes
    """

    tensors: Tensors
    lent: Tensors
    shapes: Shapes


class Watch(Protocol):
    """An observer of compilation, such as a profile: sees the lowering and the loaded machine."""

    def lowering(self, name: str, budget: FunctionBudget) -> AbstractContextManager[None]:
        """The contexts in which a function is lowered, whose plan of memory a budget receives."""

    def loaded(self, machine: relax.VirtualMachine, device: tvm.runtime.Device) -> None:
        """Take the machine that runs it."""


class ModelOnDevice(Synchronized):
    """A model, its loss, and the device that both run on.

    Parameters
    ----------
    objective : Objective

    Raises
    ------
    DeviceError
        This machine has no device for its target.
    """

    how_to_keep: ClassVar[str]
    """How to take it to another process, for the error where somebody pickles or copies it."""

    def __init__(self, objective: Objective):
        super().__init__()
        self._objective = objective
        self._model = objective.model
        self._target = objective.target
        self._device = device_of(self._target)
        self._limit = Limit(_MOST_SHAPES)
        self._staging = Staging(self._device, self._limit)
        self._arena = Arena(self._device)
        self._forwards: Recent[Shapes, Forward] = Recent(self._limit)
        self._checked: Recent[Any, Any] = Recent(self._limit)
        self._watch: Watch | None = None

    @property
    def most_shapes(self) -> int:
        """How many combinations of input shapes are kept compiled, with memory for their inputs.

        May be set at any time. Of more, those used longest ago go, and are compiled again, or read
        from the cache of compiled programs, when they come back.
        """
        return self._limit.count

    @most_shapes.setter
    @one_at_a_time
    def most_shapes(self, count: int) -> None:
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ArgumentError(f"most_shapes={count!r} must be a whole number, at least 1")
        self._limit.count = count

    def __reduce__(self) -> NoReturn:
        raise ArgumentError(
            f"a {type(self).__name__} cannot be pickled or copied: its tensors and programs belong "
            f"to a device and to this process; {self.how_to_keep}"
        )

    def _call_inputs(self, inputs: Inputs) -> CallInputs:
        """The inputs of a call, checked against the model."""
        arrays = read_arrays(by_name(inputs, self._model.inputs), self._device)
        shapes = shapes_of(arrays)
        self._check(arrays, shapes)
        lent = {name: array for name, array in arrays.items() if not isinstance(array, np.ndarray)}
        return CallInputs(placed(arrays, self._staging), lent, shapes)

    def _check(self, arrays: Mapping[str, Array], shapes: Shapes) -> None:
        """Raise if inputs do not fit the model; equal shapes and dtypes are checked once."""
        signature = shapes, tuple(array.dtype for array in arrays.values())
        self._checked.get(signature, lambda: bind_shapes(arrays, self._objective.input_types))

    def _forward(self, call_inputs: CallInputs) -> Forward:
        """The forward pass with the loss, for the shapes of a call."""
        shapes = call_inputs.shapes
        return self._forwards.get(shapes, lambda: self._objective.forward(shapes))

    def _targets(self, targets: Any, forward: Forward) -> list[tvm.runtime.Tensor]:
        """The targets that a forward pass takes, checked: none, or one tensor."""
        array = forward.target_array(targets)
        return [] if array is None else [self._staging.queue("the targets", array)]

    def _compile(
        self, mod: tvm.IRModule, name: str, task: str, budget: FunctionBudget | None = None
    ) -> Callable[..., Any]:
        """A function of a module, compiled; errors of the device call what it does `task`.

        A budget for its memory receives the plan.
        """
        return self._load(mod, name, task, False, budget)[0]

    def _compile_updating(
        self, mod: tvm.IRModule, name: str, task: str, budget: FunctionBudget | None = None
    ) -> Callable[..., NewResults]:
        """A function that overwrites arguments, compiled.

        It returns results by position, without those that are arguments, overwritten; see
        `drop_arguments`.
        """
        function, returned = self._load(mod, name, task, True, budget)
        assert returned is not None
        return by_position(function, returned.positions)

    def _records(self, is_updating: bool) -> bool:
        """Whether calls of a function are recorded, and launched as a whole."""
        is_watched = self._watch is not None  # whoever watches wants to see each kernel
        return (
            is_updating
            and self._objective.cuda_graph
            and self._device.type == "cuda"
            and not is_watched
        )

    def _build(
        self, mod: tvm.IRModule, name: str, is_updating: bool, budget: FunctionBudget
    ) -> tuple[Any, BuildInfo]:
        """An executable, and facts about its function."""

        def make(program: tvm.IRModule) -> tuple[Any, BuildInfo]:
            with EarlyBuilds(self._target) as early:
                # In this order: what a step needs in bytes includes what becomes its workspace,
                # and a result that is not returned does not escape.
                lowered = self._lower(program, name, early, budget)
                bytes_needed = allocated_bytes(lowered)[name]
                workspace = returned = None
                if is_updating:
                    lowered, returned = drop_arguments(lowered, name)
                # On a GPU all planned memory is taken at the start of a function anyway.
                if self._device.type == "cpu":
                    lowered, workspace = take_workspace(lowered, name)
                elif self._records(is_updating):
                    lowered, workspace = take_to_record(lowered, name)
                executable = generate(lowered, self._target, early)
                held, plan, left = (
                    None if fact is None else asdict(fact)
                    for fact in (workspace, budget.plan, returned)
                )
                return executable, (bytes_needed, held, plan, left)

        if self._watch is not None:
            return make(mod)  # an executable that was kept would skip the lowering
        options = {
            "winograd": self._objective.winograd,
            "libraries": self._objective.libraries,
            "precision": self._objective.precision.dtype,
            "updating": name if is_updating else None,
            "budget": budget.settings,
        }
        return compiled_once(mod, self._target, options, make)

    def _lower(
        self, mod: tvm.IRModule, name: str, early: EarlyBuilds, budget: FunctionBudget
    ) -> tvm.IRModule:
        """Lower a module, in the contexts of the watch if there is one."""
        objective = self._objective
        watch = self._watch
        with watch.lowering(name, budget) if watch is not None else nullcontext():
            return lower(
                mod,
                self._target,
                winograd=objective.winograd,
                early=early,
                budget=budget,
                libraries=objective.libraries,
                tf32=objective.precision.is_tf32,
            )

    def _load(
        self,
        mod: tvm.IRModule,
        name: str,
        task: str,
        is_updating: bool,
        budget: FunctionBudget | None,
    ) -> tuple[Callable[..., Any], Returned | None]:
        """A function of a module, to be called by any thread, and what it returns if it updates."""
        budget = budget or FunctionBudget(name)
        executable, info = self._build(mod, name, is_updating, budget)
        bytes_needed, held, plan, left = info
        budget.plan = None if plan is None else MemoryPlan(**plan)
        returned = None if left is None else Returned(**left)
        with reported(self._device, f"loading {task}"):
            machine = relax.VirtualMachine(executable, self._device)
            function = machine[name]
        if self._watch is not None:
            self._watch.loaded(machine, self._device)
        give_back()
        workspace = None if held is None else Workspace(**held)
        if self._device.type == "cpu":
            return _on_host(function, workspace, self._arena), returned
        if workspace is not None and returned is not None:
            function = self._arena.recorded(function, machine[RELEASE], workspace, returned)

        # Not this object itself, which holds the function: it would go with a garbage collection
        # alone, and with it the memory of a device.
        device, staging = self._device, self._staging

        def run(*arguments: Any) -> Any:
            try:
                with reported(device, task, bytes_needed):
                    return function(*arguments)
            except OutOfMemoryError:
                staging.clear()  # the next batch may be a smaller one
                raise

        return run, returned


def _on_host(
    function: Callable[..., Any], workspace: Workspace | None, arena: Arena
) -> Callable[..., Any]:
    """A function of the host that computes in a workspace, with as many threads as it can.

    Any thread may call it, one at a time.
    """

    def run(*arguments: Any) -> Any:
        prepare_threads()  # at each call, because every calling thread has its own pool
        if workspace is None:
            return function(*arguments)
        with arena.lent(workspace) as tensors:
            return function(*arguments, *tensors)

    return run
