"""A model's forward pass: specialized and inlined once, then bound to shapes, with its loss.

An `InlinedModel` is the model as one straight-line `Program` for any shapes of its inputs. Its
`forward` makes further programs of that one: for concrete shapes, with the loss behind it, in a
layout.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import tvm
from tvm import relax

from ..autodiff.activity import analyze, has_cotangent
from ..autodiff.reverse import Gradients
from ..errors import ArgumentError, InputError
from ..frontend.mode import specialize
from ..frontend.model import Model
from ..ir.arrays import to_numpy
from ..ir.calls import result_types
from ..ir.inline import bind_extents, inline_calls
from ..ir.program import Program, emit_program, substitute
from ..ir.provenance import span_of
from ..ir.tensor import Emitter, Tensor, has_shape, is_float, type_shape
from ..ir.write import continue_program
from ..layout.choice import MODEL_LAYOUT, Layout
from ..ops.group_norm_pattern import STANDS_FOR_IT, fuse_group_norms
from ..precision.choice import Precision
from ..precision.mixed import mix_precision
from ..registry.rule import has_users_rule
from .loss import LOSSES, Loss, check_target_shape
from .loss_scale import LossScale
from .shapes import Shaped, bind_dimensions, fits, shape_text

LossChoice: TypeAlias = str | Loss | Any | None
"""A name in `LOSSES`, one of `graphgrad.loss`, the name of a scalar output of the model, or a Relax
function of the model's outputs and the targets that returns a scalar."""

FORWARD = "graphgrad.forward"
"""Name of the function. Names that begin with ``graphgrad.`` are not left to kernels of models."""
_LOSS = "loss"


class ResolvedLoss:
    """A loss that was chosen, resolved for a model.

    Parameters
    ----------
    model : Model
    choice : LossChoice

    Raises
    ------
    ArgumentError
        The choice is no loss, or names an output that is no float scalar.
    """

    def __init__(self, model: Model, choice: LossChoice):
        self.named: Loss | None = None
        self.output: int | None = None
        self.program: Program | None = None
        if isinstance(choice, relax.Function):
            _check_function(choice, len(model.outputs))
            self.program = inline_calls(tvm.IRModule({_LOSS: choice}), _LOSS)
        # Before names of losses: an output that is called "mse" is meant by that name.
        elif isinstance(choice, str) and choice in model.outputs:
            self.output = model.outputs.index(choice)
            _check_scalar(
                f"the model's output {choice!r}",
                result_types(model.mod["main"].ret_ty)[self.output],
            )
        elif isinstance(choice, str) and choice in LOSSES:
            self.named = LOSSES[choice]
        elif isinstance(choice, Loss):
            self.named = choice
        elif choice is not None:
            raise ArgumentError(
                f"loss={choice!r} is unknown: give one of {sorted(LOSSES)}, one of "
                f"graphgrad.loss, a scalar output of the model ({model.outputs}), or a Relax "
                "function of outputs and targets"
            )

    @property
    def is_given(self) -> bool:
        """Whether there is a loss at all; `value_and_grad` also differentiates without one."""
        return any(choice is not None for choice in (self.named, self.output, self.program))

    def bind(self, outputs: Sequence[Any]) -> ResolvedLoss:
        """The loss for outputs of given types: a Relax function gets concrete shapes.

        Raises
        ------
        ArgumentError
            The outputs do not fit the function's parameters.
        """
        if self.program is None:
            return self
        extents: dict[Any, int] = {}
        pairs = list(zip(self.program.params, outputs, strict=False))
        for param, output in pairs:
            bind_dimensions(type_shape(param.ty), type_shape(output), extents)
        for param, output in pairs:
            expected, shape = type_shape(param.ty), type_shape(output)
            if str(param.ty.dtype) != str(output.dtype) or not fits(expected, shape, extents):
                raise ArgumentError(
                    f"the loss function takes {param.name!r} as {param.ty.dtype} of shape "
                    f"{shape_text(expected, extents)}, but the model's output is {output.dtype} "
                    f"of shape {tuple(shape)}"
                )
        bound = copy.copy(self)  # the loss itself serves outputs of other shapes, too
        bound.program = bind_extents(self.program, extents)
        return bound

    def check_gradient(self, rules: str) -> None:
        """Raise `MissingGradientError` if ops of a Relax function have no gradient."""
        if self.program is not None:
            program = replace(self.program, rules=rules)
            analyze(program, [param for param in program.params if has_cotangent(param.ty)])

    def target_type(self, outputs: Sequence[Any]) -> relax.TensorType | None:
        """The type of the targets for outputs of given types, None if it takes none."""
        if self.named is not None:
            return self.named.target_type(outputs[0])
        if self.program is not None and len(self.program.params) > len(outputs):
            return self.program.params[-1].ty
        return None

    def prepare(self, targets: np.ndarray, outputs: Sequence[Any]) -> np.ndarray:
        """Targets in the dtype that the loss takes.

        Raises
        ------
        InputError
            They cannot be that.
        """
        if self.named is not None:
            return self.named.prepare(targets, outputs[0])
        assert self.program is not None
        expected = str(self.program.params[-1].ty.dtype)
        # float64 may become float32, and integers floats, but floats no integers.
        if not np.can_cast(targets.dtype, np.dtype(expected), "same_kind"):
            raise InputError(f"targets: expected dtype {expected}, given {targets.dtype}")
        return targets.astype(expected)

    def divisor(self, inputs: Sequence[Any], outputs: Sequence[Any], targets: Any) -> Any:
        """How much the loss of a batch counts among others: what its mean divides by.

        Parameters
        ----------
        inputs, outputs : sequence of types
            Of the model, with concrete shapes.
        targets : Tensor or None

        Returns
        -------
        float, or a float64 scalar that is emitted
            Of a loss whose mean is not known, a Relax function or an output of the model, the
            number of examples: the first extent of the first input.
        """
        if self.named is not None:
            return self.named.divisor(outputs[0], targets)
        return float(type_shape(inputs[0])[0]) if inputs and type_shape(inputs[0]) else 1.0

    def emit(self, emitter: Emitter, outputs: Sequence[Any], targets: Any = None) -> Any:
        """Emit the loss of a batch, a scalar; `targets` is None where it takes none."""
        if self.named is not None:
            return self.named.emit(outputs[0], emitter.lift(targets))
        if self.output is not None:
            return outputs[self.output]
        assert self.program is not None
        arguments = [output.expr for output in outputs]
        if targets is not None:
            arguments.append(targets)
        environment = emit_program(self.program, emitter.builder, arguments)
        return emitter.lift(substitute(self.program.result, environment))


def _check_function(function: relax.Function, outputs: int) -> None:
    """Raise unless a loss takes `outputs` outputs, then perhaps targets, and returns a scalar."""
    count = len(function.params)
    if count not in (outputs, outputs + 1):
        raise ArgumentError(
            f"the loss function takes {count} parameter(s); it must take the model's "
            f"{outputs} output(s), and the targets behind them if it needs any"
        )
    _check_scalar("the loss function's result", function.ret_ty)


def _check_scalar(subject: str, ty: Any) -> None:
    """Raise unless a type is that of a float scalar; `subject` names the value in the error."""
    if not isinstance(ty, relax.TensorType) or ty.ndim != 0 or not is_float(str(ty.dtype)):
        raise ArgumentError(f"{subject} is of type {ty}, but a loss is a float scalar")


@dataclass(frozen=True)
class Forward:
    """A forward pass for concrete input shapes.

    Attributes
    ----------
    model : Model
    loss : ResolvedLoss
    program : Program
        ``forward(*inputs, [targets], *params, *state, [seed]) -> (loss, outputs, new state)``.
        Without a loss the first element of the result is missing.
    targets : relax.TensorType or None
        The type of the targets, if the loss takes any.
    outputs : list of types
        Of the model's outputs.
    """

    model: Model
    loss: ResolvedLoss
    program: Program
    targets: relax.TensorType | None
    outputs: list[Any]

    @property
    def arguments(self) -> list[Any]:
        """The variables of the inputs, and of the targets if the loss takes any."""
        return self.program.params[: self._first]

    @property
    def params(self) -> list[Any]:
        """The variables of the parameters, in the model's order."""
        return self.program.params[self._first :][: len(self.model.params)]

    def weights(self, names: Sequence[str]) -> list[Any]:
        """The variables of some parameters."""
        by_name = dict(zip(self.model.params, self.params, strict=True))
        return [by_name[name] for name in names]

    @property
    def state(self) -> list[Any]:
        """The variables of the statistics, in the model's order."""
        return self.program.params[self._first + len(self.model.params) :][: len(self.model.state)]

    @property
    def seed(self) -> list[Any]:
        """The variable of the seed of dropouts, an int64 scalar, if there are any."""
        owned = len(self.model.params) + len(self.model.state)
        return self.program.params[self._first + owned :]

    @property
    def _first(self) -> int:
        """The position of the first parameter of the model among those of the program."""
        return len(self.model.inputs) + (self.targets is not None)

    @property
    def loss_dtype(self) -> str:
        """The dtype of the loss."""
        return str(self.program.result.ty.fields[0].dtype)

    @cached_property
    def seeded(self) -> bool:
        """Whether it takes a seed: it drops values."""
        return bool(self.seed)

    @cached_property
    def _target_shape(self) -> tuple[int, ...]:
        return tuple(type_shape(self.targets))

    @cached_property
    def _plain_outputs(self) -> list[Shaped]:
        """Dtypes and shapes of the outputs; of those that are no tensors, no shape."""
        return [
            Shaped(str(ty.dtype), tuple(type_shape(ty))) if has_shape(ty) else Shaped(None, ())
            for ty in self.outputs
        ]

    def emit(
        self,
        emitter: Emitter,
        gradients: Gradients,
        statistics: Sequence[Any] | None = None,
        scale: LossScale | None = None,
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Emit the loss, its gradients, and the new statistics.

        The last are none where nothing updates them: a model without batch norm.

        Parameters
        ----------
        emitter : Emitter
        gradients : Gradients
            Of `program`, which has a loss.
        statistics : sequence of expressions, optional
            What is taken for the model's statistics; by default those.
        scale : LossScale, optional
            What the loss is multiplied by for the backward pass. The gradients are those of the
            loss all the same.
        """
        replacement = dict(zip(self.state, statistics or self.state, strict=True))
        arguments = [replacement.get(param, param) for param in self.program.params]
        seed = emitter.full(1.0, [], self.loss_dtype)
        if scale is not None:
            seed = emitter.lift(scale.scale).astype(self.loss_dtype)
        # Outputs and new statistics have no cotangent.
        result, weight_gradients = gradients.emit(emitter, [seed, None, None], arguments)
        if scale is not None:
            weight_gradients = scale.unscaled(emitter, weight_gradients)
        loss, _, new_state = result.fields
        return (
            emitter.lift(loss),
            weight_gradients,
            [emitter.lift(statistic) for statistic in new_state.fields],
        )

    def target_array(self, targets: Any) -> np.ndarray | None:
        """The targets that it takes, checked and converted; None if it takes none.

        They are looked at on the host, because a label out of range would read beyond its row.

        Raises
        ------
        InputError
            Targets are missing, not wanted, or do not fit.
        """
        if self.targets is None:
            if targets is not None:
                raise InputError("targets were given, but there is no loss that takes any")
            return None
        if targets is None:
            raise InputError("targets are missing: the loss compares the outputs with targets")
        try:
            array = to_numpy(targets)
        except InputError as error:
            raise InputError(f"targets: {error}") from error
        array = self.loss.prepare(array, self._plain_outputs)
        check_target_shape(array, self._target_shape)
        return array


@dataclass(frozen=True)
class InlinedModel:
    """A model in training form or in inference form, for any input shapes.

    Attributes
    ----------
    model : Model
    program : Program
        ``main(*inputs, *params, *state, [seed]) -> (outputs, new state)``, see
        `frontend.mode.specialize`.
    """

    model: Model
    program: Program

    def for_layout(self, layout: Layout, keep: Collection[Any] = ()) -> InlinedModel:
        """The model with what is bound to the layout of its file said in another way, if it pays.

        Parameters
        ----------
        layout : Layout
            In which it is going to be computed.
        keep : collection of variables
            What must remain, because somebody asks for it by its name.
        """
        if not layout.converts or not self.program.calls(STANDS_FOR_IT):
            return self
        return replace(self, program=fuse_group_norms(self.program, keep, has_users_rule))

    def in_precision(self, precision: Precision, keep: Collection[str] = ()) -> InlinedModel:
        """The model computing in a precision; its parameters and results have the same dtypes.

        Parameters
        ----------
        precision : Precision
        keep : collection of str
            Names of values that keep their dtype, too.

        Raises
        ------
        ArgumentError
            See `mix_precision`.
        """
        if not precision.is_mixed:
            return self
        mixed = mix_precision(self.program, precision, self.model.weights, keep)
        return replace(self, program=mixed)

    def forward(
        self,
        loss: ResolvedLoss,
        shapes: Iterable[Sequence[int]],
        layout: Layout = MODEL_LAYOUT,
        keep: Collection[str] = (),
    ) -> Forward:
        """The forward pass with a loss, for concrete shapes.

        Parameters
        ----------
        loss : ResolvedLoss
        shapes : iterable of shapes
            Of the model's inputs; of a model without symbolic dimensions they may be left out.
        layout : Layout
            In which it takes parameters. Inputs, targets, statistics and results are as the model
            has them.
        keep : collection of str
            Names of values that stay as the model has them.

        Raises
        ------
        ArgumentError, ModelError
            The loss does not fit the model's outputs.
        """
        extents: dict[Any, int] = {}
        for param, shape in zip(self.program.params, shapes, strict=False):
            bind_dimensions(type_shape(param.ty), shape, extents)
        return self._with_loss(bind_extents(self.program, extents), loss, layout, keep)

    def for_any_shapes(self, loss: ResolvedLoss) -> Forward:
        """The forward pass with a loss, with the symbolic dimensions of the model.

        Raises
        ------
        ArgumentError, ModelError
            The loss does not fit the model's outputs.
        """
        return self._with_loss(self.program, loss, MODEL_LAYOUT, ())

    def _with_loss(
        self, program: Program, loss: ResolvedLoss, layout: Layout, keep: Collection[str]
    ) -> Forward:
        # Known only now: types of outputs are those for the concrete shapes.
        outputs = list(program.result.fields[0].ty.fields)
        bound = loss.bind(outputs)
        targets = bound.target_type(outputs)
        program = _with_loss(program, bound, targets, len(self.model.inputs))
        return Forward(self.model, bound, layout.of(program, keep), targets, outputs)


def inline_model(model: Model, training: bool | None, rules: str = "auto") -> InlinedModel:
    """Specialize and inline a model.

    Parameters
    ----------
    model : Model
    training : bool or None
        The mode of batch norms; None follows the file.
    rules : "auto" or "derived"
        Which gradient rules it is differentiated by.

    Raises
    ------
    ArgumentError, ModelError
    """
    return InlinedModel(model, inline_calls(specialize(model, training), "main", rules))


def _with_loss(program: Program, loss: ResolvedLoss, targets: Any, inputs: int) -> Program:
    """The forward pass of a model with its loss; targets come right behind the inputs.

    Parameters
    ----------
    program : Program
        As of `InlinedModel`.
    loss : ResolvedLoss
        For the program's outputs.
    targets : relax.TensorType or None
        Their type, if the loss takes any.
    inputs : int
        How many of the program's parameters are inputs.
    """
    if not loss.is_given:
        return replace(program, name=FORWARD)
    target_vars = [relax.Var("targets", targets)] if targets is not None else []

    def body(emitter: Emitter, result: Any) -> Any:
        outputs, state = result.fields
        with emitter.at(span_of(None, "loss"), "loss"):
            value = loss.emit(emitter, list(map(emitter.lift, outputs.fields)), *target_vars)
        return value, outputs, state

    params = [*program.params[:inputs], *target_vars, *program.params[inputs:]]
    return continue_program(program, FORWARD, params, body)
