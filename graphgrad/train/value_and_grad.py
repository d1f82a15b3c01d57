"""`value_and_grad`: outputs and gradients of a model, from numpy to numpy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ..autodiff.activity import has_cotangent
from ..autodiff.vjp import vjp
from ..errors import ArgumentError, InputError
from ..frontend.model import Model
from ..lower.arrays import to_tensor
from ..lower.device import device_of
from ..lower.pipeline import compile as compile_module
from ..lower.target import target as resolve_target
from ..ops.tensor import type_shape
from .forward import FORWARD, Forward, LossChoice, LossFunction, build_forward
from .inputs import Inputs, as_numpy, bind_shapes, by_name, shapes_of, tensors
from .loss import check_target_shape
from .state import Arrays

LOSS = "loss"
TARGETS = "targets"


def value_and_grad(
    model: Model,
    wrt: str | Sequence[str] | None = None,
    loss: LossChoice = None,
    training: bool | None = None,
    rules: str = "auto",
    target: Any = "llvm",
) -> ValueAndGrad:
    """Return a function that computes a model's outputs and their gradients.

    Parameters
    ----------
    model : Model
    wrt : name or names, optional
        Inputs, parameters, or any intermediate value of the model, by ONNX name. Default: every
        parameter that can train.
    loss : str or relax.Function, optional
        As of `train_step`. Its targets are given as one more input named ``targets``, its value
        is one more output named ``loss``, and that is what is differentiated.
    training : bool, optional
        The mode of batch norms; by default the file's.
    rules : "auto"
    target : str, dict or Target

    Returns
    -------
    ValueAndGrad
        ``f(inputs, cotangent=None) -> (outputs, gradients)``.

    Raises
    ------
    ArgumentError
        A name or value is unknown.

    Examples
    --------
    >>> f = gg.value_and_grad(model, wrt=["fc.weight"])
    >>> outputs, gradients = f({"x": x}, cotangent=np.ones((8, 10), "float32"))
    """
    return ValueAndGrad(model, wrt, loss, training, rules, target)


class ValueAndGrad:
    """Outputs and gradients of a model; made by `value_and_grad`.

    It reads the model's parameters at each call, so changes of ``model.params`` count.
    """

    def __init__(
        self,
        model: Model,
        wrt: str | Sequence[str] | None,
        loss: LossChoice,
        training: bool | None,
        rules: str,
        target: Any,
    ):
        names = [wrt] if isinstance(wrt, str) else wrt
        self._wrt = list(names) if names is not None else model.trainable()
        if not self._wrt:
            raise ArgumentError("wrt: the model has no parameter that can train; name some values")
        self._model = model
        self._loss = LossFunction(model, loss)
        self._training = training
        self._rules = rules
        self._target = resolve_target(target)
        self._device = device_of(self._target)
        self._input_types = {p.name: p.ty for p in model.mod["main"].params[: len(model.inputs)]}
        self._compiled: dict[Any, tuple[relax.VirtualMachine, Forward]] = {}

    def __call__(self, inputs: Inputs, cotangent: Any = None) -> tuple[Arrays, Arrays]:
        """Compute outputs and gradients.

        Parameters
        ----------
        inputs : dict of arrays, or an array for a model with one input
            With a loss that takes targets, also ``targets``.
        cotangent : array or dict of arrays, optional
            For the first output, or by output name; an output that is left out of a dict has a
            zero cotangent. May be missing only if there is a loss or a single scalar output.

        Returns
        -------
        outputs, gradients : dict of arrays, by ONNX name
            A gradient has the shape and dtype of its value.

        Raises
        ------
        InputError
            An array or cotangent does not fit.
        MissingGradientError
            Some ops have no gradient.
        """
        named = dict(inputs) if isinstance(inputs, Mapping) else inputs
        targets = named.pop(TARGETS, None) if self._takes_targets(named) else None
        given = tensors(by_name(named, self._model.inputs), self._device)
        extents = bind_shapes(given, self._input_types)
        key = shapes_of(given)
        if key not in self._compiled:
            forward = build_forward(self._model, self._loss, self._training, extents)
            mod = vjp(forward.mod, FORWARD, self._wrt, rules=self._rules)
            mod = tvm.IRModule({f"{FORWARD}_vjp": mod[f"{FORWARD}_vjp"]})
            vm = relax.VirtualMachine(compile_module(mod, self._target), self._device)
            self._compiled[key] = vm, forward
        vm, forward = self._compiled[key]
        cotangents = self._cotangents(forward, cotangent)
        arguments = [*given.values(), *self._targets(forward, targets)]
        owned = [*self._model.params.values(), *self._model.state.values()]
        parameters = [to_tensor(array, self._device) for array in owned]
        values, gradients = vm[f"{FORWARD}_vjp"](*arguments, *parameters, *cotangents)
        outputs = dict(zip(self._model.outputs, values[-2], strict=True))
        if self._loss.is_given:
            outputs = {LOSS: values[0], **outputs}
        return _numpy(outputs), _numpy(dict(zip(self._wrt, gradients, strict=True)))

    def _takes_targets(self, inputs: Any) -> bool:
        return isinstance(inputs, dict) and TARGETS not in self._model.inputs

    def _targets(self, forward: Forward, targets: Any) -> list[Any]:
        if forward.targets is None:
            if targets is not None:
                raise InputError("targets were given, but there is no loss that takes any")
            return []
        if targets is None:
            raise InputError(f"missing input {TARGETS!r}: the loss compares outputs with targets")
        array = as_numpy(targets)
        if self._loss.named is not None:
            array = self._loss.named.prepare(array, forward.outputs[0])
        check_target_shape(array, forward.targets)
        return [to_tensor(array, self._device, str(forward.targets.dtype))]

    def _cotangents(self, forward: Forward, cotangent: Any) -> list[Any]:
        """Return a cotangent for each float value that the forward function returns."""
        types = dict(zip(self._model.outputs, forward.outputs, strict=True))
        given = self._named_cotangents(types, cotangent)
        state = forward.mod[FORWARD].ret_ty.fields[-1].fields
        arrays = [_cotangent(name, given.get(name), ty) for name, ty in types.items()]
        arrays += [_zeros(ty) for ty in state]
        if self._loss.is_given:
            arrays.insert(0, np.ones((), str(forward.mod[FORWARD].ret_ty.fields[0].dtype)))
        return [to_tensor(array, self._device) for array in arrays if array is not None]

    def _named_cotangents(self, types: Mapping[str, Any], cotangent: Any) -> dict[str, Any]:
        if self._loss.is_given:
            if cotangent is not None:
                raise InputError("a cotangent was given, but the loss has cotangent 1")
            return {}
        first = self._model.outputs[0]
        if cotangent is None:
            if len(types) == 1 and not type_shape(types[first]):
                return {first: np.ones((), str(types[first].dtype))}
            raise InputError(
                f"the model's outputs {list(types)} are no single scalar: give a cotangent for "
                "the first, or a dict by name, or a loss"
            )
        named = dict(cotangent) if isinstance(cotangent, Mapping) else {first: cotangent}
        unknown = [name for name in named if name not in types]
        if unknown:
            raise InputError(f"cotangent: the model has no output(s) {unknown}, only {list(types)}")
        return named


def _zeros(ty: Any) -> np.ndarray | None:
    return np.zeros(type_shape(ty), str(ty.dtype)) if has_cotangent(ty) else None


def _cotangent(name: str, value: Any, ty: Any) -> np.ndarray | None:
    if value is None:
        return _zeros(ty)
    if not has_cotangent(ty):
        raise InputError(f"cotangent: output {name!r} is {ty.dtype} and has none")
    array = as_numpy(value)
    if array.shape != tuple(type_shape(ty)) or str(array.dtype) != str(ty.dtype):
        raise InputError(
            f"cotangent of {name!r}: expected {ty.dtype}{tuple(type_shape(ty))}, given "
            f"{array.dtype}{array.shape}"
        )
    return array


def _numpy(values: Mapping[str, Any]) -> Arrays:
    return {name: value.numpy().copy() for name, value in values.items()}
