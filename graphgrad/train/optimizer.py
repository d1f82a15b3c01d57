"""Optimisers: how a parameter moves along its gradient, written into the step's graph."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any

from ..errors import ArgumentError
from ..ops.tensor import Tensor


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent, with the conventions of ``torch.optim.SGD``.

    With g the gradient, p the parameter and v the momentum buffer, which starts at zero::

        g ← g + weight_decay · p
        v ← momentum · v + g
        p ← p − learning_rate · (g + momentum · v  if nesterov else v)

    Sutskever et al., *On the importance of initialization and momentum in deep learning* (2013).

    Attributes
    ----------
    learning_rate : float
        The rate of the first step; later ``step.learning_rate`` says it, at run time.
    momentum, weight_decay : float
    nesterov : bool

    Raises
    ------
    ArgumentError
        A value is negative or not finite, or nesterov is asked for without momentum.
    """

    learning_rate: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        for name in ("learning_rate", "momentum", "weight_decay"):
            check_rate(f"SGD: {name}", getattr(self, name))
        if self.nesterov and not self.momentum:
            raise ArgumentError("SGD: nesterov=True needs momentum above 0")

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the buffers kept for each parameter."""
        return ("momentum",) if self.momentum else ()

    def emit(
        self, parameter: Tensor, gradient: Tensor, slots: dict[str, Tensor], rate: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Emit one update; return the new parameter and the new buffers."""
        if self.weight_decay:
            gradient = gradient + self.weight_decay * parameter
        if not self.momentum:
            return parameter - rate * gradient, {}
        velocity = self.momentum * slots["momentum"] + gradient
        direction = gradient + self.momentum * velocity if self.nesterov else velocity
        return parameter - rate * direction, {"momentum": velocity}


Optimizer = SGD


def check_rate(name: str, value: Any) -> None:
    """Raise unless a value is a finite number, at least 0.

    Raises
    ------
    ArgumentError
    """
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not (is_number and 0 <= float(value) < math.inf):
        raise ArgumentError(f"{name}={value!r} must be a finite number, at least 0")
