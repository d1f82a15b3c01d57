"""Checking one function with its gradient at one point, or beside that point if it is a kink."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from ..errors import ArgumentError, GradientMismatch
from ..ir.tensor import is_float
from .compare import (
    DEFAULT,
    Arrays,
    Comparison,
    InputCheck,
    Tangents,
    Tolerances,
    compare_gradients,
    draw_cotangents,
    float_positions,
    precision_of,
)
from .differences import FLOAT64, Precision

_JACOBIAN_LIMIT = 2048
"""Elements of all inputs, and of all outputs, up to which a Jacobian is compared."""


class Functions(Protocol):
    """Functions by name, each with ``<name>_vjp`` beside it, and ``<name>_jvp`` if asked for."""

    def run(self, name: str, inputs: Arrays) -> Arrays:
        """The float results of a function."""

    def gradients(self, name: str, inputs: Arrays, cotangents: Arrays) -> Arrays:
        """The gradients of a function for given cotangents of its float results."""

    def tangents(self, name: str, inputs: Arrays, tangents: Arrays) -> Arrays:
        """The tangents of a function's float results for given ones of differentiated inputs."""


@dataclass(frozen=True)
class Differentiated:
    """A function with its gradient.

    Attributes
    ----------
    run : callable
        ``run(*inputs)`` returns the float outputs.
    gradients : callable
        ``gradients(inputs, cotangents)`` returns one gradient for each of `positions`.
    positions : sequence of int
        The differentiated inputs.
    names : sequence of str or None
        Of all inputs.
    precision : Precision
    tangents : callable or None
        ``tangents(inputs, tangents)`` returns one for each float output, given one for each of
        `positions`.
    modes : sequence of str
        What is checked, of `compare.MODES`.
    """

    run: Callable[..., Arrays]
    gradients: Callable[[Arrays, Arrays], Arrays]
    positions: Sequence[int]
    names: Sequence[str] | None = None
    precision: Precision = FLOAT64
    tangents: Callable[[Arrays, Arrays], Arrays] | None = None
    modes: Sequence[str] = ("rev",)


@dataclass(frozen=True)
class Checked:
    """The result of a check: one entry per input, and the point at which it was made."""

    inputs: list[InputCheck]
    point: Arrays
    cotangents: Arrays


def check_at(
    function: Differentiated,
    point: Arrays,
    generator: np.random.Generator,
    label: str,
    tolerances: Tolerances = DEFAULT,
    *,
    jacobian: bool = False,
    strict: bool = False,
) -> Checked:
    """Check a function's gradients at a point, or beside it where the point is a kink.

    Raises
    ------
    GradientMismatch
        Also at a kink, where `strict`.
    ArgumentError
        There are too many elements for a Jacobian.
    """
    try:
        return _check(function, point, generator, label, tolerances, jacobian)
    except GradientMismatch as error:
        if strict or not error.kink:
            raise
        input_at_kink = error.input
    point_beside = [_beside(array, generator) for array in point]
    checked = _check(
        function, point_beside, generator, f"{label}, beside a kink", tolerances, jacobian
    )
    inputs = [
        replace(check, kink="exact") if check.name == input_at_kink else check
        for check in checked.inputs
    ]
    return replace(checked, inputs=inputs)


def check_orders(
    machine: Functions,
    name: str,
    point: Arrays,
    order: int,
    generator: np.random.Generator,
    label: str,
    *,
    positions: Sequence[int] | None = None,
    names: Sequence[str] | None = None,
    tolerances: Tolerances = DEFAULT,
    jacobian: bool = False,
    strict: bool = False,
    modes: Sequence[str] = ("rev",),
) -> list[InputCheck]:
    """Check a compiled function to first order, and its vjp too with order 2.

    Parameters
    ----------
    machine : Functions
        With ``<name>_vjp``, and with order 2 ``<name>_vjp_vjp``, which differentiates with respect
        to the same values and all cotangents. For forward mode, each function that has a vjp has a
        ``_jvp`` beside it, with respect to the same values.
    positions : sequence of int, optional
        The differentiated inputs; by default all floats.

    Raises
    ------
    GradientMismatch
    """
    positions = float_positions(point) if positions is None else positions
    checks: list[InputCheck] = []
    for level in range(1, order + 1):
        function = _of_machine(machine, name, point, positions, names, modes)
        order_label = f"{label}, order {level}"
        checked = check_at(
            function, point, generator, order_label, tolerances, jacobian=jacobian, strict=strict
        )
        checks += checked.inputs
        # The next order checks the vjp, which is a function of the point and the cotangents.
        point = [*checked.point, *checked.cotangents]
        positions = [*positions, *range(len(checked.point), len(point))]
        if names is not None:
            names = [*names, *(f"cotangent {number}" for number in range(len(checked.cotangents)))]
        name = f"{name}_vjp"
    return checks


def _of_machine(
    machine: Functions,
    name: str,
    point: Arrays,
    positions: Sequence[int],
    names: Sequence[str] | None,
    modes: Sequence[str],
) -> Differentiated:
    """A function of a machine with its gradient."""
    return Differentiated(
        lambda *inputs: machine.run(name, list(inputs)),
        lambda inputs, cotangents: machine.gradients(name, inputs, cotangents),
        positions,
        names,
        precision_of(point),
        lambda inputs, tangents: machine.tangents(name, inputs, tangents),
        modes,
    )


def _beside(array: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Floats moved by a per cent or so, each by its own amount; zeros become positive.

    Equal elements become different ones, so that ties of extrema are broken, too.
    """
    if not is_float(str(array.dtype)):
        return array
    reduction, shift = generator.uniform(0.005, 0.02, (2, *array.shape))
    return (array * (1 - reduction) + shift).astype(array.dtype)


def _check(
    function: Differentiated,
    point: Arrays,
    generator: np.random.Generator,
    label: str,
    tolerances: Tolerances,
    jacobian: bool,
) -> Checked:
    """Check a function's gradients at a point with cotangents that are drawn."""
    cotangents = draw_cotangents(function.run(*point), generator)
    # A result of a lower dtype than the inputs is rounded to that.
    lowest_precision = max(
        function.precision, precision_of(cotangents), key=lambda precision: precision.epsilon
    )
    function = replace(function, precision=lowest_precision)
    checks = compare_gradients(
        function.run,
        point,
        cotangents,
        function.gradients(point, cotangents),
        generator,
        label,
        names=function.names,
        positions=function.positions,
        precision=function.precision,
        tolerances=tolerances,
        tangents=_tangents_at(function, point),
        modes=function.modes,
    )
    if jacobian:
        _check_jacobian(function, point, cotangents, label, tolerances)
    return Checked(checks, point, cotangents)


def _tangents_at(function: Differentiated, point: Arrays) -> Tangents | None:
    """Forward mode of a function at a point; None where it is not checked."""
    forward = function.tangents
    if forward is None or "fwd" not in function.modes:
        return None
    return lambda tangents: forward(point, tangents)


def _check_jacobian(
    function: Differentiated,
    point: Arrays,
    outputs: Arrays,
    label: str,
    tolerances: Tolerances,
) -> None:
    """Compare every partial derivative of every output."""
    sizes = sum(point[position].size for position in function.positions), _count(outputs)
    if max(sizes) > _JACOBIAN_LIMIT:
        raise ArgumentError(
            f"{label}: a Jacobian of {sizes[1]} outputs by {sizes[0]} inputs is too large to be "
            f"compared element by element (the limit is {_JACOBIAN_LIMIT} each); leave out jacobian"
        )
    for output in range(_count(outputs)):
        cotangents = _one_hot(outputs, output)
        comparison = Comparison(
            function.run, point, cotangents, label, function.names, function.precision, tolerances
        )
        gradients = function.gradients(point, cotangents)
        for position, gradient in zip(function.positions, gradients, strict=True):
            comparison.elements(position, gradient, f"output element {output}")


def _count(arrays: Arrays) -> int:
    """The number of elements of all arrays together."""
    return sum(array.size for array in arrays)


def _one_hot(arrays: Arrays, index: int) -> Arrays:
    """Zeros in the shapes of some arrays, with a one at an index into all of them, flattened."""
    flat = np.zeros(_count(arrays))
    flat[index] = 1.0
    blocks = np.split(flat, np.cumsum([array.size for array in arrays])[:-1])
    return [
        block.reshape(array.shape).astype(array.dtype)
        for block, array in zip(blocks, arrays, strict=True)
    ]
