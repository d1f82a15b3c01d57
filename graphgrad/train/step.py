"""`train_step`: one call is one step of training, compiled whole for the Relax VM."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax

from ..errors import ArgumentError, CheckpointError, only_served
from ..frontend.model import Model
from ..lower.arrays import to_tensor
from ..lower.device import device_of
from ..lower.pipeline import compile as compile_module
from ..lower.target import target as resolve_target
from . import checkpoint
from .forward import (
    FORWARD,
    Forward,
    LossChoice,
    LossFunction,
    build_forward,
    differentiated,
)
from .groups import by_parameter
from .inputs import (
    Inputs,
    bind_shapes,
    by_name,
    check_seed,
    check_types,
    input_types,
    names_in,
    owned_types,
    shapes_of,
    target_tensors,
    tensors,
)
from .loss import LOSSES
from .optimizer import SGD, Optimizer, check_rate
from .state import Arrays, TrainState, as_arrays
from .update import STEP, build_step

Shapes = tuple[tuple[int, ...], ...]


def train_step(
    model: Model,
    loss: LossChoice = "cross_entropy",
    optimizer: Optimizer = SGD(0.1, momentum=0.9),  # noqa: B008 (frozen)
    wrt: str | Sequence[str] | None = None,
    target: Any = "llvm",
    accumulate: int = 1,
    precision: str = "float32",
    memory: int | None = None,
    seed: int = 0,
) -> TrainStep:
    """Return a callable that trains a model, one step a call.

    Parameters
    ----------
    model : Model
        Its parameters and statistics are copied once; the model itself never changes.
    loss : str, one of graphgrad.loss, or relax.Function
        ``"cross_entropy"`` (integer labels), ``"mse"`` or another name in `graphgrad.loss`, whose
        functions take settings; the name of a scalar output of the model; or a Relax function of
        the model's outputs and the targets that returns a scalar.
    optimizer : one of graphgrad.optim
    wrt : name or names, optional
        The parameters that train; by default all that can.
    target : str, dict or Target
        Where it runs; a bare ``"llvm"`` is this host.
    accumulate : 1
        Accumulation over micro-batches is not served yet.
    precision : "float32"
        The model computes in the dtypes that it has; mixed precision is not served yet.
    memory : None
        A memory budget is not served yet.
    seed : int
        Decides, with the number of the step, what dropouts drop; from 0, below 2³¹.

    Returns
    -------
    TrainStep

    Raises
    ------
    ArgumentError
        A value is unknown or not served yet.
    MissingGradientError
        Some ops have no gradient; the error lists all of them.

    Examples
    --------
    >>> step = gg.train_step(gg.from_onnx("resnet.onnx"), optimizer=gg.optim.SGD(0.1, 0.9))
    >>> loss = step(images, labels)
    """
    only_served(accumulate=(accumulate, 1), precision=(precision, "float32"), memory=(memory, None))
    return TrainStep(model, loss, optimizer, wrt, target, seed)


class TrainStep:
    """A compiled training step and everything it changes; made by `train_step`.

    A step whose loss, gradients or new statistics are not finite changes nothing, bit for bit. For
    each new combination of input shapes a step, or an evaluation, is compiled and kept.

    Attributes
    ----------
    learning_rate : float
        The rate of the next steps; may be set at any time.
    steps : int
        Calls so far.
    skipped : int
        How many of them changed nothing, because something was not finite.
    """

    def __init__(
        self,
        model: Model,
        loss: LossChoice,
        optimizer: Optimizer,
        wrt: str | Sequence[str] | None,
        target: Any,
        seed: int,
    ):
        self._seed = check_seed(seed)
        self._input_types = input_types(model)
        self._model = model
        self._loss = LossFunction(model, loss)
        if not self._loss.is_given:
            raise ArgumentError(f"train_step needs a loss: one of {sorted(LOSSES)}, for example")
        if not isinstance(optimizer, Optimizer):
            raise ArgumentError(f"optimizer={optimizer!r} is none of graphgrad.optim")
        trained = _trained(model, wrt)
        differentiated(model, self._loss, True, trained)
        by_parameter(optimizer, {name: model.params[name].ndim for name in trained})
        self._optimizer = optimizer
        self._target = resolve_target(target)
        self._device = device_of(self._target)
        self._tensors = TrainState(
            model.params, model.state, trained, optimizer.slots, self._device
        )
        owned = {**self._tensors.params, **self._tensors.state}
        check_types(owned, owned_types(model), "parameter")
        self._forwards: dict[Shapes, Forward] = {}
        self._steps: dict[Shapes, Callable[..., Any]] = {}
        self._evaluations: dict[Shapes, Callable[..., Any]] = {}
        self.learning_rate = optimizer.learning_rate
        self.steps = 0
        self.skipped = 0

    @property
    def learning_rate(self) -> float:
        """The rate of the next steps."""
        return self._learning_rate

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        check_rate("learning_rate", rate)
        for dtype in self._tensors.trained_dtypes:
            with np.errstate(over="ignore"):
                overflows = np.isinf(np.float64(rate).astype(dtype))
            if overflows:
                raise ArgumentError(f"learning_rate={rate!r} is too large for {dtype} parameters")
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
        given, lent, extents = self._checked(inputs)
        shapes = shapes_of(given)
        if shapes not in self._forwards:
            self._forwards[shapes] = build_forward(self._model, self._loss, True, extents)
        forward = self._forwards[shapes]
        arguments = [*given.values(), *target_tensors(targets, self._loss, forward, self._device)]
        self._tensors.check_overlap(lent)
        if shapes not in self._steps:
            mod = build_step(self._model, forward, self._tensors.trained, self._optimizer)
            self._steps[shapes] = self._compile(mod, STEP)
        update = 1 + self.steps - self.skipped
        scalars = [to_tensor(np.float64(v), self._device) for v in (self._learning_rate, update)]
        if forward.seeded:
            # The two halves of a word of 64 bits: no two steps of two seeds share one.
            scalars.append(to_tensor(np.int64(self._seed << 32 | self.steps), self._device))
        run = self._steps[shapes]
        loss, applied, *fresh = run(*arguments, *scalars, *self._tensors.everything())
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
        given, _, extents = self._checked(inputs)
        shapes = shapes_of(given)
        if shapes not in self._evaluations:
            forward = build_forward(self._model, LossFunction(self._model, None), False, extents)
            self._evaluations[shapes] = self._compile(forward.mod, FORWARD)
        outputs = self._evaluations[shapes](*given.values(), *self._tensors.of_model())[0]
        return as_arrays(dict(zip(self._model.outputs, outputs, strict=True)))

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
        ArgumentError
            JSON cannot hold `extra`.
        CheckpointError
            The file cannot be written; what stood there before is untouched.
        """
        facts = {
            "optimizer": self._method(),
            "learning_rate": self._learning_rate,
            "steps": self.steps,
            "skipped": self.skipped,
            "seed": self._seed,
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
        if facts["optimizer"] != self._method():
            raise CheckpointError(
                f"{path} was saved by {facts['optimizer']}, this step uses {self._method()}; "
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
        self._seed = facts["seed"]
        return facts["extra"]

    def _method(self) -> str:
        """Return the optimiser in words, without its learning rate, which may change any time."""
        fields = dataclasses.asdict(self._optimizer)
        settings = ", ".join(f"{k}={v!r}" for k, v in fields.items() if k != "learning_rate")
        return f"{type(self._optimizer).__name__}({settings})"

    def _checked(self, inputs: Inputs) -> tuple[dict[str, Any], dict[str, Any], dict[Any, int]]:
        """Return the inputs as tensors, those of them that were not copied, and the extents."""
        given, lent = tensors(by_name(inputs, self._model.inputs), self._device)
        return given, lent, bind_shapes(given, self._input_types)

    def _compile(self, mod: Any, name: str) -> Callable[..., Any]:
        return relax.VirtualMachine(compile_module(mod, self._target), self._device)[name]


def _trained(model: Model, wrt: str | Sequence[str] | None) -> list[str]:
    trainable = model.trainable()
    if wrt is None:
        if not trainable:
            raise ArgumentError("the model has no parameter that can train")
        return trainable
    wrt = names_in(wrt)
    unknown = [name for name in wrt if name not in model.params]
    if unknown:
        raise ArgumentError(
            f"wrt: the model has no parameter(s) {unknown}; it has {list(model.params)}"
        )
    frozen = [name for name in wrt if name not in trainable]
    if frozen:
        raise ArgumentError(f"wrt: the parameter(s) {frozen} are frozen or hold no floats")
    if not wrt or len(set(wrt)) != len(wrt):
        raise ArgumentError("wrt: give at least one parameter, and each once")
    return [name for name in model.params if name in set(wrt)]
