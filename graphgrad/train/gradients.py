"""The forward pass of a step with the gradients of its loss, as part of a new function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm

from ..autodiff.expand import expand
from ..autodiff.reverse import backward, check_target
from ..frontend.model import Model
from ..ir.inline import inline_calls
from ..ir.program import emit_program, substitute
from ..ir.tensor import Emitter, Tensor
from ..ir.write import write_function
from .forward import FORWARD, Forward, kernels


class StepGradients:
    """What a step differentiates: the variables that it takes, and how its gradients are emitted.

    Parameters
    ----------
    model : Model
    forward : Forward
        With a loss.
    trained : sequence of str
        Names of the parameters whose gradients are wanted.
    rules : "auto" or "derived"
        Which gradient rules it is differentiated by.

    Attributes
    ----------
    arguments : list of relax.Var
        The inputs, and the targets if the loss takes any.
    seed : list of relax.Var
        The seed of dropouts, if there are any.
    params, state : list of relax.Var
        Parameters and statistics, in the model's order.
    weights : list of relax.Var
        Those of `params` that train.

    Raises
    ------
    MissingGradientError, NotDifferentiableError
    """

    def __init__(self, model: Model, forward: Forward, trained: Sequence[str], rules: str):
        program = inline_calls(forward.mod, FORWARD, rules)
        count = len(model.inputs) + (forward.targets is not None)
        self.arguments, owned = program.params[:count], program.params[count:]
        self.seed = [owned.pop()] if forward.seeded else []
        self.params, self.state = owned[: len(model.params)], owned[len(model.params) :]
        by_name = dict(zip(model.params, self.params, strict=True))
        self.weights = [by_name[name] for name in trained]
        for weight in self.weights:
            check_target(weight)
        self._kernels = kernels(forward.mod)
        self._program, self._activity = expand(program, self.weights)

    def emit(
        self, emitter: Emitter, statistics: Sequence[Any] | None = None
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Emit the loss, the gradients of the weights, and the new statistics.

        The last are none where nothing updates them: a model without batch norm.

        Parameters
        ----------
        statistics : sequence of Tensor, optional
            What the forward pass takes for `state`; by default that.
        """
        program = self._program
        taken = dict(zip(self.state, statistics or self.state, strict=True))
        values = [taken.get(param, param) for param in program.params]
        environment = emit_program(program, emitter.builder, values)
        loss_expr, _, state = substitute(program.result, environment).fields
        loss = emitter.lift(loss_expr)
        seed = [emitter.full(1.0, [], loss.dtype), None, None]
        gradients = backward(emitter, program, environment, self._activity, seed, self.weights)
        return loss, gradients, [emitter.lift(statistic) for statistic in state.fields]

    def write(
        self, name: str, params: Sequence[Any], body: Callable[[Emitter], Any]
    ) -> tvm.IRModule:
        """Return a module with a new function, as `write_function`, and the kernels it calls."""
        pure, dataflow = self._program.pure, self._program.dataflow
        return write_function(self._kernels, name, params, body, pure=pure, dataflow=dataflow)
