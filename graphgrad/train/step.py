"""`train_step`: one call is one step of training, compiled whole for the Relax VM."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax

from ..errors import ArgumentError, CheckpointError, InputError
from ..frontend.model import Model
from ..lower.arrays import to_tensor
from ..lower.device import device_of
from ..lower.pipeline import compile as compile_module
from ..lower.target import target as resolve_target
from . import checkpoint
from .forward import FORWARD, Forward, LossChoice, LossFunction, build_forward
from .inputs import Inputs, as_numpy, bind_shapes, by_name, shapes_of, tensors
from .loss import check_target_shape
from .optimizer import SGD, Optimizer
from .state import Arrays, TrainState, as_arrays
from .update import STEP, build_step


def train_step(
    model: Model,
    loss: LossChoice = "cross_entropy",
    optimizer: Optimizer = SGD(0.1, momentum=0.9),  # noqa: B008 (frozen)
    wrt: Sequence[str] | None = None,
    target: Any = "llvm",
    accumulate: int = 1,
    precision: str = "float32",
    memory: int | None = None,
) -> TrainStep:
    """Return a callable that trains a model, one step a call.

    Parameters
    ----------
    model : Model
        Its parameters and statistics are copied once; the model itself never changes.
    loss : str or relax.Function
        ``"cross_entropy"`` (integer labels), ``"mse"``, the name of a scalar output of the model,
        or a Relax function of the model's outputs and the targets that returns a scalar.
    optimizer : SGD
    wrt : sequence of str, optional
        Names of the parameters that train; by default all that can.
    target : str, dict or Target
        Where it runs; a bare ``"llvm"`` is this host.
    accumulate : 1
        Accumulation over micro-batches is not served yet.
    precision : "float32"
        The model computes in the dtypes that it has; mixed precision is not served yet.
    memory : None
        A memory budget is not served yet.

    Returns
    -------
    TrainStep

    Raises
    ------
    ArgumentError
        A value is unknown or not served yet.

    Examples
    --------
    >>> step = gg.train_step(gg.from_onnx("resnet.onnx"), optimizer=gg.optim.SGD(0.1, 0.9))
    >>> loss = step(images, labels)
    """
    for name, value, served in (
        ("accumulate", accumulate, 1),
        ("precision", precision, "float32"),
        ("memory", memory, None),
    ):
        if value != served:
            raise ArgumentError(f"{name}={value!r} is not served yet; only {served!r} is")
    return TrainStep(model, loss, optimizer, wrt, target)


class TrainStep:
    """A compiled training step and everything it changes; made by `train_step`.

    A step whose loss or gradients are not finite changes nothing, bit for bit.

    Attributes
    ----------
    learning_rate : float
        The rate of the next steps; may be set at any time.
    steps : int
        Calls so far.
    skipped : int
        How many of them changed nothing, because the loss or a gradient was not finite.
    """

    def __init__(
        self,
        model: Model,
        loss: LossChoice,
        optimizer: Optimizer,
        wrt: Sequence[str] | None,
        target: Any,
    ):
        self._model = model
        self._loss = LossFunction(model, loss)
        if not self._loss.is_given:
            raise ArgumentError("train_step needs a loss")
        self._optimizer = optimizer
        self._target = resolve_target(target)
        self._device = device_of(self._target)
        trained = _trained(model, wrt)
        self._tensors = TrainState(
            model.params, model.state, trained, optimizer.slots, self._device
        )
        self._input_types = {p.name: p.ty for p in model.mod["main"].params[: len(model.inputs)]}
        self._compiled: dict[Any, Any] = {}
        self.learning_rate = optimizer.learning_rate
        self.steps = 0
        self.skipped = 0

    @property
    def learning_rate(self) -> float:
        """The rate of the next steps."""
        return self._learning_rate

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        if not (isinstance(rate, int | float | np.floating) and 0 <= rate < math.inf):
            raise ArgumentError(f"learning_rate={rate!r} must be a finite number, at least 0")
        self._learning_rate = float(rate)

    @property
    def params(self) -> Arrays:
        """Copies of all parameters, by name."""
        return as_arrays(self._tensors.params)

    @property
    def state(self) -> Arrays:
        """Copies of the running statistics, by name."""
        return as_arrays(self._tensors.state)

    @property
    def optimizer_state(self) -> dict[str, Arrays]:
        """Copies of the optimiser's buffers, by kind (such as ``momentum``) and parameter."""
        return {slot: as_arrays(tensors) for slot, tensors in self._tensors.slots.items()}

    def __call__(self, inputs: Inputs, targets: Any = None) -> float:
        """Make one step.

        Parameters
        ----------
        inputs : array or dict of arrays
            Numpy arrays, torch tensors or TVM tensors in the model's dtypes; a single array for a
            model with one input.
        targets : array
            What the loss compares with: integer labels for ``cross_entropy``; left out if the loss
            takes none.

        Returns
        -------
        loss : float
            Of the parameters before the step.

        Raises
        ------
        InputError
            An array does not fit; nothing has changed.
        AliasError
            An array shares memory with a tensor that the step overwrites.
        """
        given, extents = self._checked(inputs)
        key = ("step", shapes_of(given))
        if key not in self._compiled:
            forward = build_forward(self._model, self._loss, True, extents)
            step = build_step(self._model, forward, self._tensors.trained, self._optimizer)
            self._compiled[key] = self._compile(step), forward
        vm, forward = self._compiled[key]
        arguments = [*given.values(), *self._targets(targets, forward)]
        self._tensors.check_overlap(given)
        rate = to_tensor(np.float64(self._learning_rate), self._device)
        owned = [*self._tensors.params.values(), *self._tensors.state.values()]
        buffers = [t for slot in self._tensors.slots.values() for t in slot.values()]
        loss, applied, *fresh = vm[STEP](*arguments, rate, *owned, *buffers)
        self._tensors.replace(fresh)
        self.steps += 1
        self.skipped += not bool(applied.numpy())
        return float(loss.numpy())

    def evaluate(self, inputs: Inputs) -> dict[str, np.ndarray]:
        """Return the model's outputs by name, in inference form, with the current parameters.

        Raises
        ------
        InputError
        """
        given, extents = self._checked(inputs)
        key = ("evaluate", shapes_of(given))
        if key not in self._compiled:
            forward = build_forward(self._model, LossFunction(self._model, None), False, extents)
            self._compiled[key] = self._compile(forward.mod)
        owned = [*self._tensors.params.values(), *self._tensors.state.values()]
        outputs = self._compiled[key][FORWARD](*given.values(), *owned)[0]
        return {name: out.numpy() for name, out in zip(self._model.outputs, outputs, strict=True)}

    def save(self, path: str | os.PathLike[str], extra: Mapping[str, Any] | None = None) -> None:
        """Write everything that the next steps depend on to one file (safetensors).

        Parameters
        ----------
        path : path
            Replaced in one step: after a crash it holds the old or the new state, whole.
        extra : mapping, optional
            Facts of your own, such as the position in the data; anything that JSON can hold.

        Raises
        ------
        CheckpointError
            The file cannot be written.
        """
        facts = {
            "optimizer": repr(self._optimizer),
            "learning_rate": self._learning_rate,
            "steps": self.steps,
            "skipped": self.skipped,
            "extra": dict(extra or {}),
        }
        checkpoint.write(path, self._tensors.arrays(), facts)

    def load(self, path: str | os.PathLike[str]) -> dict[str, Any]:
        """Go back to a saved state; from there, steps are bit-identical to not having stopped.

        Returns
        -------
        extra : dict
            What was given to `save`.

        Raises
        ------
        CheckpointError
            The file is missing, damaged, or of another model or optimiser; nothing has changed.
        """
        groups, facts = checkpoint.read(path)
        current = self._tensors.arrays()
        # A group without arrays leaves no trace in the file.
        groups = {group: groups.get(group, {}) for group in {**current, **groups}}
        checkpoint.check_match(path, groups, current)
        if facts["optimizer"] != repr(self._optimizer):
            raise CheckpointError(
                f"{path} was saved by {facts['optimizer']}, this step uses {self._optimizer!r}; "
                "build the step with the same optimiser"
            )
        self._tensors.restore(
            {
                group: {name: groups[group][name] for name in names}
                for group, names in current.items()
            }
        )
        self.learning_rate = facts["learning_rate"]
        self.steps, self.skipped = facts["steps"], facts["skipped"]
        return facts["extra"]

    def _checked(self, inputs: Inputs) -> tuple[dict[str, Any], dict[Any, int]]:
        given = tensors(by_name(inputs, self._model.inputs), self._device)
        return given, bind_shapes(given, self._input_types)

    def _targets(self, targets: Any, forward: Forward) -> list[Any]:
        if forward.targets is None:
            if targets is not None:
                raise InputError("targets were given, but this loss takes none")
            return []
        if targets is None:
            raise InputError("targets are missing: this loss compares the outputs with targets")
        array = as_numpy(targets)
        if self._loss.named is not None:
            array = self._loss.named.prepare(array, forward.outputs[0])
        check_target_shape(array, forward.targets)
        return [to_tensor(array, self._device, str(forward.targets.dtype))]

    def _compile(self, mod: Any) -> relax.VirtualMachine:
        return relax.VirtualMachine(compile_module(mod, self._target), self._device)


def _trained(model: Model, wrt: Sequence[str] | None) -> list[str]:
    trainable = model.trainable()
    if wrt is None:
        if not trainable:
            raise ArgumentError("the model has no parameter that can train")
        return trainable
    unknown = [name for name in wrt if name not in model.params]
    if unknown:
        raise ArgumentError(f"wrt: the model has no parameter(s) {unknown}")
    frozen = [name for name in wrt if name not in trainable]
    if frozen:
        raise ArgumentError(f"wrt: the parameter(s) {frozen} are frozen or hold no floats")
    if not wrt or len(set(wrt)) != len(wrt):
        raise ArgumentError("wrt: give at least one parameter, and each once")
    return [name for name in model.params if name in set(wrt)]
