"""Integer points of a box that solve linear equations, each named exactly once.

The adjoint of a read `T[A·u + b]` inside loops over `u` asks, for an element of `T`, which `u` read
it: the solutions of A·u = r (r = index - b) within the loops' bounds. They form a lattice. Column
operations bring A to Hermite form (Cohen, *A Course in Computational Algebraic Number Theory*,
§2.4.2), which yields the conditions for a solution to exist, one solution, and the directions in
which there are more. Each direction is then walked along the unknown on which it has the fewest
points.

Everything here is a Python integer; the right-hand side stays symbolic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .polynomial import plus

Matrix = list[list[int]]


class Symbol(NamedTuple):
    """Something that a solution is a linear function of.

    `kind` is ``"right"`` (element `number` of the right-hand side), ``"low"`` (the lower bound of
    an unknown), ``"quotient"`` or ``"loop"`` (of the solution itself).
    """

    kind: str
    number: int


Form = dict[Symbol, int]
"""A linear form: integer coefficients of symbols."""


@dataclass(frozen=True)
class Quotient:
    """floor(numerator / divisor), a new symbol.

    Attributes
    ----------
    numerator : Form
        Of the right-hand side, lower bounds, and earlier quotients and loops.
    divisor : int
        At least 2.
    exact : bool
        No solution exists where the division leaves a remainder.
    """

    numerator: Form
    divisor: int
    exact: bool


@dataclass(frozen=True)
class Loop:
    """A direction in which there are several solutions: a loop from 0 to ceil(extent / step).

    Attributes
    ----------
    unknown : int
        Which moves by `step` from one trip to the next. It starts at its lower bound or less than
        `step` above it, so it needs no guard but the upper one, and none if `step` divides its
        extent.
    step : int
    above : Form
        How far above its lower bound the unknown is in some solution. Modulo `step`, that is where
        it starts; the loop then takes ceil((extent - start) / step) trips.
    """

    unknown: int
    step: int
    above: Form


@dataclass
class Solutions:
    """All solutions of a system, as a loop nest over them.

    Attributes
    ----------
    unknowns : list of Form
        The value of each unknown at a point of the loops.
    loops : list of Loop
    quotients : list of Quotient
        In the order in which they can be computed.
    equations : list of Form
        Over the right-hand side and quotients; no solution exists where one is not zero.
    """

    unknowns: list[Form]
    loops: list[Loop] = field(default_factory=list)
    quotients: list[Quotient] = field(default_factory=list)
    equations: list[Form] = field(default_factory=list)


def solve(matrix: Sequence[Sequence[int]], extents: Sequence[int | None]) -> Solutions:
    """The solutions u of `matrix` · u = right with low ≤ u < low + extent, as a loop nest.

    Parameters
    ----------
    matrix : rows of int
        One row per equation, one column per unknown.
    extents : sequence of int or None
        How many values each unknown takes; None if that is known only at run time.

    Returns
    -------
    Solutions
        Every solution occurs at exactly one point of the loops. Points that are no solution occur
        as well: the caller guards by the bounds of the unknowns, by exact quotients and equations.
    """
    reduced, transform, pivots = hermite(matrix, len(extents))
    solutions = Solutions([])
    coordinates: list[Form] = []
    pivot_columns = {row: column for column, row in enumerate(pivots)}
    # Forward substitution: a row holds earlier coordinates, and a new one if it has a pivot.
    for row in range(len(matrix)):
        rest: Form = {Symbol("right", row): 1}
        for column, coordinate in enumerate(coordinates):
            rest = plus(rest, coordinate, -reduced[row][column])
        if row in pivot_columns:
            coordinates.append(
                _floor_divide(solutions, rest, reduced[row][pivot_columns[row]], exact=True)
            )
        elif rest:
            # No coordinate is left to make it true.
            solutions.equations.append(rest)
    rank = len(pivots)
    for unknown in range(len(extents)):
        total: Form = {}
        for column, coordinate in enumerate(coordinates):
            total = plus(total, coordinate, transform[unknown][column])
        solutions.unknowns.append(total)
    _walk_kernel(solutions, [row[rank:] for row in transform], list(extents))
    return solutions


def hermite(matrix: Sequence[Sequence[int]], columns: int) -> tuple[Matrix, Matrix, list[int]]:
    """H, U and the pivots' rows: `matrix` · U = H, U unimodular, H in column echelon form.

    Column k of H has its first non-zero entry, which is positive, in row ``pivots[k]``; the
    columns after the last pivot are zero, and those of U there span the kernel.
    """
    reduced = [list(row) for row in matrix]
    transform = [[int(i == j) for j in range(columns)] for i in range(columns)]
    pivots: list[int] = []
    for row in range(len(reduced)):
        column = len(pivots)
        if column < columns and _eliminate(reduced[row], column, [reduced, transform]):
            pivots.append(row)
    return reduced, transform, pivots


def _eliminate(row: list[int], first: int, matrices: list[Matrix]) -> bool:
    """Make `row` zero right of column `first` by column operations; return whether it is not there.

    `row` is a row of one of the matrices, to all of which the operations are applied. What ends up
    in column `first` is the greatest common divisor, positive.
    """
    while True:
        # Euclid's algorithm: the smallest entry goes first and is taken off the others.
        nonzero = [j for j in range(first, len(row)) if row[j]]
        if not nonzero:
            return False
        smallest = min(nonzero, key=lambda j: abs(row[j]))
        sign = 1 if row[smallest] > 0 else -1
        for matrix in matrices:
            for line in matrix:
                line[first], line[smallest] = line[smallest], line[first]
                line[first] *= sign
        others = [j for j in range(first + 1, len(row)) if row[j]]
        if not others:
            return True
        for j in others:
            quotient = row[j] // row[first]
            for matrix in matrices:
                for line in matrix:
                    line[j] -= quotient * line[first]


def _floor_divide(solutions: Solutions, numerator: Form, divisor: int, exact: bool) -> Form:
    """The form of floor(numerator / divisor), by a new quotient if it takes one."""
    if all(coefficient % divisor == 0 for coefficient in numerator.values()):
        return {symbol: coefficient // divisor for symbol, coefficient in numerator.items()}
    solutions.quotients.append(Quotient(numerator, divisor, exact))
    return {Symbol("quotient", len(solutions.quotients) - 1): 1}


def _walk_kernel(solutions: Solutions, kernel: Matrix, extents: list[int | None]) -> None:
    """Add a loop for each direction of the kernel (one row per unknown, one column each)."""
    directions = len(kernel[0]) if kernel else 0
    for direction in range(directions):
        pivot = min(
            (unknown for unknown in range(len(extents)) if any(kernel[unknown][direction:])),
            key=lambda unknown: _cost(extents[unknown], kernel[unknown][direction:]),
        )
        _eliminate(kernel[pivot], direction, [kernel])
        # Now no later direction moves the pivot: this loop settles its value.
        step = kernel[pivot][direction]
        loop = Symbol("loop", len(solutions.loops))
        # u = p + step·t is the smallest value not below `low` where t = -floor((p - low) / step).
        above = plus(solutions.unknowns[pivot], {Symbol("low", pivot): 1}, -1)
        solutions.loops.append(Loop(pivot, step, above))
        moved = plus({loop: 1}, _floor_divide(solutions, above, step, exact=False), -1)
        for unknown, row in enumerate(kernel):
            solutions.unknowns[unknown] = plus(solutions.unknowns[unknown], moved, row[direction])


def _cost(extent: int | None, row: Sequence[int]) -> tuple[float, int]:
    """The number of lattice points on an unknown's range, infinite if it is not known.

    Of as many points, those closer together: a step of 1 leaves no remainder to be computed.
    """
    step = math.gcd(*row)
    return float("inf") if extent is None else -(-extent // step), step
