"""A model where it runs: what a training step and a function of gradients have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ..errors import OutOfMemoryError
from ..frontend.model import Model
from ..lower.allocate import allocated_bytes
from ..lower.device import device_of, reported
from ..lower.pipeline import generate, lower
from ..lower.target import target as resolve_target
from .forward import Forward, LossChoice, LossFunction
from .inputs import (
    Inputs,
    Staging,
    bind_shapes,
    by_name,
    input_types,
    placed,
    read_arrays,
    shapes_of,
    target_array,
)

Shapes = tuple[tuple[int, ...], ...]
Tensors = dict[str, tvm.runtime.Tensor]


@dataclass(frozen=True)
class Given:
    """The inputs of one call, on the device.

    Attributes
    ----------
    tensors, lent : dict of str to tensor
        All, and those that still stand in the caller's memory.
    shapes : Shapes
    extents : dict
        Of the symbolic dimensions.
    """

    tensors: Tensors
    lent: Tensors
    shapes: Shapes
    extents: dict[Any, int]


class ModelOnDevice(ABC):
    """A model, its loss, and the device that both run on.

    Parameters
    ----------
    model : Model
    loss : LossChoice
    target : str, dict or Target

    Raises
    ------
    ArgumentError
        The model or the loss is none that is served.
    TargetError, DeviceError
        Nothing can run there.
    """

    def __init__(self, model: Model, loss: LossChoice, target: Any):
        self._input_types = input_types(model)
        self._model = model
        self._loss = LossFunction(model, loss)
        self._target = resolve_target(target)
        self._device = device_of(self._target)
        self._staging = Staging(self._device)
        self._forwards: dict[Shapes, Forward] = {}

    def _given(self, inputs: Inputs) -> Given:
        """Return the inputs of a call, checked against the model."""
        arrays = read_arrays(by_name(inputs, self._model.inputs), self._device)
        extents = bind_shapes(arrays, self._input_types)
        lent = {name: array for name, array in arrays.items() if not isinstance(array, np.ndarray)}
        return Given(placed(arrays, self._staging), lent, shapes_of(arrays), extents)

    @abstractmethod
    def _build_forward(self, extents: Mapping[Any, int]) -> Forward:
        """Return the forward function with the loss for concrete shapes."""

    def _forward(self, given: Given) -> Forward:
        """Return the forward function with the loss for the shapes of a call."""
        if given.shapes not in self._forwards:
            self._forwards[given.shapes] = self._build_forward(given.extents)
        return self._forwards[given.shapes]

    def _targets(self, targets: Any, forward: Forward) -> list[tvm.runtime.Tensor]:
        """Return the targets that a forward function takes, checked: none, or one tensor."""
        array = target_array(targets, self._loss, forward)
        return [] if array is None else [self._staging.queue("the targets", array)]

    def _compile(self, mod: tvm.IRModule, name: str, task: str) -> Callable[..., Any]:
        """Return a function of a module, compiled, whose failures are told as those of `task`."""
        lowered = lower(mod, self._target)
        needs = allocated_bytes(lowered)[name]
        executable = generate(lowered, self._target)
        with reported(self._device, f"loading {task}"):
            function = relax.VirtualMachine(executable, self._device)[name]

        def run(*arguments: Any) -> Any:
            try:
                with reported(self._device, task, needs):
                    return function(*arguments)
            except OutOfMemoryError:
                self._staging.clear()  # the next batch may be a smaller one
                raise

        return run
