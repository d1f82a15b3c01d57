"""Residue classes: elements of a strided read split by their remainders, each with its own loops.

Of the points that a stride-2 convolution reads an element at, there are more for an even position
than for an odd one. A loop nest for all of them visits points that add nothing; one per class does
not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product as combinations
from math import gcd, lcm, prod
from typing import Any

import tvm
from tvm import te, tirx
from tvm.ir import prim

from ..constants import is_false
from ..contribution import Contribution
from ..indices.affine import coefficients
from ..indices.index_system import Axis, Inversion, invert
from ..kinds import Kind, marked
from ..walk import Expr, substituted
from .cost import loop_points

_MAX_CLASSES = 64
"""Residue classes that are looked at, an inversion each: chosen, not measured."""

_MAX_RESIDUE_CLASSES = 16
"""Residue classes that a gradient may have, a stage each: chosen, not measured."""

_MAX_REMAINING_FRACTION = 0.9
"""Part of the points that a split of a dimension may leave at most; chosen, not measured."""

Residues = tuple[int, ...]
"""A remainder for each dimension, 0 for those that are not split."""


@dataclass(frozen=True)
class ResidueClass:
    """The elements whose positions have certain remainders, and the points that read them.

    Attributes
    ----------
    residues : tuple of int
    element : list of Axis
        Over the quotients of the positions.
    position : list of Expr
        The indices of an element, in the variables of these loops.
    inversion : Inversion
    """

    residues: Residues
    element: list[Axis]
    position: list[Expr]
    inversion: Inversion

    @property
    def points(self) -> int:
        """Body evaluations of a stage for them."""
        return loop_points([*self.element, *self.inversion.loops])


def moduli_of(
    contribution: Contribution, inversion: Inversion, element: Sequence[Axis]
) -> list[int]:
    """A modulus for each dimension, by which it may pay to split it.

    It decides all remainders in the inversion. Where a point has conditions, it is a multiple of
    the strides of the index as well: loops along another axis have no remainders, and visit points
    that add nothing.

    Parameters
    ----------
    contribution : Contribution
    inversion : Inversion
        Of its indices.
    element : sequence of Axis
        The loops that the inversion is in terms of.
    """
    moduli = [1] * len(element)
    for numerator, divisor in inversion.residues:
        form = coefficients(numerator, element)
        if form is None:
            continue
        for number, factor in enumerate(form[0]):
            # factor · x modulo the divisor depends on x modulo this alone.
            moduli[number] = lcm(moduli[number], divisor // gcd(factor, divisor))
    if not inversion.guards:
        return moduli
    for number, index in enumerate(contribution.indices):
        form = coefficients(index, contribution.axes)
        strides = [abs(factor) for factor in form[0] if factor] if form else []
        modulus = lcm(moduli[number], *strides)
        if len(strides) > 1 and modulus <= _MAX_CLASSES:
            moduli[number] = modulus
    return moduli


def worthwhile(
    contribution: Contribution, element: Sequence[Axis], moduli: Sequence[int], points: int
) -> list[int]:
    """The moduli of the dimensions whose split saves points, 1 for the others.

    Parameters
    ----------
    contribution : Contribution
    element : sequence of Axis
        Loops over the elements.
    moduli : sequence of int
        All that could be split.
    points : int
        Body evaluations without a split.
    """
    gains = {}
    for number, modulus in enumerate(moduli):
        if not 1 < modulus <= _MAX_CLASSES:
            continue
        alone = [modulus if i == number else 1 for i in range(len(moduli))]
        remaining = sum(
            residue_class.points for residue_class in residue_classes(contribution, element, alone)
        )
        if remaining <= _MAX_REMAINING_FRACTION * points:
            gains[number] = remaining
    chosen = [1] * len(moduli)
    # Splits that leave the fewest points come first, as long as the classes stay few.
    for number in sorted(gains, key=lambda n: gains[n]):
        chosen[number] = moduli[number]
        if not is_feasible(chosen):
            chosen[number] = 1
    return chosen


def is_feasible(moduli: Sequence[int]) -> bool:
    """Whether so many classes are worth looking at."""
    return prod(moduli) <= _MAX_CLASSES


def residue_classes(
    contribution: Contribution, element: Sequence[Axis], moduli: Sequence[int]
) -> list[ResidueClass]:
    """The classes of elements that are read at all, with the points that read them.

    Parameters
    ----------
    contribution : Contribution
        With affine indices.
    element : sequence of Axis
        Loops over the elements.
    moduli : sequence of int
        One per dimension.
    """
    analyzer = tvm.sym.Analyzer()
    classes = []
    for residues in combinations(*(range(modulus) for modulus in moduli)):
        axes, position = [], []
        for axis, modulus, residue in zip(element, moduli, residues, strict=True):
            extent = axis.extent
            if modulus > 1:
                # ⌈(extent - residue) / modulus⌉ positions have this remainder.
                extent = analyzer.simplify(tirx.floordiv(extent + (modulus - 1 - residue), modulus))
            var = te.var(axis.var.name, str(axis.var.ty))
            axes.append(Axis(var, axis.low, extent))
            position.append(var if modulus == 1 else var * modulus + residue)
        restricted = _restrict_to_residues(contribution, moduli, residues)
        if restricted is None:
            continue
        reading, former = restricted
        inversion = invert(reading.indices, reading.axes, axes, position, reading.conditions)
        values = list(zip([axis.var for axis in reading.axes], inversion.values, strict=True))
        # The inversion solves for the restricted loops; the terms are in the former ones.
        inversion = replace(inversion, values=[substituted(value, values) for value in former])
        residue_class = ResidueClass(residues, axes, position, inversion)
        if residue_class.points and not any(is_false(guard) for guard in inversion.guards):
            classes.append(residue_class)
    return classes


def _restrict_to_residues(
    contribution: Contribution, moduli: Sequence[int], residues: Residues
) -> tuple[Contribution, list[Expr]] | None:
    """A contribution with loops over only those values that its residues allow.

    Where one loop variable alone decides the remainder of an index, each residue has its own values
    of that variable.

    Returns
    -------
    (Contribution, list of Expr) or None
        With the values of the former loops in terms of the new ones; None if there are none.
    """
    axes = list(contribution.axes)
    values: list[Expr] = [axis.var for axis in axes]
    for index, modulus, residue in zip(contribution.indices, moduli, residues, strict=True):
        deciding = _deciding(index, modulus, contribution.axes)
        if deciding is None:
            continue
        number, factor, rest = deciding
        class_of_loop = _residue_class(factor, residue - rest, modulus)
        if class_of_loop is None:
            return None
        axis = contribution.axes[number]
        # A loop is restricted once; what further indices ask of it is left to the inversion.
        if axes[number] is axis and class_of_loop[1] > 1 and isinstance(axis.low, prim.IntImm):
            axes[number], values[number] = _loop_over(axis, *class_of_loop)
    return _in_loops(contribution, axes, values), values


def _deciding(index: Expr, modulus: int, axes: Sequence[Axis]) -> tuple[int, int, int] | None:
    """The one loop that decides an index's remainder, its factor, and what is added."""
    form = coefficients(index, axes)
    if modulus == 1 or form is None or not isinstance(form[1], prim.IntImm):
        return None
    # A factor that is a multiple of the modulus leaves the remainder as it is.
    deciding = [number for number, factor in enumerate(form[0]) if factor % modulus]
    return (deciding[0], form[0][deciding[0]], int(form[1])) if len(deciding) == 1 else None


def _residue_class(factor: int, wanted: int, modulus: int) -> tuple[int, int] | None:
    """The r and m such that `factor`·v ≡ `wanted` means v ≡ r (mod m); None if it never is."""
    common = gcd(factor, modulus)
    if wanted % common:
        return None
    # Without the common divisor, the factor has an inverse modulo the step.
    step = modulus // common
    return wanted // common * pow(factor // common, -1, step) % step, step


def _loop_over(axis: Axis, residue: int, step: int) -> tuple[Axis, Expr]:
    """A loop over the values of another's variable in a residue class, and the value."""
    # The first value of the range that is in the class.
    first = int(axis.low) + (residue - int(axis.low)) % step
    count = tirx.floordiv(axis.low + axis.extent - first + (step - 1), step)
    dtype = str(axis.var.ty)
    extent = tvm.sym.Analyzer().simplify(tirx.max(count, 0))
    loop = Axis(te.var(axis.var.name, dtype), tirx.const(0, dtype), extent)
    return loop, loop.var * step + first


def _in_loops(
    contribution: Contribution, axes: Sequence[Axis], values: Sequence[Expr]
) -> Contribution:
    """A contribution in other loops, in which its loop variables have some values."""
    pairs = list(zip([axis.var for axis in contribution.axes], values, strict=True))

    def moved(exprs: Sequence[Expr]) -> list[Expr]:
        return [substituted(expr, pairs) for expr in exprs]

    return replace(
        contribution,
        # The range of a loop may depend on another one.
        axes=[Axis(axis.var, *moved([axis.low, axis.extent])) for axis in axes],
        indices=moved(contribution.indices),
        conditions=moved(contribution.conditions),
    )


def has_too_many_classes(classes: Sequence[ResidueClass]) -> bool:
    """Whether there are more residue classes than stages should be."""
    return len(classes) > _MAX_RESIDUE_CLASSES


def label(residues: Residues) -> str:
    """The residues of a residue class as they stand in its name."""
    return "".join(str(residue) for residue in residues)


def merged(
    stages: Mapping[Residues, te.Tensor],
    shape: Sequence[Expr],
    moduli: Sequence[int],
    dtype: str,
    name: str,
) -> te.Tensor:
    """The tensor whose elements are those of the residue classes, 0 where there is none.

    Parameters
    ----------
    stages : mapping of tensors, by their residues
    shape : sequence of Expr
    moduli : sequence of int
        One per dimension.
    dtype : str
    name : str
    """

    def body(*position: Any) -> Expr:
        quotients = [
            p if modulus == 1 else tirx.floordiv(p, modulus)
            for p, modulus in zip(position, moduli, strict=True)
        ]

        def choice(residues: Residues) -> Expr:
            number = len(residues)
            if number == len(moduli):
                present = residues in stages
                return stages[residues](*quotients) if present else tirx.const(0.0, dtype)
            # The last needs no condition: no other remainder is left.
            *alternatives, value = (choice((*residues, each)) for each in range(moduli[number]))
            remainder = tirx.floormod(position[number], moduli[number])
            for residue, alternative in reversed(list(enumerate(alternatives))):
                here = tirx.EQ(remainder, tirx.const(residue, str(remainder.ty)))
                value = tirx.if_then_else(here, alternative, value)
            return value

        return choice(())

    return te.compute(tuple(shape), body, name=name, attrs=marked(Kind.MERGE))
