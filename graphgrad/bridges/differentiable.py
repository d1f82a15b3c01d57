"""A model as a function of tensors in a row, and its derivatives of any order as such functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import tvm

from ..autodiff.activity import has_cotangent
from ..errors import ArgumentError, InputError
from ..frontend.model import Model
from ..ir.program import Program
from ..ir.tensor import is_float, type_shape
from ..ir.write import write_program
from ..runtime.synchronized import one_at_a_time
from ..train.forward import FORWARD
from ..train.inputs import (
    Array,
    bind_shapes,
    check_types,
    owned_types,
    placed,
    read_arrays,
    shapes_of,
)
from ..train.on_device import ModelOnDevice, Shapes
from ..train.recent import Recent
from ..train.recipe import Objective, WrtNames, objective
from ..train.shapes import Shaped, shape_text
from ..train.tensors import in_own_memory
from .derivative import ITSELF, Derivative, Part, differentiate, flat_types
from .extents import bind_symbols, evaluate
from .host_function import HostFunction, host_function
from .residuals import Split, split

_NUMBERS = count()
_BY_NUMBER: WeakValueDictionary[int, Differentiable] = WeakValueDictionary()


def numbered(number: int) -> Differentiable:
    """The function that a framework's program names by its number."""
    return _BY_NUMBER[number]


def differentiable(
    model: Model,
    training: bool | None,
    target: Any = "llvm",
    rules: str = "auto",
    winograd: bool = True,
    precision: Any = "float32",
) -> Differentiable:
    """A model in one of its forms; see `graphgrad.value_and_grad` for the arguments.

    Raises
    ------
    ArgumentError
        A value is unknown; the target is no processor, which are all that bridges serve so far.
    MissingGradientError
        Some ops on the way to the parameters have no gradient; the error lists all of them.
    """
    checked = objective(
        model, None, None, target, rules, winograd, precision, None, training, _differentiated
    )
    if str(checked.target.kind.name) != "llvm":
        raise ArgumentError(
            f"target={target!r}: models in other frameworks run on processors so far; leave the "
            "target out, or call graphgrad.value_and_grad with it"
        )
    return Differentiable(checked)


def _differentiated(model: Model, wrt: WrtNames) -> list[str]:
    """What has a gradient for sure: what trains, or else the inputs; checked before any call."""
    floats = [name for name, (_, dtype) in model.input_types().items() if is_float(dtype)]
    return model.trainable() or floats


class Differentiable(ModelOnDevice):
    """A function from inputs, parameters, statistics and perhaps a seed to outputs and statistics.

    Attributes
    ----------
    number : int
        By which the ops of frameworks name it, whose arguments are plain values.
    is_seeded : bool
        Whether its last argument is the seed of dropouts, an int64 scalar.
    updates : bool
        Whether its last results are new statistics.
    float_outputs : tuple of int
        The positions of the outputs that have cotangents.
    """

    how_to_keep = "pickle the model, and build it where it is needed"

    def __init__(self, checked: Objective):
        super().__init__(checked)
        self._program = checked.inlined.program
        model = checked.model
        self._groups = {
            "input": list(model.inputs),
            "parameter": list(model.params),
            "statistic": list(model.state),
        }
        self.is_seeded = len(self._program.params) > sum(map(len, self._groups.values()))
        if self.is_seeded:
            self._groups["seed"] = ["of dropouts"]
        self._programs: Recent[tuple[Derivative, Shapes], Program] = Recent(self._limit)
        self._splits: Recent[tuple[Derivative, Shapes], Split | None] = Recent(self._limit)
        self._compiled: Recent[tuple[Derivative, Part, Shapes], Callable[..., Any]] = Recent(
            self._limit
        )
        outputs, statistics = self._program.result.ty.fields
        self.updates = len(statistics.fields) > 0
        self.float_outputs = tuple(n for n, ty in enumerate(outputs.fields) if has_cotangent(ty))
        self.number = next(_NUMBERS)
        _BY_NUMBER[self.number] = self

    @one_at_a_time
    def call(
        self, derivative: Derivative, tensors: Sequence[Any], part: Part = "whole"
    ) -> list[tvm.runtime.Tensor]:
        """Compute the function, or one of its derivatives.

        Parameters
        ----------
        derivative : Derivative
        tensors : sequence of arrays
            The arguments; of a derivative, behind them the cotangents of all its steps, and of its
            backward part what was kept. Those that are aligned and contiguous are read where they
            are.
        part : Part
            Another than the whole only where `split` gives one.

        Returns
        -------
        list of Tensor
            Outputs and new statistics, or gradients, in memory that nothing else has; of a forward
            part, what is kept behind them.

        Raises
        ------
        InputError
            An argument does not fit the model.
        """
        groups = dict(self._read(tensors))
        shapes = shapes_of(groups["input"])
        if derivative == ITSELF or (part == "forward" and derivative[:-1] == ITSELF):
            self._check_arguments(groups)
        arguments = [
            tensor
            for kind, arrays in groups.items()
            for tensor in placed(arrays, self._staging, kind).values()
        ]
        key = derivative, part, shapes
        function = self._compiled.get(key, lambda: self._compile_program(*key))
        return _flat(in_own_memory(function(*arguments), arguments))

    def input_shapes(self, arguments: Sequence[Any]) -> Shapes:
        """The shapes of the inputs, which are the first arguments."""
        inputs = arguments[: len(self._groups["input"])]
        return tuple(tuple(int(extent) for extent in array.shape) for array in inputs)

    def check(self, arguments: Sequence[Any]) -> None:
        """Raise `InputError` if arguments, of which only shapes and dtypes count, do not fit."""
        shaped = tuple(
            Shaped(str(a.dtype).removeprefix("torch."), tuple(a.shape)) for a in arguments
        )

        def check() -> None:
            remaining = iter(shaped)
            self._check_types(
                {
                    kind: dict(zip(names, remaining, strict=False))
                    for kind, names in self._groups.items()
                }
            )

        self._checked.get(shaped, check)

    @one_at_a_time
    def on_host(self, derivative: Derivative, part: Part, shapes: Shapes) -> HostFunction:
        """The function, or a derivative, compiled so that any threads may call it.

        Parameters
        ----------
        derivative : Derivative
        part : Part
        shapes : Shapes
            Of the inputs.

        Raises
        ------
        ArgumentError
            See `host_function`.
        """
        objective = self._objective
        program = self._program_of_part(derivative, part, shapes)
        return host_function(program, objective.target, objective.winograd)

    @one_at_a_time
    def split(self, derivative: Derivative, shapes: Shapes) -> Split | None:
        """The two parts of a derivative's last step; None if it is computed as a whole only.

        Parameters
        ----------
        derivative : Derivative
        shapes : Shapes
            Of the inputs.
        """
        *before, step = derivative

        def make() -> Split | None:
            return split(self._program_of(tuple(before), shapes), step)

        return self._splits.get((derivative, shapes), make)

    def result_types(self, shapes: Sequence[Sequence[Any]]) -> list[Shaped]:
        """Dtypes and shapes of what the function returns.

        Parameters
        ----------
        shapes : sequence of shapes
            Of the arguments; their extents may be what a framework computes with instead of
            numbers.

        Raises
        ------
        InputError
            An argument has another rank, or a result's shape depends on data.
        """
        expected = [type_shape(param.ty) for param in self._program.params]
        for position, shape in enumerate(shapes):
            if len(shape) != len(expected[position]):
                raise InputError(
                    f"{self.label(position)}: expected shape {shape_text(expected[position], {})}, "
                    f"given {tuple(shape)}"
                )
        extents = bind_symbols(expected, shapes)
        return [
            Shaped(str(ty.dtype), tuple(evaluate(dim, extents) for dim in type_shape(ty)))
            for ty in flat_types(self._program.result.ty)
        ]

    def label(self, position: int) -> str:
        """An argument in words, for errors."""
        labels = [f"{kind} {name!r}" for kind, names in self._groups.items() for name in names]
        return labels[position] if position < len(labels) else f"cotangent number {position}"

    def _read(self, tensors: Sequence[Any]) -> Iterator[tuple[str, dict[str, Array]]]:
        """The arguments by kind and name, as they can be looked at."""
        remaining = iter(tensors)
        for kind, names in self._groups.items():
            yield kind, read_arrays(dict(zip(names, remaining, strict=False)), self._device, kind)
        kind = "cotangent number"
        numbered = {str(number): tensor for number, tensor in enumerate(remaining)}
        yield kind, read_arrays(numbered, self._device, kind)

    def _check_arguments(self, groups: Mapping[str, Mapping[str, Array]]) -> None:
        """Raise if arguments do not fit the model; equal shapes and dtypes are checked once."""
        arrays = {name: array for group in groups.values() for name, array in group.items()}
        signature = shapes_of(arrays), tuple(array.dtype for array in arrays.values())
        self._checked.get(signature, lambda: self._check_types(groups))

    def _check_types(self, groups: Mapping[str, Mapping[str, Array]]) -> None:
        bind_shapes(groups["input"], self._objective.input_types)
        types = owned_types(self._model)
        for kind in ("parameter", "statistic"):
            check_types(groups[kind], types, kind)

    def _compile_program(
        self, derivative: Derivative, part: Part, shapes: Shapes
    ) -> Callable[..., Any]:
        program = self._program_of_part(derivative, part, shapes)
        task = "a gradient" if derivative else "a forward pass"
        return self._compile(write_program(program, FORWARD), FORWARD, task)

    def _program_of_part(self, derivative: Derivative, part: Part, shapes: Shapes) -> Program:
        """The program of a derivative, or of a part of its last step."""
        if part == "whole":
            return self._program_of(derivative, shapes)
        parts = self.split(derivative, shapes)
        assert parts is not None  # who asks for a part has looked
        return parts.forward if part == "forward" else parts.backward

    def _program_of(self, derivative: Derivative, shapes: Shapes) -> Program:
        """The program of a derivative, for shapes of the inputs."""

        def make() -> Program:
            if derivative == ITSELF:
                return self._objective.forward(shapes).program
            *before, step = derivative
            return differentiate(self._program_of(tuple(before), shapes), step)

        return self._programs.get((derivative, shapes), make)


def _flat(values: Any) -> list[tvm.runtime.Tensor]:
    """The tensors of nested tuples, in order."""
    if isinstance(values, tvm.runtime.Tensor):
        return [values]
    return [tensor for value in values for tensor in _flat(value)]
