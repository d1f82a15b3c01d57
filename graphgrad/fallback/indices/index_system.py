"""Index maps inverted: which points of some loops read a given element of a tensor.

The indices of a read are equations in the loop variables. What is affine over the integers, with
floor division and remainder, is solved exactly (`lattice`); the solution names every such point
once. Anything else is not inverted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import te, tirx

from ..constants import integer_value, is_false, is_true
from ..walk import Expr, identity, substituted
from . import polynomial
from .conditions import add_conditions, nonnegative_form
from .integer_rows import IntegerRows, integer_rows
from .lattice import Form, Solutions, Symbol, solve
from .linear_system import Axis, LinearSystem, NotAffineError, analyzer_of

__all__ = ["Axis", "Inversion", "NotAffineError", "invert"]


@dataclass
class Inversion:
    """All points that read one element, as a loop nest.

    Attributes
    ----------
    values : list of Expr
        Of each axis, in terms of the element's indices and the variables of `loops`.
    loops : list of Axis
        New loops, from 0, in the order of the axes that they walk along and named after them.
        A loop of one trip is left out.
    guards : list of Expr
        A point of the loops counts only where all of these hold; what is provable is left out.
        If nothing reads any element, there are no loops and the only guard is the constant false.
    residues : list of (Expr, int)
        Numerators, in terms of the element's variables and the loops', and divisors: remainders
        that `guards` or `values` contain, and that would be constant in each of several classes.
    """

    values: list[Expr]
    loops: list[Axis]
    guards: list[Expr]
    residues: list[tuple[Expr, int]]


def invert(
    indices: Sequence[Expr],
    axes: Sequence[Axis],
    element: Sequence[Axis],
    position: Sequence[Expr] | None = None,
    equations: Sequence[Expr] = (),
) -> Inversion:
    """The points of `axes` at which `indices` are the given element.

    Parameters
    ----------
    indices : sequence of Expr
        Of a read, in terms of the axes' variables and parameters (symbolic sizes).
    axes : sequence of Axis
        The range of one may depend on those before it.
    element : sequence of Axis
        Loops over the elements, or over some of them.
    position : sequence of Expr, optional
        The indices of an element in terms of these loops' variables; the variables themselves if
        left out.
    equations : sequence of Expr
        Integer conditions on the axes under which alone a point counts. They hold by construction
        where they can be solved for (``a == b``, ``e % m == 0``, a bound of an unknown); the
        others come back as guards.

    Raises
    ------
    NotAffineError
        An index is not affine in the axes' variables, or not seen to be.
    """
    if position is None and not equations and _is_identity(indices, axes, element):
        return Inversion([axis.var for axis in element], [], [], [])
    system = LinearSystem(axes, [axis.extent for axis in element])
    coordinates = [axis.var for axis in element] if position is None else position
    for index, coordinate in zip(indices, coordinates, strict=True):
        system.add_index(index, coordinate)
    add_conditions(system, equations)
    return _Rendering(system, integer_rows(system), element).inversion()


def _is_identity(indices: Sequence[Expr], axes: Sequence[Axis], element: Sequence[Axis]) -> bool:
    """Whether each loop is over one dimension, in order: what long chains are made of."""
    return len(indices) == len(axes) and all(
        identity(index) == identity(axis.var)
        and integer_value(axis.low) == integer_value(other.low) == 0
        and axis.var.ty == other.var.ty
        and tvm_ffi.structural_equal(axis.extent, other.extent)
        for index, axis, other in zip(indices, axes, element, strict=True)
    )


class _Rendering:
    """The solutions of a system in terms of TVM's expressions."""

    def __init__(self, system: LinearSystem, integer: IntegerRows, element: Sequence[Axis]):
        self.system = system
        self.element = element
        self.eliminated = integer.eliminated
        eliminated = {unknown for unknown, _ in self.eliminated}
        self.unknowns = [u for u in range(len(system.unknowns)) if u not in eliminated]
        self.solutions = self._solved(integer)
        self.analyzer = analyzer_of(element)
        self.values: dict[Symbol, Expr] = {}
        for i, row in enumerate(integer.rows):
            self.values[Symbol("right", i)] = row.right
        for i, unknown in enumerate(self.unknowns):
            low = system.expression(system.unknowns[unknown].low, [])
            self.values[Symbol("low", i)] = low
        self.starts: dict[int, Expr] = {}
        self.loops: dict[int, tuple[int, Axis]] = {}
        # In order: where a loop starts may depend on those before it.
        for i in range(len(self.solutions.loops)):
            self._add_loop(i)
        self._reverse_loops()

    def inversion(self) -> Inversion:
        """The inversion, with the values of the axes."""
        if any(integer_value(axis.extent) == 0 for _, axis in self.loops.values()):
            return self._nothing()
        guards, residues = self._divisibility()
        values = self._values()
        axes = [axis.var for axis in self.system.axes]
        # Behind the axes there are unknowns that are parts of divisions.
        axis_values = [v.astype(str(a.ty)) for v, a in zip(values, axes, strict=False)]
        guards += self._ranges(values)
        guards += [
            substituted(c, zip(axes, axis_values, strict=True)) for c in self.system.conditions
        ]
        unproven = self._not_provable(guards)
        if unproven is None:
            return self._nothing()
        loops = sorted(self.loops.values(), key=lambda loop: loop[0])
        return Inversion(axis_values, [axis for _, axis in loops], unproven, residues)

    def _solved(self, integer: IntegerRows) -> Solutions:
        matrix = [[row.form.get((u, ()), 0) for u in self.unknowns] for row in integer.rows]
        extents = [polynomial.value_of(self.system.unknowns[u].extent) for u in self.unknowns]
        return solve(matrix, [None if e is None else max(e, 0) for e in extents])

    def _nothing(self) -> Inversion:
        values = [tirx.const(0, str(axis.var.ty)) for axis in self.system.axes]
        return Inversion(values, [], [tirx.const(False)], [])

    def _add_loop(self, number: int) -> None:
        """Add a loop with as many trips as are needed; a single one is no loop."""
        loop = self.solutions.loops[number]
        unknown = self.system.unknowns[self.unknowns[loop.unknown]]
        start = self._start(number)
        extent = self.system.expression(unknown.extent, [])
        self.starts[number] = start
        # Unless the start is known here, one trip may be too many; a guard leaves it out.
        if integer_value(start) is not None:
            extent = extent - start
        trips = self.analyzer.simplify(tirx.floordiv(extent + (loop.step - 1), loop.step))
        dtype = self.system.dtype
        zero = tirx.const(0, dtype)
        if integer_value(trips) == 1:
            self.values[Symbol("loop", number)] = zero
            return
        count = integer_value(trips)
        trips = trips if count is None else tirx.const(max(count, 0), dtype)
        axis = Axis(te.var(unknown.name, dtype), zero, trips)
        self.analyzer.bind(axis.var, tvm.ir.Range.from_min_extent(axis.low, axis.extent))
        self.values[Symbol("loop", number)] = axis.var
        self.loops[number] = unknown.axis, axis

    def _reverse_loops(self) -> None:
        """Reverse the loops with which an axis only falls that the element moves as well.

        So loops and elements have positive coefficients in the indices that they share.
        """
        moves: dict[int, set[bool]] = {}
        walked = {
            loop.unknown: number
            for number, loop in enumerate(self.solutions.loops)
            if integer_value(self.starts[number]) is not None
        }
        for index, form in enumerate(self.solutions.unknowns):
            if self.unknowns[index] >= len(self.system.axes) or index in walked:
                continue
            signs = self._signs(form)
            if any(kind == "right" for (kind, _), _ in signs):
                for (kind, number), sign in signs:
                    if kind == "loop":
                        moves.setdefault(number, set()).add(sign)
        backward = [number for number in self.loops if moves.get(number) == {False}]
        for number in backward:
            axis = self.loops[number][1]
            self.values[Symbol("loop", number)] = axis.extent - 1 - axis.var
        if backward:
            # Quotients were worked out from the loops as they ran before.
            self.values = {s: v for s, v in self.values.items() if s.kind != "quotient"}
            for number in self.starts:
                self.starts[number] = self._start(number)

    def _signs(self, form: Form) -> set[tuple[Symbol, bool]]:
        """What a form grows with (True) or falls with (False): loops and the element."""
        signs = set()
        for symbol, coefficient in form.items():
            if symbol.kind == "quotient":
                below = self._signs(self.solutions.quotients[symbol.number].numerator)
                signs |= {(s, sign == (coefficient > 0)) for s, sign in below}
            elif symbol.kind == "loop" or integer_value(self.values[symbol]) is None:
                signs.add((symbol, coefficient > 0))
        return signs

    def _start(self, number: int) -> Expr:
        """The start of a loop, above its unknown's lower bound."""
        loop = self.solutions.loops[number]
        return self.analyzer.simplify(tirx.floormod(self._value(loop.above), loop.step))

    def _value(self, form: Form) -> Expr:
        total: Expr = tirx.const(0, self.system.dtype)
        for symbol, coefficient in form.items():
            total = total + self._symbol(symbol) * coefficient
        return self.analyzer.simplify(total)

    def _symbol(self, symbol: Symbol) -> Expr:
        if symbol not in self.values:
            assert symbol.kind == "quotient"
            quotient = self.solutions.quotients[symbol.number]
            value = tirx.floordiv(self._value(quotient.numerator), quotient.divisor)
            self.values[symbol] = self.analyzer.simplify(value)
        return self.values[symbol]

    def _divisibility(self) -> tuple[list[Expr], list[tuple[Expr, int]]]:
        """The conditions for a solution to exist, and the remainders that are computed."""
        guards = [_equals_zero(self._value(form)) for form in self.solutions.equations]
        residues = []
        for quotient in self.solutions.quotients:
            numerator = self._value(quotient.numerator)
            remainder = self.analyzer.simplify(tirx.floormod(numerator, quotient.divisor))
            if quotient.exact:
                guards.append(_equals_zero(remainder))
            if integer_value(remainder) is None:
                residues.append((numerator, quotient.divisor))
        return guards, residues

    def _values(self) -> list[Expr]:
        """The value of each unknown of the system."""
        values: list[Any] = [None] * len(self.system.unknowns)
        for unknown, form in zip(self.unknowns, self.solutions.unknowns, strict=True):
            values[unknown] = self._value(form)
        for number, loop in enumerate(self.solutions.loops):
            low = self.values[Symbol("low", loop.unknown)]
            counter = self.values[Symbol("loop", number)]
            # The same as the solution's form, but without its quotient.
            value = low + self.starts[number] + counter * loop.step
            values[self.unknowns[loop.unknown]] = self.analyzer.simplify(value)
        # The last first: earlier ones may depend on later ones.
        for unknown, row in reversed(self.eliminated):
            rest = self.system.expression(row.form, values)
            values[unknown] = self.analyzer.simplify(row.right - rest)
        return values

    def _ranges(self, values: Sequence[Expr]) -> list[Expr]:
        """The conditions that the unknowns are in their ranges."""
        never_below = {self.unknowns[loop.unknown] for loop in self.solutions.loops}
        never_above = {
            self.unknowns[loop.unknown]
            for number, loop in enumerate(self.solutions.loops)
            if integer_value(self.starts[number]) is not None
        }
        guards = []
        for number, (unknown, value) in enumerate(zip(self.system.unknowns, values, strict=True)):
            low, high = (self.system.expression(b, []) for b in (unknown.low, unknown.high))
            if unknown.bounded and number not in never_below:
                guards.append(value >= low)
            if unknown.bounded and number not in never_above:
                guards.append(value <= high)
        return guards

    def _not_provable(self, conditions: Sequence[Expr]) -> list[Expr] | None:
        """The conditions that are not always true; None if one is always false."""
        loops = [axis for _, axis in self.loops.values()]
        bounded: LinearSystem | None = None
        unproven: list[Expr] = []
        for condition in conditions:
            simple = self.analyzer.simplify(condition)
            if is_true(simple):
                continue
            if is_false(simple):
                return None
            if self.system.parameters:
                bounded = bounded or LinearSystem([*self.element, *loops])
                # Forms know the signs of products of sizes.
                if _holds(bounded, simple):
                    continue
            if self.analyzer.can_prove(simple):
                continue
            if not any(tvm_ffi.structural_equal(simple, other) for other in unproven):
                unproven.append(simple)
        return unproven


def _holds(system: LinearSystem, condition: Expr) -> bool:
    """Whether an inequality holds throughout the ranges of a system's unknowns."""
    try:
        form = nonnegative_form(system, condition)
    except NotAffineError:
        return False
    return form is not None and system.is_nonnegative(form)


def _equals_zero(value: Expr) -> Expr:
    return tirx.EQ(value, tirx.const(0, str(value.ty)))
