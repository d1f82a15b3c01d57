"""The forward pass of a step with the gradients of its loss, as part of a new function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..autodiff.reverse import Gradients, check_target
from ..ir.tensor import Emitter, Tensor
from .forward import Forward


class StepGradients:
    """What a step differentiates, and how its gradients are emitted.

    Parameters
    ----------
    forward : Forward
        With a loss.
    trained : sequence of str
        Names of the parameters whose gradients are wanted.

    Attributes
    ----------
    weights : list of relax.Var
        Those of the parameters that train.
    gradients : Gradients

    Raises
    ------
    MissingGradientError, NotDifferentiableError
    """

    def __init__(self, forward: Forward, trained: Sequence[str]):
        by_name = dict(zip(forward.model.params, forward.params, strict=True))
        self.weights = [by_name[name] for name in trained]
        for weight in self.weights:
            check_target(weight)
        self.gradients = Gradients(forward.program, self.weights)
        self._forward = forward

    def emit(
        self, emitter: Emitter, statistics: Sequence[Any] | None = None
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Emit the loss, the gradients of the weights, and the new statistics.

        The last are none where nothing updates them: a model without batch norm.

        Parameters
        ----------
        statistics : sequence of expressions, optional
            What the forward pass takes for the model's statistics; by default those.
        """
        program, state = self._forward.program, self._forward.state
        taken = dict(zip(state, statistics or state, strict=True))
        arguments = [taken.get(param, param) for param in program.params]
        dtype = str(program.result.fields[0].ty.dtype)
        seed = [emitter.full(1.0, [], dtype), None, None]
        result, gradients = self.gradients.emit(emitter, seed, arguments)
        loss, _, new = result.fields
        return emitter.lift(loss), gradients, [emitter.lift(statistic) for statistic in new.fields]
