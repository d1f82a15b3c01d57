"""Derived gradients judged against differences, both evaluated by the interpreter in float64."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from tvm import te

from graphgrad.fallback.gradient import te_gradient
from tests.fallback.interpreter import evaluate
from tests.fallback.programs import Program, Value

STEPS = (1e-6, 1e-5, 1e-7)
TOLERANCE = 1e-6

ASIDE, AROUND = 1e-5, 12
"""How far away points around a point are, and how many of them are tried."""

SMOOTH, KINK, JUMP, INFINITE = "smooth", "kink", "jump", "infinite"


class DisagreementError(AssertionError):
    """A gradient is not the derivative."""


def with_heads(program: Program, generator: np.random.Generator) -> tuple[list[Value], Program]:
    """Return cotangents of a program's outputs, and the program that computes its gradient."""
    heads = []
    for number, output in enumerate(program.outputs):
        shape = [int(extent) for extent in output.shape]
        tensor = te.placeholder(output.shape, str(output.dtype), name=f"head{number}")
        heads.append((tensor, generator.standard_normal(shape).astype(str(output.dtype))))
    tensors = [tensor for tensor, _ in heads]
    gradients = te_gradient(program.outputs, program.inputs, tensors)
    inputs = [*program.inputs, *tensors]
    return heads, Program(gradients, inputs, [*program.known, *heads])


def judge(program: Program, generator: np.random.Generator) -> str:
    """Compare a program's gradient with differences along a random direction.

    Returns
    -------
    str
        What the program is like there: `SMOOTH`; `KINK`, where the gradient is between the slopes
        of both sides, or those at points around; `JUMP`, where it has no derivative; `INFINITE`,
        where it has no value.

    Raises
    ------
    DisagreementError
    """
    heads, gradient_program = with_heads(program, generator)
    gradients = evaluate(gradient_program.outputs, gradient_program.known)
    line = _Line(program, heads, generator)
    if not np.isfinite(line.value(0.0)):
        return INFINITE
    for tensor, gradient in zip(program.inputs, gradients, strict=True):
        if list(gradient.shape) != [int(extent) for extent in tensor.shape]:
            raise DisagreementError(f"the gradient by {tensor.op.name} is {gradient.shape}")
        if not np.isfinite(gradient).all():
            raise DisagreementError(f"the gradient by {tensor.op.name} is not finite")
    products = [g * d for g, d in zip(gradients, line.directions, strict=True)]
    given = float(sum(product.sum() for product in products))
    scale = float(sum(np.abs(product).sum() for product in products)) + 1e-3
    return _verdict(line, given, scale)


def _verdict(line: _Line, given: float, scale: float) -> str:
    for step in STEPS:
        behind, ahead = line.slopes(step)
        error = TOLERANCE * max(scale, abs(behind), abs(ahead)) + line.rounding(step)
        if abs(given - (behind + ahead) / 2) < error:
            return SMOOTH
    for step in STEPS:
        least, most = line.slope_range(step)
        curved = 10 * step * max(scale, abs(least), abs(most)) + line.rounding(step)
        if most - least > curved and least - curved < given < most + curved:
            return KINK
    # Where two operands of a maximum touch, as x² and y² do at 0, the derivative of its gradient is
    # another one on either side of the tie, but no line through the point goes from side to side.
    near = [sum(line.aside().slopes(STEPS[0])) / 2 for _ in range(AROUND)]
    least, most = min(near), max(near)
    curved = 10 * ASIDE * max(scale, abs(least), abs(most)) + line.rounding(STEPS[0])
    if most - least > curved and least - curved < given < most + curved:
        return KINK
    slopes = [max(map(abs, line.slopes(step))) for step in (1e-5, 1e-6, 1e-7)]
    if all(5 * a < b for a, b in pairwise(slopes)):
        return JUMP
    behind, ahead = line.slopes(STEPS[0])
    raise DisagreementError(
        f"the gradient's slope is {given}, that of differences {behind} and {ahead}"
    )


@dataclass
class _Line:
    """⟨heads, outputs⟩ along a direction in the space of a program's inputs.

    Attributes
    ----------
    program : Program
    heads : list of Value
    generator : Generator
    directions, offsets : list of array
        One each per input; random and zeros if left out. The line begins at the offsets.
    """

    program: Program
    heads: list[Value]
    generator: np.random.Generator
    directions: list[np.ndarray] = field(default_factory=list)
    offsets: list[np.ndarray] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.directions = self.directions or self._random()
        self.offsets = self.offsets or [np.zeros(d.shape) for d in self.directions]
        self._terms: dict[float, np.ndarray] = {}
        self._size = 0.0

    def aside(self) -> _Line:
        """Return a line in the same direction from a random point around."""
        offsets = [ASIDE * offset for offset in self._random()]
        return _Line(self.program, self.heads, self.generator, self.directions, offsets)

    def _random(self) -> list[np.ndarray]:
        shapes = [[int(extent) for extent in tensor.shape] for tensor in self.program.inputs]
        return [self.generator.standard_normal(shape) for shape in shapes]

    def value(self, distance: float) -> float:
        """Return the value at a distance along the direction."""
        return float(self._terms_at(distance).sum())

    def _terms_at(self, distance: float) -> np.ndarray:
        """Return what is summed: each element of the outputs, with its weight."""
        if distance not in self._terms:
            arrays = evaluate(self.program.outputs, self._known(distance))
            terms = [(h * a).ravel() for (_, h), a in zip(self.heads, arrays, strict=True)]
            self._terms[distance] = np.concatenate(terms)
            self._size = max(self._size, float(np.abs(self._terms[distance]).sum()))
        return self._terms[distance]

    def _known(self, distance: float) -> list[Value]:
        """Return all inputs moved; an intermediate result moves with those before it as well."""
        known = list(self.program.known)
        moves = zip(self.program.inputs, self.offsets, self.directions, strict=True)
        for tensor, offset, direction in moves:
            (array,) = evaluate([tensor], known)
            known.append((tensor, array + (offset + distance * direction)))
        return known

    def slopes(self, step: float) -> tuple[float, float]:
        """Return the slopes behind and ahead."""
        here = self.value(0.0)
        return (here - self.value(-step)) / step, (self.value(step) - here) / step

    def slope_range(self, step: float) -> tuple[float, float]:
        """Return the least and the greatest slope, if at each element either side may count.

        Several elements that have a kink at one point may each have the slope of another side.
        """
        here = self._terms_at(0.0)
        behind, ahead = here - self._terms_at(-step), self._terms_at(step) - here
        least, most = np.minimum(behind, ahead), np.maximum(behind, ahead)
        return float(least.sum()) / step, float(most.sum()) / step

    def rounding(self, step: float) -> float:
        """Return what rounding may do to a slope."""
        return 1e-14 * self._size / step
