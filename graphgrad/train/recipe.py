"""What a training step is before it has input shapes, tensors or a device."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm

from ..errors import ArgumentError
from ..frontend.mode import specialize
from ..frontend.model import Model
from ..layout.choice import Layout, choose_storage, layout_for
from ..lower.target import target as resolve_target
from .accumulate import MICRO_BATCH, build_end_of_window, build_micro_batch
from .forward import Forward, LossChoice, LossFunction, build_forward, differentiated, laid_out
from .groups import by_parameter
from .inputs import check_seed, check_types, check_winograd, input_types, names_in, owned_types
from .loss import LOSSES
from .optimizer import Optimizer
from .update import STEP, build_step


@dataclass(frozen=True)
class Recipe:
    """The arguments of `train_step`, checked.

    Attributes
    ----------
    model : Model
    loss : LossFunction
    optimizer : Optimizer
    trained : list of str
        Names of the parameters that train, in the model's order.
    target : Target
    seed : int
    rules : "auto" or "derived"
        Which gradient rules it is differentiated by.
    accumulate : int
        Micro-batches a step, at least 1.
    layout : Layout
        In which the functions compute, and take and return what belongs to parameters.
    winograd : bool
        As of `graphgrad.compile`.
    """

    model: Model
    loss: LossFunction
    optimizer: Optimizer
    trained: list[str]
    target: tvm.target.Target
    seed: int
    rules: str
    accumulate: int
    layout: Layout
    winograd: bool

    @property
    def method(self) -> str:
        """The optimizer in words, without its learning rate, which may change any time."""
        fields = dataclasses.asdict(self.optimizer)
        settings = ", ".join(f"{k}={v!r}" for k, v in fields.items() if k != "learning_rate")
        return f"{type(self.optimizer).__name__}({settings})"

    def forward(self, extents: Mapping[Any, int]) -> Forward:
        """Return the forward pass in training form, with the loss, for concrete shapes."""
        return laid_out(build_forward(self.model, self.loss, True, extents), self.layout)

    @property
    def step_name(self) -> str:
        """The name of the function in what `step` returns."""
        return STEP if self.accumulate == 1 else MICRO_BATCH

    def step(self, forward: Forward) -> tvm.IRModule:
        """The computation of a call, on top of a forward pass: a step, or a micro-batch of it."""
        if self.accumulate == 1:
            return build_step(self.model, forward, self.trained, self.optimizer, self.rules)
        return build_micro_batch(self.model, self.loss, forward, self.trained, self.rules)

    def end_of_window(self) -> tvm.IRModule:
        """Return the update that follows the last micro-batch of a step."""
        return build_end_of_window(self.model, self.trained, self.optimizer, self.layout)

    def evaluation(self, extents: Mapping[Any, int]) -> tvm.IRModule:
        """Return the forward pass in inference form, without a loss, for concrete shapes."""
        forward = build_forward(self.model, LossFunction(self.model, None), False, extents)
        return laid_out(forward, self.layout).mod


def recipe(
    model: Model,
    loss: LossChoice,
    optimizer: Optimizer,
    wrt: str | Sequence[str] | None,
    target: Any,
    seed: int,
    rules: str,
    accumulate: int = 1,
    winograd: bool = True,
) -> Recipe:
    """Check the arguments of `train_step`, which says what they are.

    Raises
    ------
    ArgumentError, InputError, TargetError, NotDifferentiableError, MissingGradientError
    """
    seed = check_seed(seed)
    accumulate = check_accumulate(accumulate)
    winograd = check_winograd(winograd)
    input_types(model)
    function = LossFunction(model, loss)
    if not function.is_given:
        raise ArgumentError(f"train_step needs a loss: one of {sorted(LOSSES)}, for example")
    if not isinstance(optimizer, Optimizer):
        raise ArgumentError(f"optimizer={optimizer!r} is none of graphgrad.optim")
    trained = _trained(model, wrt)
    differentiated(model, function, True, trained, rules)
    _check_epsilons(model, optimizer, trained)
    # They may have been replaced since the model was made.
    check_types({**model.params, **model.state}, owned_types(model), "parameter")
    resolved = resolve_target(target)
    layout = choose_storage(layout_for(resolved), specialize(model, True))
    return Recipe(
        model, function, optimizer, trained, resolved, seed, rules, accumulate, layout, winograd
    )


def _check_epsilons(model: Model, optimizer: Optimizer, trained: Sequence[str]) -> None:
    """Raise if what keeps an optimizer from dividing by 0 is 0 itself, in a parameter's dtype."""
    ranks = {name: model.params[name].ndim for name in trained}
    for name, (settings, _) in by_parameter(optimizer, ranks).items():
        epsilon, dtype = getattr(settings, "epsilon", 0.0), model.params[name].dtype
        if epsilon and not np.array(epsilon).astype(dtype):
            raise ArgumentError(
                f"epsilon={epsilon} of {type(settings).__name__} is 0 in {dtype}, the dtype of "
                f"{name!r}, so that a small gradient would be divided by 0; give a larger one, "
                "such as 1e-4"
            )


def check_accumulate(count: Any) -> int:
    """Return a number of micro-batches, after checking that it is a whole number from 1.

    Raises
    ------
    ArgumentError
    """
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1:
        raise ArgumentError(
            f"accumulate={count!r} must be a whole number, at least 1: the micro-batches of a step"
        )
    return int(count)


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
