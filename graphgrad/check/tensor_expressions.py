"""Checking the gradients of tensor expressions: derived ones, or a given backward pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import te

from ..errors import ArgumentError, GradientMismatch, InputError, NotDifferentiableError
from ..fallback.gradient import te_gradient
from ..fallback.graph import listed, operations, outputs_of, rewritten
from ..fallback.jvp import te_jvp
from ..fallback.walk import tensor_key
from ..ir.arrays import to_numpy
from ..ir.callables import location_of
from ..ir.tensor import is_float
from .compare import Arrays, precision_of
from .functions import Settings
from .point import check_orders
from .result import GradientCheck, PartCheck
from .tensor_machine import Program, TensorMachine

Backward = Callable[[list[te.Tensor], list[te.Tensor], list[te.Tensor | None]], Any]
"""Maps inputs, outputs and cotangents to a gradient for each input, or None for one without."""

_SYMBOLIC_EXTENT = 3
"""The extent of a symbolic dimension where values are drawn."""


@dataclass(frozen=True)
class Expressions:
    """Tensor expressions, and the placeholders that they are checked at.

    Attributes
    ----------
    outputs : list of Tensor
    inputs : list of Tensor
        Placeholders whose gradients are checked, and those of integers beside them.
    others : list of Tensor
        Placeholders that stay as they are.
    """

    outputs: list[te.Tensor]
    inputs: list[te.Tensor]
    others: list[te.Tensor]

    @property
    def label(self) -> str:
        """The name of the expressions in messages: those of their outputs."""
        return ", ".join(dict.fromkeys(str(tensor.op.name) for tensor in self.outputs))

    @property
    def placeholders(self) -> list[te.Tensor]:
        """All placeholders, in the order in which a kernel takes them."""
        return [*self.inputs, *self.others]

    @property
    def positions(self) -> list[int]:
        """The positions of the placeholders that are differentiated."""
        return [
            position for position, tensor in enumerate(self.inputs) if is_float(str(tensor.dtype))
        ]


def is_tensors(value: Any) -> bool:
    """Whether a value is a tensor of TE, or a list of some."""
    if isinstance(value, te.Tensor):
        return True
    return (
        isinstance(value, Sequence)
        and len(value) > 0
        and all(isinstance(item, te.Tensor) for item in value)
    )


def expressions_of(outputs: Any, inputs: Any) -> Expressions:
    """Outputs as a function of inputs, which may be intermediate results.

    Raises
    ------
    NotDifferentiableError
        There are no floats to differentiate, or by which.
    """
    outputs, inputs = listed(outputs), listed(inputs)
    # An input that is an intermediate result becomes a placeholder, so that it can be varied alone.
    replacements = {}
    for number, tensor in enumerate(inputs):
        if not isinstance(tensor.op, te.PlaceholderOp):
            name = f"{tensor.op.name}_{number}"
            replacements[tensor_key(tensor)] = te.placeholder(
                tensor.shape, str(tensor.dtype), name=name
            )
    inputs = [replacements.get(tensor_key(tensor), tensor) for tensor in inputs]
    outputs = rewritten(outputs, lambda op: None, replacements) if replacements else outputs
    input_keys = {tensor_key(tensor) for tensor in inputs}
    other_placeholders = [
        tensor
        for op in operations(*outputs)
        if isinstance(op, te.PlaceholderOp)
        for tensor in outputs_of(op)
        if tensor_key(tensor) not in input_keys
    ]
    subject = Expressions(outputs, inputs, other_placeholders)
    for tensors, role in ((outputs, "output"), (inputs, "input")):
        if not any(is_float(str(tensor.dtype)) for tensor in tensors):
            names = ", ".join(tensor.op.name for tensor in tensors)
            raise NotDifferentiableError(
                f"no {role} is of floats: {names}; give one that is, other {role}s are constants"
            )
    return subject


def programs_of(
    subject: Expressions,
    name: str,
    order: int,
    backward: Backward | None = None,
    modes: Sequence[str] = ("rev",),
) -> dict[str, Program]:
    """A function of the float outputs, its vjp, and the vjp of that with order 2.

    With forward mode, each function that has a vjp has a jvp, too.
    """
    outputs = [tensor for tensor in subject.outputs if is_float(str(tensor.dtype))]
    parameters = subject.placeholders
    programs = {name: Program(parameters, outputs)}
    wrt = [parameters[position] for position in subject.positions]
    for level in range(order):
        heads = [
            te.placeholder(tensor.shape, str(tensor.dtype), name=f"cotangent{level}_{number}")
            for number, tensor in enumerate(outputs)
        ]
        # A given backward pass is differentiated for order 2 like any other expressions.
        if backward is not None and not level:
            gradients = _given(backward, subject, heads)
        else:
            gradients = te_gradient(outputs, wrt, heads)
        if "fwd" in modes:
            seeds = [
                te.placeholder(tensor.shape, str(tensor.dtype), name=f"tangent{level}_{number}")
                for number, tensor in enumerate(wrt)
            ]
            tangents = te_jvp(outputs, wrt, seeds)
            programs[f"{name}_jvp"] = Program([*parameters, *seeds], tangents)
        name = f"{name}_vjp"
        parameters, wrt, outputs = [*parameters, *heads], [*wrt, *heads], gradients
        programs[name] = Program(parameters, outputs)
    return programs


def check_expressions(
    subject: Expressions, arrays: Any, settings: Settings, backward: Backward | None = None
) -> GradientCheck:
    """Check the gradients of tensor expressions by compiled kernels, in float64 if that can be.

    Raises
    ------
    GradientMismatch
    """
    point = _point(subject, arrays, np.random.default_rng(settings.seed))
    programs = programs_of(subject, "main", settings.order, backward, settings.modes)
    machine = TensorMachine(programs)
    point = machine.point(point)
    where = "" if backward is None else f", by backward at {location_of(backward)}"
    try:
        checks = check_orders(
            machine,
            "main",
            point,
            settings.order,
            np.random.default_rng(settings.seed),
            f"{subject.label}{where}",
            positions=subject.positions,
            names=[tensor.op.name for tensor in subject.placeholders],
            tolerances=settings.tolerances,
            jacobian=settings.jacobian,
            modes=settings.modes,
        )
    except GradientMismatch as error:
        error.op = subject.label
        raise
    precision = precision_of([point[k] for k in subject.positions]).name
    part = PartCheck(subject.label, precision, checks, op=subject.label, note=machine.note)
    return GradientCheck([part])


def _given(backward: Backward, subject: Expressions, heads: Sequence[te.Tensor]) -> list[te.Tensor]:
    """The gradients that a given backward pass returns, for the float inputs."""
    remaining = iter(heads)
    cotangents = [
        next(remaining) if is_float(str(tensor.dtype)) else None for tensor in subject.outputs
    ]
    returned = backward(list(subject.inputs), list(subject.outputs), cotangents)
    gradients = listed(returned)
    if len(gradients) != len(subject.inputs):
        raise InputError(
            f"{location_of(backward)}: backward returned {len(gradients)} gradients for "
            f"{len(subject.inputs)} inputs"
        )
    selected = [gradients[position] for position in subject.positions]
    for position, gradient in zip(subject.positions, selected, strict=True):
        if not isinstance(gradient, te.Tensor):
            raise InputError(
                f"{location_of(backward)}: backward returned {gradient!r} for the input "
                f"{subject.inputs[position].op.name}; expected a tensor: leave the input out if it "
                "has no gradient"
            )
    return selected


def _point(subject: Expressions, arrays: Any, generator: np.random.Generator) -> Arrays:
    """A value for each placeholder: as given, or random."""
    placeholders = subject.placeholders
    given_arrays = _by_position(subject, arrays)
    extents: dict[str, int] = {}
    for position, array in given_arrays.items():
        _fit(placeholders[position], array, extents)
    return [
        given_arrays[position] if position in given_arrays else _drawn(tensor, extents, generator)
        for position, tensor in enumerate(placeholders)
    ]


def _by_position(subject: Expressions, arrays: Any) -> dict[int, np.ndarray]:
    """The arrays that were given, by the position of their placeholder; empty if there are none."""
    if arrays is None:
        return {}
    names = [str(tensor.op.name) for tensor in subject.placeholders]
    if isinstance(arrays, Mapping):
        unknown = [name for name in arrays if names.count(name) != 1]
        if unknown:
            raise InputError(f"{unknown[0]!r} names no placeholder, or several: there are {names}")
        return {names.index(name): np.array(to_numpy(array)) for name, array in arrays.items()}
    values = list(arrays) if isinstance(arrays, list | tuple) else [arrays]
    if len(values) != len(subject.inputs):
        raise InputError(
            f"give one array for each of {names[: len(subject.inputs)]}, in a list, or a dict by "
            "the names of placeholders"
        )
    return {position: np.array(to_numpy(value)) for position, value in enumerate(values)}


def _fit(tensor: te.Tensor, array: np.ndarray, extents: dict[str, int]) -> None:
    """Raise `InputError` unless an array fits a placeholder; note its symbolic extents."""
    fits = str(array.dtype) == str(tensor.dtype) and array.ndim == len(tensor.shape)
    for extent, size in zip(tensor.shape, array.shape, strict=False):
        if isinstance(extent, tvm.ir.Var):
            fits &= extents.setdefault(extent.name, size) == size
        else:
            fits &= int(extent) == size
    if not fits:
        raise InputError(
            f"{tensor.op.name} is {tensor.dtype} of shape {list(tensor.shape)}; given "
            f"{array.dtype}{array.shape}"
        )


def _drawn(
    tensor: te.Tensor, extents: Mapping[str, int], generator: np.random.Generator
) -> np.ndarray:
    """Random values: floats in (−1, 1), integers 0 and 1."""
    shape = []
    for extent in tensor.shape:
        if isinstance(extent, tvm.ir.Var):
            shape.append(extents.get(extent.name, _SYMBOLIC_EXTENT))
        elif isinstance(extent, tvm.tirx.IntImm):
            shape.append(int(extent))
        else:
            raise ArgumentError(
                f"{tensor.op.name} has the extent {extent}: values cannot be drawn, give arrays"
            )
    dtype = str(tensor.dtype)
    if is_float(dtype):
        return generator.uniform(-1, 1, shape).astype(dtype)
    return generator.integers(0, 2, shape).astype(dtype)
