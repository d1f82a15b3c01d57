"""Comparing gradients with differences: along random directions, or element by element."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import GradientMismatch
from ..ir.tensor import is_float
from .differences import FLOAT32, FLOAT64, HALF, Kink, Line, Precision, Verdict, judge, measure

Arrays = list[np.ndarray]

Tangents = Callable[[Arrays], Arrays]
"""Maps a tangent of each differentiated input to those of the float outputs, at one point."""

MODES = ("fwd", "rev")
"""Forward and reverse mode."""

_DIRECTIONS = 2
"""Random directions along which each input's gradient is compared."""

_PARTS = 16
"""Blocks into which a large input is split, again and again, to find its worst element."""

_MAX_SEARCHED_ELEMENTS = 64
"""A block of at most as many elements is searched one by one."""


@dataclass(frozen=True)
class InputCheck:
    """The result of comparing the gradient of one input with differences.

    Attributes
    ----------
    name : str
    error : float
        The largest relative error that was met.
    kink : "", "near" or "exact"
        Whether differences met a kink: within their usual step, or at the very point, in which
        case the error is that at a point beside it.
    """

    name: str
    error: float
    kink: Kink = ""


@dataclass(frozen=True)
class Tolerances:
    """The errors that pass; None for the defaults of `differences.Precision`."""

    rtol: float | None = None
    atol: float | None = None


DEFAULT = Tolerances()


def precision_of(arrays: Sequence[np.ndarray]) -> Precision:
    """How a function of some arrays is judged, by the dtypes of those that are floats."""
    dtypes = {str(array.dtype) for array in arrays if is_float(str(array.dtype))}
    if dtypes & {"float16", "bfloat16"}:
        return HALF
    return FLOAT64 if dtypes <= {"float64"} else FLOAT32


def float_positions(arrays: Sequence[np.ndarray]) -> list[int]:
    """The positions of the arrays that are of floats."""
    return [position for position, array in enumerate(arrays) if is_float(str(array.dtype))]


def draw_cotangents(outputs: Arrays, generator: np.random.Generator) -> Arrays:
    """Random cotangents; zero where an output is not finite, as behind a mask of −∞."""
    return [
        np.where(np.isfinite(output), generator.uniform(-1, 1, output.shape), 0.0).astype(
            output.dtype
        )
        for output in outputs
    ]


def compare_gradients(
    function: Callable[..., Arrays],
    inputs: Arrays,
    cotangents: Arrays,
    gradients: Arrays,
    generator: np.random.Generator,
    label: str,
    *,
    names: Sequence[str] | None = None,
    positions: Sequence[int] | None = None,
    precision: Precision | None = None,
    tolerances: Tolerances = DEFAULT,
    tangents: Tangents | None = None,
    modes: Sequence[str] = ("rev",),
) -> list[InputCheck]:
    """Compare gradients with differences of a function along random directions.

    Parameters
    ----------
    function : callable
        Maps the inputs to the list of float outputs.
    inputs : list of arrays
    cotangents : list of arrays
        One per output.
    gradients : list of arrays
        One per differentiated input.
    generator : numpy.random.Generator
        Draws the directions.
    label : str
        Begins the error message.
    names : sequence of str, optional
        Of all inputs.
    positions : sequence of int, optional
        The differentiated inputs; by default all floats.
    precision : Precision, optional
        By default that of the arrays' dtypes.
    tolerances : Tolerances
    tangents : callable, optional
        Forward mode at these inputs.
    modes : sequence of str, of `MODES`
        What is compared: gradients, derivatives by `tangents`, or both, which then also must agree
        with each other.

    Returns
    -------
    list of InputCheck
        One per gradient.

    Raises
    ------
    GradientMismatch
        Names the input, the element that is worst, and both numbers.
    """
    comparison = Comparison(function, inputs, cotangents, label, names, precision, tolerances)
    positions = float_positions(inputs) if positions is None else positions
    comparison.check_types(positions, gradients)
    forward = _forward_derivative(inputs, positions, cotangents, tangents)
    # A gradient much smaller than all others is judged by their size: it may be rounding alone.
    floor = 1e-6 * float(np.sqrt(sum(_norm(gradient) ** 2 for gradient in gradients)))
    return [
        comparison.along_directions(position, gradient, floor, generator, forward, modes)
        for position, gradient in zip(positions, gradients, strict=True)
    ]


Forward = Callable[[int, np.ndarray], float]
"""The derivative of the weighted outputs along a direction of one input, by forward mode."""


def _forward_derivative(
    inputs: Arrays, positions: Sequence[int], cotangents: Arrays, tangents: Tangents | None
) -> Forward | None:
    """Forward mode for outputs that are weighted with cotangents; None without it."""
    if tangents is None:
        return None

    def derivative(position: int, direction: np.ndarray) -> float:
        seeds = [
            direction.astype(inputs[p].dtype) if p == position else np.zeros_like(inputs[p])
            for p in positions
        ]
        pairs = zip(tangents(seeds), cotangents, strict=True)
        return float(sum(_product(tangent.astype("float64"), ct) for tangent, ct in pairs))

    return derivative


class Comparison:
    """A function at a point, weighted with cotangents, and ready to be compared with gradients."""

    def __init__(
        self,
        function: Callable[..., Arrays],
        inputs: Arrays,
        cotangents: Arrays,
        label: str,
        names: Sequence[str] | None = None,
        precision: Precision | None = None,
        tolerances: Tolerances = DEFAULT,
    ):
        self._function = function
        self._inputs = inputs
        self._cotangents = [ct.astype("float64") for ct in cotangents]
        self._label = label
        self._names = names
        self._precision = precision or precision_of([*inputs, *cotangents])
        self._tolerances = tolerances

    def name(self, position: int) -> str:
        """The name of an input in messages."""
        return f"input {position}" if self._names is None else f"input {self._names[position]!r}"

    def check_types(self, positions: Sequence[int], gradients: Arrays) -> None:
        """Raise `GradientMismatch` unless each gradient has its input's shape and dtype."""
        if len(positions) != len(gradients):
            raise GradientMismatch(
                f"{self._label}: {len(gradients)} gradients for {len(positions)} inputs"
            )
        for position, gradient in zip(positions, gradients, strict=True):
            x = self._inputs[position]
            if gradient.shape != x.shape or gradient.dtype != x.dtype:
                raise GradientMismatch(
                    f"{self._label}: the gradient of {self.name(position)} is "
                    f"{gradient.dtype}{gradient.shape}, the input {x.dtype}{x.shape}"
                )

    def along_directions(
        self,
        position: int,
        gradient: np.ndarray,
        floor: float,
        generator: np.random.Generator,
        forward: Forward | None = None,
        modes: Sequence[str] = ("rev",),
    ) -> InputCheck:
        """Compare one gradient along random directions; `floor` bounds its scale from below."""
        gradient = gradient.astype("float64")
        scale = max(_norm(gradient), floor)
        worst = 0.0
        kink: Kink = ""
        for _ in range(_DIRECTIONS if gradient.size else 0):
            direction = generator.uniform(-1, 1, gradient.shape)
            # No difference can be taken along an element that is infinite, such as a mask's −∞.
            direction = np.where(np.isfinite(self._inputs[position]), direction, 0.0)
            # In the dtype of the input, in which forward mode takes it.
            direction = direction.astype(self._inputs[position].dtype).astype("float64")
            derivatives = {}
            if "rev" in modes:
                derivatives["the gradient"] = _product(gradient, direction)
            if forward is not None and "fwd" in modes:
                derivatives["forward mode"] = forward(position, direction)
            # Also where the point is a kink, of which differences tell nothing.
            self._check_agreement(position, derivatives, scale)
            for source, derivative in derivatives.items():
                verdict = self._judge(self._line(position, direction), derivative, scale)
                if not verdict.agrees:
                    raise self._mismatch(position, gradient, derivative, verdict, source)
                worst = max(worst, verdict.error)
                kink = verdict.kink or kink
        return InputCheck(self.name(position), worst, kink)

    def _check_agreement(
        self, position: int, derivatives: Mapping[str, float], scale: float
    ) -> None:
        """Raise `GradientMismatch` if both modes differ by more than rounding."""
        if len(derivatives) < 2:
            return
        reverse, forward = derivatives.values()
        rtol = self._precision.rtol if self._tolerances.rtol is None else self._tolerances.rtol
        if not abs(reverse - forward) <= rtol * max(abs(reverse), scale):
            raise GradientMismatch(
                f"{self._label}: along a random direction of {self.name(position)} forward mode "
                f"gives {forward:.12g}, the gradient gives {reverse:.12g}",
                input=self.name(position),
                expected=reverse,
                given=forward,
            )

    def elements(self, position: int, gradient: np.ndarray, of: str) -> None:
        """Compare every partial derivative of an input; raise `GradientMismatch` at the first."""
        scale = float(np.max(np.abs(gradient), initial=0.0))
        for index in np.ndindex(gradient.shape):
            direction = np.zeros(gradient.shape)
            direction[index] = 1.0
            derivative = float(gradient[index])
            verdict = self._judge(self._line(position, direction), derivative, scale)
            if not verdict.agrees:
                expected = verdict.slope.value
                raise GradientMismatch(
                    f"{self._label}: the derivative of {of} by element {index} of "
                    f"{self.name(position)} is {expected:.12g} by finite differences, "
                    f"{derivative:.12g} by the gradient",
                    input=self.name(position),
                    index=index,
                    expected=expected,
                    given=derivative,
                    kink=verdict.kink == "exact",
                )

    def _judge(self, line: Line, derivative: float, scale: float) -> Verdict:
        """Compare a derivative with differences along a line, by this comparison's tolerances."""
        rtol, atol = self._tolerances.rtol, self._tolerances.atol
        return judge(line, derivative, scale, self._precision, rtol, atol)

    def _line(self, position: int, direction: np.ndarray) -> Line:
        """The weighted function on the line through the point."""
        x = self._inputs[position]

        def line(t: float) -> tuple[float, float]:
            arguments = list(self._inputs)
            arguments[position] = (x + t * direction).astype(x.dtype) if t else x
            outputs = self._function(*arguments)
            with np.errstate(invalid="ignore"):  # 0 · ∞ is masked, ∞ − ∞ is not agreement
                terms = [
                    np.where(ct == 0, 0.0, ct * output.astype("float64"))
                    for ct, output in zip(self._cotangents, outputs, strict=True)
                ]
                value = float(sum(np.sum(term) for term in terms))
            return value, float(sum(np.sum(np.abs(term)) for term in terms))

        return line

    def _mismatch(
        self,
        position: int,
        gradient: np.ndarray,
        derivative: float,
        verdict: Verdict,
        source: str = "the gradient",
    ) -> GradientMismatch:
        """The error of a directional derivative that is wrong; it names the worst element."""
        difference = verdict.slope.value
        text = (
            f"{self._label}: along a random direction of {self.name(position)} finite differences "
            f"give {difference:.12g}, {source} gives {derivative:.12g}"
        )
        if verdict.kink == "exact":
            text += (
                f"; the point is a kink: the slope is {verdict.slope.left:.6g} on one side and "
                f"{verdict.slope.right:.6g} on the other"
            )
        index: tuple[int, ...] | None = None
        given = derivative
        if source == "the gradient":
            index, difference, given = self._worst_element(position, gradient, verdict.slope.step)
            text += f"; at element {index} they give {difference:.12g} and {given:.12g}"
        return GradientMismatch(
            text,
            input=self.name(position),
            index=index,
            expected=difference,
            given=given,
            kink=verdict.kink == "exact",
        )

    def _worst_element(
        self, position: int, gradient: np.ndarray, step: float
    ) -> tuple[tuple[int, ...], float, float]:
        """Search the element whose partial derivative is wrong by most; halving a large input."""

        def difference(members: np.ndarray) -> tuple[float, float, float]:
            direction = np.zeros(gradient.size)
            direction[members] = signs[members]
            line = self._line(position, direction.reshape(gradient.shape))
            slope = measure(line, step, self._precision.epsilon)
            product = float(gradient.reshape(-1)[members] @ signs[members])
            error = abs(slope.value - product)
            return error if np.isfinite(error) else np.inf, slope.value, product

        # Random signs, lest errors of opposite signs in a block cancel.
        generator = np.random.default_rng(0)
        signs = np.where(generator.uniform(size=gradient.size) < 0.5, -1.0, 1.0)
        members = np.arange(gradient.size)
        while members.size > _MAX_SEARCHED_ELEMENTS:
            members = max(np.array_split(members, _PARTS), key=lambda block: difference(block)[0])
        signs[members] = 1.0
        worst = max(members, key=lambda member: difference(np.array([member]))[0])
        _, expected, product = difference(np.array([worst]))
        return tuple(map(int, np.unravel_index(worst, gradient.shape))), expected, product


def _product(a: np.ndarray, b: np.ndarray) -> float:
    """The inner product; where `b` is zero, whatever `a` is there adds nothing."""
    with np.errstate(invalid="ignore"):
        return float(np.sum(np.where(b == 0, 0.0, a * b)))


def _norm(array: Any) -> float:
    """The Euclidean norm of all elements, in float64."""
    return float(np.linalg.norm(array.astype("float64").reshape(-1)))
