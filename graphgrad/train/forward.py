"""A model's forward pass with its loss, as one Relax function for concrete shapes."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import tvm
from tvm import relax

from ..autodiff.activity import analyze, has_cotangent
from ..autodiff.vjp import select
from ..errors import ArgumentError, InputError
from ..frontend.mode import is_seeded, specialize
from ..frontend.model import Model
from ..ir.inline import inline_calls
from ..ir.program import emit_program, substitute
from ..ir.provenance import span_of
from ..ir.tensor import Emitter, is_float, type_shape
from ..ir.write import write_function
from ..layout.choice import Layout
from .loss import LOSSES, Loss
from .shapes import Shaped, bind_dimensions, fits, shape_text

LossChoice: TypeAlias = str | Loss | Any | None
"""A name in `LOSSES`, one of `graphgrad.loss`, the name of a scalar output of the model, or a Relax
function of the model's outputs and the targets that returns a scalar."""

FORWARD = "forward"
_LOSS = "loss"


@dataclass(frozen=True)
class Forward:
    """A forward pass for concrete input shapes.

    Attributes
    ----------
    mod : IRModule
        With ``forward(*inputs, [targets], *params, *state, [seed]) -> (loss, outputs, new state)``.
        Without a loss the first element of the result is missing.
    targets : relax.TensorType or None
        The type of the targets, if the loss takes any.
    outputs : list of types
        Of the model's outputs.
    seeded : bool
        Whether it takes a seed, an int64 scalar: it drops values.
    """

    mod: tvm.IRModule
    targets: relax.TensorType | None
    outputs: list[Any]
    seeded: bool

    @cached_property
    def target_shape(self) -> tuple[int, ...]:
        """The shape of the targets, of a loss that takes any."""
        return tuple(type_shape(self.targets))

    @cached_property
    def plain_outputs(self) -> list[Shaped]:
        """Dtypes and shapes of the outputs; of those that are no tensors, no shape."""
        return [
            Shaped(str(ty.dtype), tuple(type_shape(ty)))
            if isinstance(ty, relax.TensorType) and isinstance(ty.shape, relax.ShapeExpr)
            else Shaped(None, ())
            for ty in self.outputs
        ]


class LossFunction:
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
        self.function: relax.Function | None = None
        if isinstance(choice, relax.Function):
            self.function = choice
            self._check_function(len(model.outputs))
        elif isinstance(choice, str) and choice in model.outputs:
            self.output = model.outputs.index(choice)
            _check_scalar(f"the model's output {choice!r}", _output_types(model)[self.output])
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
        """Whether there is a loss at all."""
        return any(x is not None for x in (self.named, self.output, self.function))

    def _check_function(self, outputs: int) -> None:
        assert self.function is not None
        count = len(self.function.params)
        if count not in (outputs, outputs + 1):
            raise ArgumentError(
                f"the loss function takes {count} parameter(s); it must take the model's "
                f"{outputs} output(s), and the targets behind them if it needs any"
            )
        _check_scalar("the loss function's result", self.function.ret_ty)

    def bind(self, outputs: Sequence[Any]) -> LossFunction:
        """Return the loss for outputs of given types: a Relax function gets concrete shapes.

        Raises
        ------
        ArgumentError
            The outputs do not fit the function's parameters.
        """
        if self.function is None:
            return self
        extents: dict[Any, int] = {}
        pairs = list(zip(self.function.params, outputs, strict=False))
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
        bound = copy.copy(self)
        bound.function = _bind(tvm.IRModule({_LOSS: self.function}), _LOSS, extents)[_LOSS]
        return bound

    def check_gradient(self, rules: str) -> None:
        """Raise `MissingGradientError` if ops of a Relax function have no gradient."""
        if self.function is not None:
            program = inline_calls(tvm.IRModule({_LOSS: self.function}), _LOSS, rules)
            analyze(program, [param for param in program.params if has_cotangent(param.ty)])

    def target_type(self, outputs: Sequence[Any]) -> relax.TensorType | None:
        """Return the type of the targets for outputs of given types, None if it takes none."""
        if self.named is not None:
            return self.named.target_type(outputs[0])
        if self.function is not None and len(self.function.params) > len(outputs):
            return self.function.params[-1].ty
        return None

    def prepare(self, targets: np.ndarray, outputs: Sequence[Any]) -> np.ndarray:
        """Return targets in the dtype that the loss takes.

        Raises
        ------
        InputError
            They cannot be that.
        """
        if self.named is not None:
            return self.named.prepare(targets, outputs[0])
        assert self.function is not None
        expected = str(self.function.params[-1].ty.dtype)
        if not np.can_cast(targets.dtype, np.dtype(expected), "same_kind"):
            raise InputError(f"targets: expected dtype {expected}, given {targets.dtype}")
        return targets.astype(expected)

    def divisor(self, inputs: Sequence[Any], outputs: Sequence[Any], targets: Any) -> Any:
        """Return how much the loss of a batch counts among others: what its mean divides by.

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

    def emit(self, emitter: Emitter, outputs: Sequence[Any], targets: Any) -> Any:
        """Emit the loss of a batch, a scalar; `targets` is None where it takes none."""
        if self.named is not None:
            return self.named.emit(outputs[0], emitter.lift(targets))
        if self.output is not None:
            return outputs[self.output]
        program = inline_calls(tvm.IRModule({_LOSS: self.function}), _LOSS)
        arguments = [output.expr for output in outputs]
        if targets is not None:
            arguments.append(targets)
        environment = emit_program(program, emitter.builder, arguments)
        return emitter.lift(substitute(program.result, environment))


def _output_types(model: Model) -> list[Any]:
    ty = model.mod["main"].ret_ty
    return list(ty.fields) if isinstance(ty, relax.TupleType) else [ty]


def _check_scalar(what: str, ty: Any) -> None:
    if not isinstance(ty, relax.TensorType) or ty.ndim != 0 or not is_float(str(ty.dtype)):
        raise ArgumentError(f"{what} is of type {ty}, but a loss is a float scalar")


def differentiated(
    model: Model,
    loss: LossFunction,
    training: bool | None,
    wrt: Sequence[str],
    rules: str,
) -> list[str]:
    """Return the names in the model's function of the values that `wrt` names.

    Raises
    ------
    ArgumentError
        A name is unknown, or `rules` is.
    NotDifferentiableError
        A value is no float tensor.
    MissingGradientError
        Some ops of the model or of its loss have no gradient; all of the model's are listed.
    """
    main = inline_calls(specialize(model, training), "main", rules)
    targets = select(main, wrt)
    analyze(main, targets)
    loss.check_gradient(rules)
    return [var.name for var in targets]


def build_forward(
    model: Model,
    loss: LossFunction,
    training: bool | None,
    extents: Mapping[Any, int],
) -> Forward:
    """Write a model's forward pass and its loss for concrete shapes.

    Parameters
    ----------
    model : Model
    loss : LossFunction
    training : bool or None
        The mode of batch norms; None follows the file.
    extents : mapping
        The symbolic dimensions of the model's inputs to their extents.

    Raises
    ------
    ArgumentError, ModelError
        The loss does not fit the model's outputs.
    """
    specialized = specialize(model, training)
    program = inline_calls(bind(specialized, "main", model, extents), "main")
    output_types = list(program.result.fields[0].ty.fields)
    bound = loss.bind(output_types)
    target_type = bound.target_type(output_types)
    targets = relax.Var("targets", target_type) if target_type is not None else None

    def body(emitter: Emitter) -> Any:
        environment = emit_program(program, emitter.builder)
        results, state = substitute(program.result, environment).fields
        outputs = [emitter.lift(output) for output in results.fields]
        if not bound.is_given:
            return tuple(outputs), state
        with emitter.at(span_of(None, "loss"), "loss"):
            loss = bound.emit(emitter, outputs, targets)
        return loss, tuple(outputs), state

    count = len(model.inputs)
    extra = [targets] if targets is not None else []
    params = [*program.params[:count], *extra, *program.params[count:]]
    mod = write_function(
        kernels(model.mod), FORWARD, params, body, pure=program.pure, dataflow=program.dataflow
    )
    return Forward(mod, target_type, output_types, is_seeded(specialized))


def laid_out(forward: Forward, layout: Layout, keep: Collection[str] = ()) -> Forward:
    """Return a forward pass in a layout: it takes parameters as that stores them.

    Inputs, targets, statistics and results are those of the model, and so are the values whose
    names are in `keep`.
    """
    return replace(forward, mod=layout.of(forward.mod, FORWARD, keep))


def kernels(mod: tvm.IRModule) -> tvm.IRModule:
    """Return a module's PrimFuncs alone; its Relax functions have been inlined."""
    functions = mod.functions.items()
    return tvm.IRModule({gv: f for gv, f in functions if not isinstance(f, relax.Function)})


def bind(mod: tvm.IRModule, name: str, model: Model, extents: Mapping[Any, int]) -> tvm.IRModule:
    """Replace the symbolic input dimensions of a function by concrete extents.

    `extents` is keyed by the dimensions of ``model.mod["main"]``; the function of that name in
    `mod` takes the same inputs, in the same order.
    """
    values: dict[Any, int] = {}
    originals = model.mod["main"].params[: len(model.inputs)]
    for original, param in zip(originals, mod[name].params, strict=False):
        for dimension, renamed in zip(type_shape(original.ty), type_shape(param.ty), strict=True):
            if dimension in extents and isinstance(renamed, tvm.tirx.Var):
                values[renamed] = extents[dimension]
    return _bind(mod, name, values)


def _bind(mod: tvm.IRModule, name: str, extents: Mapping[Any, int]) -> tvm.IRModule:
    return relax.transform.BindSymbolicVars(extents, name)(mod) if extents else mod
