"""Index maps inverted: which points of some loops read a given element of a tensor.

The indices of a read are equations in the loop variables. What is affine over the integers, with
floor division and remainder by constants, is solved exactly (`lattice`); the solution names every
such point once. Anything else is not inverted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
import tvm_ffi
from tvm import te, tirx
from tvm.ir import prim

from .lattice import Form, Solutions, Symbol, solve
from .walk import Expr, identity, postorder

_WIDEST = 1 << 40
"""Bounds beyond which TVM's analysis only says that it knows none."""


@dataclass(frozen=True)
class Axis:
    """A loop variable and its range."""

    var: Any
    low: Expr
    extent: Expr


@dataclass
class Inversion:
    """All points that read one element, as a loop nest.

    Attributes
    ----------
    values : list of Expr
        Of each axis, in terms of the element's indices and the variables of `loops`.
    loops : list of Axis
        New loops, from 0.
    guards : list of Expr
        A point of the loops counts only where all of these hold; what is provable is left out.
    """

    values: list[Expr]
    loops: list[Axis]
    guards: list[Expr]


class NotAffineError(Exception):
    """An index is not affine in the loop variables, so it cannot be solved for them."""


def invert(indices: Sequence[Expr], axes: Sequence[Axis], element: Sequence[Axis]) -> Inversion:
    """Return the points of `axes` at which `indices` are the given element.

    Parameters
    ----------
    indices : sequence of Expr
        Of a read, in terms of the axes' variables and parameters (symbolic sizes).
    axes : sequence of Axis
    element : sequence of Axis
        A variable for each index, with the tensor's shape as its range.

    Raises
    ------
    NotAffineError
    """
    system = _System(axes)
    rows, rights = [], []
    for index, axis in zip(indices, element, strict=True):
        form, constant = system.linear(index)
        rows.append(form)
        rights.append(axis.var - constant)
    for form, constant in system.definitions:
        rows.append(form)
        rights.append(-constant)
    unknowns = system.unknowns
    matrix = [[row.get(j, 0) for j in range(len(unknowns))] for row in rows]
    solutions = solve(matrix, [_constant(axis.extent) for axis in unknowns])
    return _Rendering(solutions, rights, unknowns, element).inversion(len(axes))


@dataclass
class _System:
    """Unknowns, and equations that define those of them that stand for quotients."""

    axes: Sequence[Axis]
    unknowns: list[Axis] = field(default_factory=list)
    definitions: list[tuple[dict[int, int], Expr]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.unknowns = list(self.axes)
        self.number = {identity(axis.var): i for i, axis in enumerate(self.axes)}
        self.analyzer = tvm.sym.Analyzer()
        for axis in self.axes:
            self.analyzer.bind(axis.var, tvm.ir.Range.from_min_extent(axis.low, axis.extent))
        self.divided: list[tuple[Expr, int, tuple[int, int]]] = []

    def linear(self, expr: Expr) -> tuple[dict[int, int], Expr]:
        """Return the coefficients of the unknowns in an index, and what is left."""
        expr = self.analyzer.simplify(expr)
        if not self._depends(expr):
            return {}, expr
        if isinstance(expr, tvm.ir.Var):
            return {self.number[identity(expr)]: 1}, tirx.const(0, str(expr.ty))
        if isinstance(expr, prim.Cast) and "int" in str(expr.ty) and "int" in str(expr.value.ty):
            form, rest = self.linear(expr.value)
            return form, rest.astype(str(expr.ty))
        if isinstance(expr, prim.Add | prim.Sub):
            sign = 1 if isinstance(expr, prim.Add) else -1
            first, rest = self.linear(expr.a)
            second, other = self.linear(expr.b)
            return _sum(first, second, sign), rest + other if sign == 1 else rest - other
        if isinstance(expr, prim.Mul):
            return self._product(expr)
        if isinstance(expr, prim.FloorDiv | prim.FloorMod):
            return self._quotient(expr, isinstance(expr, prim.FloorDiv))
        if isinstance(expr, prim.Div | prim.Mod) and self.analyzer.can_prove(expr.a >= 0):
            return self._quotient(expr, isinstance(expr, prim.Div))
        raise NotAffineError(expr)

    def _product(self, expr: Expr) -> tuple[dict[int, int], Expr]:
        for varying, factor in ((expr.a, expr.b), (expr.b, expr.a)):
            value = _constant(factor)
            if value is not None:
                form, rest = self.linear(varying)
                return {i: value * c for i, c in form.items() if value}, rest * value
        raise NotAffineError(expr)

    def _quotient(self, expr: Expr, wants_quotient: bool) -> tuple[dict[int, int], Expr]:
        """Return a quotient or remainder as an unknown of its own: e = c · q + m, 0 ≤ m < c."""
        divisor = _constant(expr.b)
        if divisor is None or divisor <= 0:
            raise NotAffineError(expr)
        numbers = self._divided(expr.a, divisor)
        return {numbers[0 if wants_quotient else 1]: 1}, tirx.const(0, str(expr.ty))

    def _divided(self, dividend: Expr, divisor: int) -> tuple[int, int]:
        for known, by, numbers in self.divided:
            if by == divisor and tvm_ffi.structural_equal(known, dividend):
                return numbers
        form, rest = self.linear(dividend)
        bound = self.analyzer.const_int_bound(dividend)
        if max(abs(bound.min_value), abs(bound.max_value)) > _WIDEST:
            raise NotAffineError(dividend)
        low, high = bound.min_value // divisor, bound.max_value // divisor
        dtype = str(dividend.ty)
        quotient = self._unknown("quotient", low, high - low + 1, dtype)
        remainder = self._unknown("remainder", 0, divisor, dtype)
        self.definitions.append((_sum(form, {quotient: divisor, remainder: 1}, -1), rest))
        self.divided.append((dividend, divisor, (quotient, remainder)))
        return quotient, remainder

    def _unknown(self, name: str, low: int, extent: int, dtype: str) -> int:
        axis = Axis(te.var(name, dtype), tirx.const(low, dtype), tirx.const(extent, dtype))
        self.unknowns.append(axis)
        return len(self.unknowns) - 1

    def _depends(self, expr: Expr) -> bool:
        return any(identity(node) in self.number for node in postorder(expr))


class _Rendering:
    """A solution in terms of TVM's expressions."""

    def __init__(
        self,
        solutions: Solutions,
        rights: Sequence[Expr],
        unknowns: Sequence[Axis],
        element: Sequence[Axis],
    ):
        self.solutions = solutions
        self.unknowns = unknowns
        self.analyzer = tvm.sym.Analyzer()
        for axis in element:
            self.analyzer.bind(axis.var, tvm.ir.Range.from_min_extent(axis.low, axis.extent))
        self.known: dict[Symbol, Expr] = {}
        for i, right in enumerate(rights):
            self.known[Symbol("right", i)] = self.analyzer.simplify(right)
        for i, axis in enumerate(unknowns):
            self.known[Symbol("low", i)] = axis.low
        self.loops = [self._loop(i) for i in range(len(solutions.loops))]

    def inversion(self, axes: int) -> Inversion:
        """Return the inversion, with the values of the first `axes` unknowns."""
        guards = []
        for i, quotient in enumerate(self.solutions.quotients):
            numerator = self._value(quotient.numerator)
            if quotient.exact:
                guards.append(tirx.EQ(tirx.floormod(numerator, quotient.divisor), 0))
            quotient_value = self.analyzer.simplify(tirx.floordiv(numerator, quotient.divisor))
            self.known[Symbol("quotient", i)] = quotient_value
        guards += [tirx.EQ(self._value(form), 0) for form in self.solutions.equations]
        values = [self._value(form) for form in self.solutions.unknowns]
        for value, axis in zip(values, self.unknowns, strict=True):
            guards += [value >= axis.low, value < axis.low + axis.extent]
        return Inversion(values[:axes], self.loops, self._not_provable(guards))

    def _loop(self, number: int) -> Axis:
        loop = self.solutions.loops[number]
        extent = self.unknowns[loop.unknown].extent
        dtype = str(extent.ty)
        trips = self.analyzer.simplify(tirx.floordiv(extent + (loop.step - 1), loop.step))
        axis = Axis(te.var(f"z{number}", dtype), tirx.const(0, dtype), trips)
        self.analyzer.bind(axis.var, tvm.ir.Range.from_min_extent(axis.low, axis.extent))
        self.known[Symbol("loop", number)] = axis.var
        return axis

    def _value(self, form: Form) -> Expr:
        total = tirx.const(0, "int32")
        for symbol, coefficient in form.items():
            total = total + self.known[symbol] * coefficient
        return self.analyzer.simplify(total)

    def _not_provable(self, conditions: Sequence[Expr]) -> list[Expr]:
        left = []
        for condition in conditions:
            simple = self.analyzer.simplify(condition)
            if _constant(simple) != 1 and not self.analyzer.can_prove(simple):
                left.append(simple)
        return left


def _sum(form: dict[int, int], other: dict[int, int], factor: int) -> dict[int, int]:
    total = dict(form)
    for unknown, coefficient in other.items():
        total[unknown] = total.get(unknown, 0) + factor * coefficient
    return {unknown: coefficient for unknown, coefficient in total.items() if coefficient}


def _constant(expr: Any) -> int | None:
    """Return the value of a constant, None if it is symbolic."""
    return int(expr) if isinstance(expr, int | prim.IntImm) else None
