"""Optimizers: how a parameter moves along its gradient, written into the step's graph.

Each has the conventions of the optimizer of the same name in ``torch.optim``. With *g* the
gradient, *p* the parameter, *η* the learning rate and *t* the number of the update, from one;
buffers start at zero where nothing else is said.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, fields
from numbers import Real
from typing import Any, ClassVar

from ..errors import ArgumentError
from ..ir.tensor import Tensor
from ..ops import functional as op
from .groups import Group, check_groups

Slots = dict[str, Tensor]


@dataclass(frozen=True)
class Optimizer(ABC):
    """The base class of optimizers: settings that all have, and the update that each emits.

    Attributes
    ----------
    learning_rate : float
        The rate of the first step; later ``step.learning_rate`` says it, at run time.
    groups : sequence of Group
        Parameters with settings of their own, see `graphgrad.optim.group`.
    clip_value : float, optional
        Every element of a gradient is clipped to [−clip_value, clip_value].
    clip_norm : float, optional
        All gradients together are scaled down to this Euclidean norm where theirs is larger, as by
        ``torch.nn.utils.clip_grad_norm_``; after `clip_value`, if both are given.

    Raises
    ------
    ArgumentError
        A value is negative, not finite, or out of its range; a group has an unknown setting.
    """

    learning_rate: float
    _: KW_ONLY
    groups: tuple[Group, ...] = ()
    clip_value: float | None = None
    clip_norm: float | None = None

    rates: ClassVar[tuple[str, ...]] = ()
    """Names of the settings that are finite numbers, at least 0."""

    shares: ClassVar[tuple[str, ...]] = ()
    """Names of the settings that are numbers in [0, 1), or pairs of those."""

    def __post_init__(self) -> None:
        name = type(self).__name__
        for setting in ("learning_rate", *self.rates):
            check_rate(f"{name}: {setting}", getattr(self, setting))
        for flag in (setting.name for setting in fields(self) if setting.type == "bool"):
            if not isinstance(getattr(self, flag), bool):
                raise ArgumentError(f"{name}: {flag}={getattr(self, flag)!r} must be True or False")
        for setting in self.shares:
            _check_share(f"{name}: {setting}", getattr(self, setting))
        for setting in ("clip_value", "clip_norm"):
            limit = getattr(self, setting)
            if limit is not None:
                check_rate(f"{name}: {setting}", limit)
                if limit == 0:
                    raise ArgumentError(f"{name}: {setting}=0 would stop all training")
        groups = (self.groups,) if isinstance(self.groups, Group) else tuple(self.groups)
        object.__setattr__(self, "groups", groups)  # the class is frozen
        check_groups(self)

    @property
    def slots(self) -> Mapping[str, float]:
        """Names of the buffers kept for each parameter, and what they are filled with at first."""
        return {}

    @abstractmethod
    def emit(
        self, parameter: Tensor, gradient: Tensor, slots: Slots, rate: Tensor, update: Tensor
    ) -> tuple[Tensor, Slots]:
        """Emit one update; return the new parameter and the new buffers.

        Parameters
        ----------
        parameter, gradient : Tensor
            Of one shape and dtype, as all buffers are.
        slots : dict of str to Tensor
        rate, update : Tensor
            float64 scalars: the learning rate, and the number of this update from one.
        """


@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent.

    With v the momentum buffer::

        g ← g + weight_decay · p
        v ← momentum · v + (1 − dampening) g        v ← g  in the first update
        p ← p − η (g + momentum · v  if nesterov else v)

    Sutskever et al., *On the importance of initialization and momentum in deep learning* (2013).

    Attributes
    ----------
    momentum, weight_decay : float
        Momentum is below 1.
    dampening : float
        From 0 to 1.
    nesterov : bool
        Needs momentum, and no dampening.
    """

    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    dampening: float = 0.0

    rates = ("weight_decay", "dampening")
    shares = ("momentum",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dampening > 1:
            raise ArgumentError(f"SGD: dampening={self.dampening!r} must be at most 1")
        if self.nesterov and not self.momentum:
            raise ArgumentError("SGD: nesterov=True needs momentum above 0")
        if self.nesterov and self.dampening:
            raise ArgumentError("SGD: nesterov=True needs dampening=0")

    @property
    def slots(self) -> Mapping[str, float]:
        """The momentum buffer, if there is momentum."""
        return {"momentum": 0.0} if self.momentum else {}

    def emit(
        self, parameter: Tensor, gradient: Tensor, slots: Slots, rate: Tensor, update: Tensor
    ) -> tuple[Tensor, Slots]:
        """Emit one update; see `Optimizer.emit`."""
        gradient = _decayed(gradient, parameter, self.weight_decay)
        if not self.momentum:
            return parameter - _like(rate, parameter) * gradient, {}
        scaled_gradient = gradient
        if self.dampening:
            # The first update takes the whole gradient, as torch's does. The buffer is 0 then, so
            # that momentum needs no such case.
            is_first = op.equal(update, 1.0).astype(update.dtype)
            scaled_gradient = _like(1.0 - self.dampening * (1.0 - is_first), gradient) * gradient
        velocity = self.momentum * slots["momentum"] + scaled_gradient
        direction = gradient + self.momentum * velocity if self.nesterov else velocity
        return parameter - _like(rate, parameter) * direction, {"momentum": velocity}


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam, with L2 regularization in the gradient.

    With m and v the first and the second moment, and v̂ the largest v so far if `amsgrad`::

        g ← g + weight_decay · p
        m ← β₁ m + (1 − β₁) g
        v ← β₂ v + (1 − β₂) g²
        p ← p − η m / (1 − β₁ᵗ) / (√(v / (1 − β₂ᵗ)) + ε)

    Kingma and Ba, *Adam* (2015), algorithm 1; Reddi et al., *On the convergence of Adam and
    beyond* (2018), for `amsgrad`.

    Attributes
    ----------
    betas : (float, float)
    epsilon, weight_decay : float
    amsgrad : bool
    """

    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    amsgrad: bool = False

    rates = ("epsilon", "weight_decay")
    shares = ("betas",)

    @property
    def slots(self) -> Mapping[str, float]:
        """The two moments, and the largest second moment if `amsgrad`."""
        largest = {"largest_second_moment": 0.0} if self.amsgrad else {}
        return {"first_moment": 0.0, "second_moment": 0.0, **largest}

    def emit(
        self, parameter: Tensor, gradient: Tensor, slots: Slots, rate: Tensor, update: Tensor
    ) -> tuple[Tensor, Slots]:
        """Emit one update; see `Optimizer.emit`."""
        gradient = _decayed(gradient, parameter, self.weight_decay)
        return self._emit_adam(parameter, gradient, slots, rate, update)

    def _emit_adam(
        self, parameter: Tensor, gradient: Tensor, slots: Slots, rate: Tensor, update: Tensor
    ) -> tuple[Tensor, Slots]:
        """Emit Adam's update, without weight decay."""
        beta1, beta2 = self.betas
        first = beta1 * slots["first_moment"] + (1.0 - beta1) * gradient
        second = beta2 * slots["second_moment"] + (1.0 - beta2) * (gradient * gradient)
        new_slots = {"first_moment": first, "second_moment": second}
        if self.amsgrad:
            # Of moments before they are corrected, as torch has it.
            second = op.maximum(slots["largest_second_moment"], second)
            new_slots["largest_second_moment"] = second
        # Both corrections are scalars, in float64 whatever the parameters are.
        step_size = _like(rate / _correction(beta1, update), parameter)
        root_of_correction = _like(op.sqrt(_correction(beta2, update)), parameter)
        return parameter - step_size * first / (
            op.sqrt(second) / root_of_correction + self.epsilon
        ), new_slots


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay: ``p ← p − η · weight_decay · p`` before Adam's update.

    Loshchilov and Hutter, *Decoupled weight decay regularization* (2019), algorithm 2.
    """

    weight_decay: float = 1e-2

    def emit(
        self, parameter: Tensor, gradient: Tensor, slots: Slots, rate: Tensor, update: Tensor
    ) -> tuple[Tensor, Slots]:
        """Emit one update; see `Optimizer.emit`."""
        if self.weight_decay:
            parameter = parameter * _like(1.0 - rate * self.weight_decay, parameter)
        return self._emit_adam(parameter, gradient, slots, rate, update)


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """Adagrad: rates that fall with the sum of the squared gradients.

    With s that sum, which starts at `initial_accumulator`::

        g ← g + weight_decay · p
        s ← s + g²
        p ← p − η / (1 + (t − 1) learning_rate_decay) · g / (√s + ε)

    Duchi, Hazan and Singer, *Adaptive subgradient methods* (2011).

    Attributes
    ----------
    learning_rate_decay, weight_decay, initial_accumulator, epsilon : float
    """

    learning_rate_decay: float = 0.0
    weight_decay: float = 0.0
    initial_accumulator: float = 0.0
    epsilon: float = 1e-10

    rates = ("learning_rate_decay", "weight_decay", "initial_accumulator", "epsilon")

    @property
    def slots(self) -> Mapping[str, float]:
        """The sum of the squared gradients."""
        return {"squares": self.initial_accumulator}

    def emit(
        self, parameter: Tensor, gradient: Tensor, slots: Slots, rate: Tensor, update: Tensor
    ) -> tuple[Tensor, Slots]:
        """Emit one update; see `Optimizer.emit`."""
        gradient = _decayed(gradient, parameter, self.weight_decay)
        squares = slots["squares"] + gradient * gradient
        if self.learning_rate_decay:
            rate = rate / (1.0 + (update - 1.0) * self.learning_rate_decay)
        new_parameter = parameter - _like(rate, parameter) * gradient / (
            op.sqrt(squares) + self.epsilon
        )
        return new_parameter, {"squares": squares}


@dataclass(frozen=True)
class RMSprop(Optimizer):
    """RMSprop: the gradient over the root of its mean square.

    With s and a moving means of g² and g::

        g ← g + weight_decay · p
        s ← α s + (1 − α) g²,   a ← α a + (1 − α) g
        d ← g / (√(s − a²  if centered else s) + ε)
        v ← momentum · v + d
        p ← p − η v          (d without momentum)

    Tieleman and Hinton, *Lecture 6.5* (2012); Graves, *Generating sequences with recurrent neural
    networks* (2013), section 2.1, for `centered`.

    Attributes
    ----------
    alpha, epsilon, momentum, weight_decay : float
        Alpha and momentum are below 1.
    centered : bool
    """

    alpha: float = 0.99
    epsilon: float = 1e-8
    momentum: float = 0.0
    weight_decay: float = 0.0
    centered: bool = False

    rates = ("epsilon", "weight_decay")
    shares = ("alpha", "momentum")

    @property
    def slots(self) -> Mapping[str, float]:
        """The mean square, the mean gradient if `centered`, and the momentum if there is any."""
        mean = {"mean_gradient": 0.0} if self.centered else {}
        momentum = {"momentum": 0.0} if self.momentum else {}
        return {"mean_square": 0.0, **mean, **momentum}

    def emit(
        self, parameter: Tensor, gradient: Tensor, slots: Slots, rate: Tensor, update: Tensor
    ) -> tuple[Tensor, Slots]:
        """Emit one update; see `Optimizer.emit`."""
        gradient = _decayed(gradient, parameter, self.weight_decay)
        old_share, new_share = self.alpha, 1.0 - self.alpha
        square = old_share * slots["mean_square"] + new_share * (gradient * gradient)
        new_slots = {"mean_square": square}
        if self.centered:
            new_slots["mean_gradient"] = mean = (
                old_share * slots["mean_gradient"] + new_share * gradient
            )
            square = square - mean * mean
        direction = gradient / (op.sqrt(square) + self.epsilon)
        if self.momentum:
            direction = new_slots["momentum"] = self.momentum * slots["momentum"] + direction
        return parameter - _like(rate, parameter) * direction, new_slots


def _decayed(gradient: Tensor, parameter: Tensor, decay: float) -> Tensor:
    """The gradient of the loss with ``decay / 2 · ‖p‖²`` added."""
    return gradient + decay * parameter if decay else gradient


def _like(scalar: Tensor, tensor: Tensor) -> Tensor:
    """A float64 scalar in the dtype of a tensor, so that their product has it too."""
    return scalar.astype(tensor.dtype)


def _correction(beta: float, update: Tensor) -> Tensor:
    """1 − βᵗ, the sum of the weights in a moving mean of t values that started at zero."""
    return 1.0 - op.power(update.emitter.full(beta, [], update.dtype), update)


def check_rate(name: str, value: Any) -> None:
    """Raise unless a value is a finite number, at least 0.

    Raises
    ------
    ArgumentError
    """
    if not (_is_number(value) and 0 <= float(value) < math.inf):
        raise ArgumentError(f"{name}={value!r} must be a finite number, at least 0")


def _check_share(name: str, value: Any) -> None:
    """Raise unless a setting is a number in [0, 1), or, for ``betas``, a pair of those."""
    is_pair = name.endswith("betas")
    values = value if isinstance(value, tuple | list) and is_pair else (value,)
    expected = "a pair of numbers" if is_pair else "a number"
    if len(values) != 1 + is_pair or not all(
        _is_number(number) and 0 <= number < 1 for number in values
    ):
        raise ArgumentError(f"{name}={value!r} must be {expected} from 0, below 1")


def _is_number(value: Any) -> bool:
    """Whether a value is a real number; True and False are none."""
    return isinstance(value, Real) and not isinstance(value, bool)
