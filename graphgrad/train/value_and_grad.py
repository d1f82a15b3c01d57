"""`value_and_grad`: a function from a model's inputs to its outputs and gradients, in numpy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..autodiff.activity import has_cotangent, select
from ..autodiff.vjp import vjp_of_program
from ..errors import ArgumentError, InputError
from ..frontend.model import Model
from ..ir.tensor import type_shape
from ..memory.budget import MemoryBudget
from ..precision.choice import Precision
from ..runtime.synchronized import one_at_a_time
from .forward import FORWARD, Forward, LossChoice
from .inputs import Inputs, check_seed, check_types, names_in, owned_types, placed, read_arrays
from .on_device import ModelOnDevice, Shapes, Tensors
from .recent import Recent
from .recipe import WrtNames, objective
from .tensors import as_arrays, in_own_memory

LOSS = "loss"
TARGETS = "targets"

Results = dict[str, Any]
"""Arrays of numpy, or tensors on the device, by ONNX name."""


def value_and_grad(
    model: Model,
    wrt: str | Sequence[str] | None = None,
    loss: LossChoice = None,
    training: bool | None = None,
    rules: str = "auto",
    target: Any = "llvm",
    winograd: bool = True,
    precision: str | Precision = "float32",
    memory: int | float | MemoryBudget | None = None,
    as_numpy: bool = True,
    libraries: bool = True,
) -> ValueAndGrad:
    """A function that computes a model's outputs and their gradients.

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
    rules : "auto" or "derived"
        As of `graphgrad.vjp`.
    target : str, dict or Target
    winograd : bool
        As of `graphgrad.compile`.
    precision : str or Precision
        As of `train_step`. Outputs and gradients keep the dtypes that they have in the model.
    memory : int, float or MemoryBudget, optional
        As of `train_step`. Outputs and gradients count.
    as_numpy : bool
        Whether results are copied to numpy. If not, they are tensors of TVM on the device, which
        other frameworks take over by ``from_dlpack`` without a copy; on a GPU they may still be
        being computed, on its default stream.
    libraries : bool
        As of `graphgrad.compile`.

    Returns
    -------
    ValueAndGrad
        ``f(inputs, cotangent=None, seed=0) -> (outputs, gradients)``.

    Raises
    ------
    ArgumentError
        A name or value is unknown.
    MissingGradientError
        Some ops have no gradient; the error lists all of them.
    TargetError
        There is no such target.
    DeviceError
        This machine has no device for the target.

    Examples
    --------
    >>> f = gg.value_and_grad(model, wrt=["fc.weight"])
    >>> outputs, gradients = f({"x": x}, cotangent=np.ones((8, 10), "float32"))
    """
    return ValueAndGrad(
        model, wrt, loss, training, rules, target, winograd, precision, memory, as_numpy, libraries
    )


class ValueAndGrad(ModelOnDevice):
    """Outputs and gradients of a model; made by `value_and_grad`.

    It reads the model's parameters at each call, so changes of ``model.params`` count.
    """

    how_to_keep = "pickle the model, and call graphgrad.value_and_grad where it is needed"

    def __init__(
        self,
        model: Model,
        wrt: str | Sequence[str] | None,
        loss: LossChoice,
        training: bool | None,
        rules: str,
        target: Any,
        winograd: bool = True,
        precision: str | Precision = "float32",
        memory: int | float | MemoryBudget | None = None,
        as_numpy: bool = True,
        libraries: bool = True,
    ):
        if not isinstance(as_numpy, bool):
            raise ArgumentError(f"as_numpy={as_numpy!r} must be True or False")
        self._as_numpy = as_numpy
        checked = objective(
            model, loss, wrt, target, rules, winograd, precision, memory, training, named_values,
            libraries,
        )  # fmt: skip
        super().__init__(checked)
        if LOSS in model.outputs and loss is not None and checked.loss.output is None:
            raise ArgumentError(
                f"the model has an output {LOSS!r} of its own, so the value of another loss has no "
                "name; differentiate that output, or give no loss and a cotangent"
            )
        self._compiled: Recent[Shapes, Callable[..., Any]] = Recent(self._limit)

    @one_at_a_time
    def __call__(
        self, inputs: Inputs, cotangent: Any = None, seed: int = 0
    ) -> tuple[Results, Results]:
        """Compute outputs and gradients.

        Parameters
        ----------
        inputs : dict of arrays, or an array for a model with one input
            With a loss that takes targets, also ``targets``.
        cotangent : array or dict of arrays, optional
            For the first output, or by output name, but no list of arrays; an output that is left
            out of a dict has a zero cotangent. May be missing only if there is a loss or a single
            scalar output.
        seed : int
            Decides what dropouts in training form drop; from 0, below 2³¹.

        Returns
        -------
        outputs, gradients : dict of arrays, by ONNX name
            A gradient has the shape and dtype of its value. With ``as_numpy=False`` tensors on the
            device, in memory of their own.

        Raises
        ------
        InputError
            An array or cotangent does not fit.
        OutOfMemoryError
            The device has too little memory.
        DeviceError
            The device failed.
        """
        arguments, forward, shapes = self._arguments(inputs, seed)
        arguments += self._cotangents(forward, cotangent)
        results = self._function(forward, shapes)(*arguments)
        if not self._as_numpy:
            results = in_own_memory(results, arguments)
        values, gradients = results
        return self._outputs(values), self._by_wrt(gradients)

    def _function(self, forward: Forward, shapes: Shapes) -> Callable[..., Any]:
        """The compiled function for shapes of the inputs."""
        return self._compiled.get(shapes, lambda: self._compile_function(forward))

    def _arguments(self, inputs: Inputs, seed: int) -> tuple[list[Any], Forward, Shapes]:
        """What the forward pass of a call is called with, itself, and the shapes of the inputs."""
        named_inputs = dict(inputs) if isinstance(inputs, Mapping) else inputs
        targets = named_inputs.pop(TARGETS, None) if self._takes_targets(named_inputs) else None
        call_inputs = self._call_inputs(named_inputs)
        forward = self._forward(call_inputs)
        seeds = self._seeds(check_seed(seed) << 32, call_inputs.shapes)
        arguments = [
            *call_inputs.tensors.values(),
            *self._targets(targets, forward),
            *self._owned(),
            *([self._staging.queue("the seed", seeds)] if forward.seeded else []),
        ]
        return arguments, forward, call_inputs.shapes

    def _seeds(self, word: int, shapes: Shapes) -> np.ndarray:
        """The seed that the forward pass takes if it drops values."""
        return np.array(word)

    def _outputs(self, values: Any) -> Results:
        """The results of the forward pass by name, without the statistics."""
        *losses, outputs_of_model, _ = values
        outputs = dict(zip(self._model.outputs, outputs_of_model, strict=True))
        if self._objective.loss.is_given:
            outputs = {LOSS: losses[0], **outputs}
        return self._given(outputs)

    def _by_wrt(self, values: Any) -> Results:
        """Values of what is differentiated, by name."""
        return self._given(dict(zip(self._objective.wrt, values, strict=True)))

    def _given(self, tensors: Tensors) -> Results:
        """Results as the caller wants them."""
        return as_arrays(tensors) if self._as_numpy else tensors

    def _compile_function(self, forward: Forward) -> Callable[..., Any]:
        """The compiled function from arguments and cotangents to results and gradients."""
        forward = self._objective.with_attention(forward)
        wrt = select(forward.program, self._objective.wrt_variables)
        mod = vjp_of_program(forward.program, wrt)
        name = f"{FORWARD}_vjp"
        return self._compile(mod, name, "a gradient", self._objective.budget(name))

    def _owned(self) -> list[Any]:
        """The model's parameters and statistics of this moment, checked."""
        model = self._model
        arrays = {**model.params, **model.state}
        types = owned_types(model)
        if list(arrays) != list(types):
            raise InputError("parameters were added to or removed from the model since it was made")
        current = read_arrays(arrays, self._device, "parameter")
        check_types(current, types, "parameter")
        return list(placed(current, self._staging, "parameter").values())

    def _takes_targets(self, inputs: Any) -> bool:
        """Whether an entry named ``targets`` is that of the loss, and not an input of the model."""
        return isinstance(inputs, dict) and TARGETS not in self._model.inputs

    def _cotangents(self, forward: Forward, cotangent: Any) -> list[Any]:
        """A cotangent for each float value that the forward function returns."""
        types = dict(zip(self._model.outputs, forward.outputs, strict=True))
        given_cotangents = self._named_cotangents(types, cotangent)
        types_of_results = forward.program.result.ty.fields
        arrays = [
            *(
                given_cotangents[name] if name in given_cotangents else _zeros(name, ty)
                for name, ty in types.items()
            ),
            *(_zeros("a statistic", ty) for ty in types_of_results[-1].fields),
        ]
        if self._objective.loss.is_given:
            # The loss is the first result, and what is differentiated.
            arrays.insert(0, np.ones((), str(types_of_results[0].dtype)))
        present = [array for array in arrays if array is not None]
        # None: values that are no floats, for which the function takes no cotangent.
        # By number, because the values of statistics have no names.
        numbered = {str(number): array for number, array in enumerate(present)}
        return list(placed(numbered, self._staging, "cotangent number").values())

    def _named_cotangents(self, types: Mapping[str, Any], cotangent: Any) -> dict[str, Any]:
        """The cotangents that the caller gave, by output, checked; none where there is a loss."""
        if self._objective.loss.is_given:
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
        _refuse_several(cotangent, list(types))
        by_output = dict(cotangent) if isinstance(cotangent, Mapping) else {first: cotangent}
        for name in by_output:
            if name not in types:
                raise InputError(f"the model has no output {name!r} for a cotangent: {list(types)}")
            if not has_cotangent(types[name]):
                raise InputError(
                    f"cotangent {name!r}: the output is {types[name].dtype}, not float"
                )
        arrays = read_arrays(by_output, self._device, "cotangent")
        check_types(arrays, types, "cotangent")
        return arrays


def named_values(model: Model, wrt: WrtNames) -> list[str]:
    """The names of the values that are differentiated."""
    names = model.trainable() if wrt is None else names_in(wrt)
    if not names:
        raise ArgumentError("wrt: the model has no parameter that can train; name some values")
    return names


def _refuse_several(cotangent: Any, outputs: Sequence[str]) -> None:
    """Raise if a cotangent is a list of arrays, which could be read as one array, or as several."""
    is_several = isinstance(cotangent, list | tuple) and any(
        part is None or hasattr(part, "__dlpack__") for part in cotangent
    )
    if is_several:
        raise InputError(
            f"cotangent is a {type(cotangent).__name__} of arrays; give one array, for the output "
            f"{outputs[0]!r}, or a dict of arrays by the names of outputs: {outputs}"
        )


def _zeros(name: str, ty: Any) -> np.ndarray | None:
    """The cotangent of an output that was left out; None for one that has none."""
    if not has_cotangent(ty):
        return None
    shape = type_shape(ty)
    if not all(isinstance(extent, int) for extent in shape):
        raise InputError(
            f"the shape of output {name!r} depends on data: give its cotangent, zeros if need be"
        )
    return np.zeros(shape, str(ty.dtype))
