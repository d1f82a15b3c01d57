"""Index expressions as linear equations over the integers.

The unknowns are loop variables and, for each floor division, its quotient and remainder, which an
equation of their own defines. Sizes known only at run time may be coefficients: such equations are
taken apart by division (`S·A + B = x` with 0 ≤ B < S says A = x // S and B = x % S), or define the
dividend of a quotient, until only integers are left.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
import tvm_ffi
from tvm import te, tirx
from tvm.ir import prim

from ..walk import (
    Expr,
    children,
    depend,
    dtype_name,
    graph_of,
    identity,
    is_load,
    postorder,
    reads,
    rebuilt,
)
from . import polynomial
from .equations import Division, Row, Unknown
from .polynomial import ONE, Form, Term, plus, times

_INDEX_DTYPES = ("int32", "int64")


@dataclass(frozen=True)
class Axis:
    """A loop variable and its range, in the variable's dtype."""

    var: Any
    low: Expr
    extent: Expr

    def __post_init__(self) -> None:
        # A stage's loops of int64 start at an int32 0, on which TVM's analysis fails.
        dtype = dtype_name(self.var.ty)
        for name, bound in (("low", self.low), ("extent", self.extent)):
            if dtype_name(bound.ty) != dtype:
                object.__setattr__(self, name, bound.astype(dtype))


def element_axes(shape: Iterable[Expr], name: str = "x") -> list[Axis]:
    """Loops over the elements of a shape, from 0."""
    axes = []
    for i, extent in enumerate(shape):
        dtype = dtype_name(extent.ty)
        axes.append(Axis(te.var(f"{name}{i}", dtype), tirx.const(0, dtype), extent))
    return axes


def analyzer_of(axes: Iterable[Axis]) -> tvm.sym.Analyzer:
    """An analyzer that knows the ranges of some loop variables.

    Ranges that are read are left out: TVM's analysis fails on loads, which it cannot hash.
    """
    analyzer = tvm.sym.Analyzer()
    for axis in axes:
        if not reads(axis.low, axis.extent):
            analyzer.bind(axis.var, tvm.ir.Range.from_min_extent(axis.low, axis.extent))
    return analyzer


class NotAffineError(Exception):
    """An index is not affine in the loop variables, so it cannot be solved for them."""


@dataclass
class LinearSystem:
    """Equations over the variables of some loops.

    Attributes
    ----------
    axes : sequence of Axis
        The first unknowns.
    extents : sequence of Expr
        Of other loops: sizes that are positive wherever a point exists, as those of `axes` are.
    unknowns : list of Unknown
    rows : list of Row
    conditions : list of Expr
        On the axes' variables, that a solution must satisfy besides.
    divisions : list of Division
    parameters : list of Expr
    positive : set of int
        Parameters that are positive wherever a point exists.
    sizes : set of int
        Those that are so already wherever the other loops run: factors of `extents`.
    """

    axes: Sequence[Axis]
    extents: Sequence[Expr] = ()
    unknowns: list[Unknown] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    conditions: list[Expr] = field(default_factory=list)
    divisions: list[Division] = field(default_factory=list)
    parameters: list[Expr] = field(default_factory=list)
    positive: set[int] = field(default_factory=set)
    sizes: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.number = {identity(axis.var): i for i, axis in enumerate(self.axes)}
        dtypes = [str(axis.var.ty) for axis in self.axes]
        dtypes += [str(extent.ty) for extent in self.extents]
        self.dtype = "int64" if "int64" in dtypes else "int32"
        self.analyzer = tvm.sym.Analyzer()
        for extent in self.extents:
            self.sizes |= self._factors(extent)
        self.positive |= self.sizes
        for axis in self.axes:
            self.positive |= self._factors(axis.extent)
        # The first unknowns are the axes: the parts of divisions in their bounds come behind all.
        self.unknowns = [Unknown(str(axis.var.name), {}, {}, 0) for axis in self.axes]
        for i, axis in enumerate(self.axes):
            _refuse_loads(axis.low, axis.extent)
            self.analyzer.bind(axis.var, tvm.ir.Range.from_min_extent(axis.low, axis.extent))
            self.unknowns[i] = self._axis_unknown(axis, i)

    def add_index(self, index: Expr, position: Expr) -> None:
        """Add the equation that an index is at a place."""
        self.add_row(self.linear(index), position)

    def linear(self, expr: Expr) -> Form:
        """An integer expression as a form.

        Raises
        ------
        NotAffineError
        """
        _refuse_loads(expr)
        root = self.analyzer.simplify(expr)
        forms: dict[int, Form] = {}
        for node, below in graph_of([root]):
            forms[identity(node)] = self._form(node, [forms[identity(part)] for part in below])
        return forms[identity(root)]

    def expression(self, form: Form, values: Sequence[Expr]) -> Expr:
        """A form as an expression, given those of the unknowns, in the common dtype."""
        value = polynomial.value_of(form)
        if value is not None:
            return tirx.const(value, self.dtype)
        total: Expr = tirx.const(0, self.dtype)
        for (unknown, monomial), coefficient in form.items():
            factors = [self.parameters[p].astype(self.dtype) for p in monomial]
            if unknown != ONE:
                factors.append(values[unknown].astype(self.dtype))
            term: Expr = tirx.const(coefficient, self.dtype)
            for factor in factors:
                term = factor * term
            total = total + term
        return total

    def bounds(self, form: Form) -> tuple[Form, Form] | None:
        """The least and the greatest value of a form; None if they are not known."""
        return polynomial.bounds(form, self._range, self.positive)

    def is_nonnegative(self, form: Form) -> bool:
        """Whether a form is seen to be ≥ 0 wherever the unknowns are in their ranges."""
        limits = self.bounds(form)
        return limits is not None and polynomial.is_nonnegative(limits[0], self.positive)

    def safe_divisor(self, divisor: Form) -> Expr:
        """A divisor, made 1 where it might not be positive without any point there."""
        value = self.expression(divisor, [])
        if polynomial.is_nonnegative(plus(divisor, polynomial.constant(-1)), self.sizes):
            return value
        return tirx.max(value, tirx.const(1, self.dtype))

    def _axis_unknown(self, axis: Axis, number: int) -> Unknown:
        low, extent = (self._bound_form(bound, number) for bound in (axis.low, axis.extent))
        last = plus(plus(low, extent), polynomial.constant(-1))
        name = str(axis.var.name)
        if not polynomial.unknowns_of(low) and not polynomial.unknowns_of(last):
            return Unknown(name, low, last, number)
        # A range that depends on other loops: one that encloses it, and conditions.
        enclosing = self.bounds(low), self.bounds(last)
        if enclosing[0] is None or enclosing[1] is None:
            raise NotAffineError(axis.extent)
        self.conditions += [axis.var >= axis.low, axis.var < axis.low + axis.extent]
        return Unknown(name, enclosing[0][0], enclosing[1][1], number)

    def _bound_form(self, expr: Expr, axis: int) -> Form:
        """One bound of the loop of a number, as a form.

        Raises
        ------
        NotAffineError
            It is not affine in the loops further out.
        """
        if isinstance(expr, prim.IntImm):
            return polynomial.constant(int(expr.value))
        for node in postorder(expr):
            if self.number.get(identity(node), -1) >= axis:
                raise NotAffineError(expr)
        return self.linear(expr)

    def _range(self, unknown: int) -> tuple[Form, Form]:
        return self.unknowns[unknown].low, self.unknowns[unknown].high

    def _factors(self, extent: Expr) -> set[int]:
        """The parameters that are factors of a size, and positive with it."""
        parameters = set()
        factors = [extent]
        while factors:
            factor = factors.pop()
            if isinstance(factor, prim.Mul):
                factors += [factor.a, factor.b]
            elif isinstance(factor, prim.Cast):
                factors.append(factor.value)
            elif isinstance(factor, tvm.ir.Var) and identity(factor) not in self.number:
                parameters.add(self._parameter(factor))
        return parameters

    def _parameter(self, expr: Expr) -> int:
        for number, existing in enumerate(self.parameters):
            # Free variables are not mapped: other variables are other sizes.
            if tvm_ffi.structural_equal(existing, expr, map_free_vars=False):
                return number
        self.parameters.append(expr)
        return len(self.parameters) - 1

    def add_row(self, form: Form, right: Expr) -> None:
        """Add the equation that a form has a value."""
        constants = {key: c for key, c in form.items() if key[0] == ONE}
        unknowns = {key: c for key, c in form.items() if key[0] != ONE}
        right = right.astype(self.dtype) - self.expression(constants, [])
        self.rows.append(Row(unknowns, self.analyzer.simplify(right)))

    def _form(self, node: Expr, parts: Sequence[Form]) -> Form:
        if isinstance(node, tvm.ir.Var) and identity(node) in self.number:
            return {(self.number[identity(node)], ()): 1}
        if isinstance(node, prim.IntImm):
            return polynomial.constant(int(node.value))
        form = self._operation(node, parts) if str(node.ty) in _INDEX_DTYPES else None
        if form is None and any(polynomial.unknowns_of(part) for part in parts):
            raise NotAffineError(node)
        return self._outside(node, parts) if form is None else form

    def _outside(self, node: Expr, parts: Sequence[Form]) -> Form:
        """An operation on forms without unknowns as a constant or a parameter.

        The node itself may name loops that cancel in its parts, behind casts for instance.
        """
        if depend([node], self.number):
            values = [
                self._value(part, child) for part, child in zip(parts, children(node), strict=True)
            ]
            node = self.analyzer.simplify(rebuilt(node, values))
            if isinstance(node, prim.IntImm):
                return polynomial.constant(int(node.value))
        return {(ONE, (self._parameter(node),)): 1}

    def _value(self, form: Form, node: Expr) -> Expr:
        """The form of a node as an expression of the node's dtype."""
        dtype = str(node.ty)
        if dtype in _INDEX_DTYPES:
            return self.expression(form, []).astype(dtype)
        value = polynomial.value_of(form)
        if value is not None:
            return tirx.const(value, dtype)
        # Of what is no index, nothing is added up: the form is one parameter.
        ((_, (parameter,)),) = form
        return self.parameters[parameter]

    def _operation(self, node: Expr, parts: Sequence[Form]) -> Form | None:
        """The form of an operation on forms, None if it has none."""
        if isinstance(node, prim.Cast):
            return parts[0] if str(node.value.ty) in _INDEX_DTYPES else None
        if isinstance(node, prim.Add | prim.Sub):
            return plus(parts[0], parts[1], 1 if isinstance(node, prim.Add) else -1)
        if isinstance(node, prim.Mul):
            return times(parts[0], parts[1])
        if isinstance(node, prim.FloorDiv | prim.FloorMod):
            return self._floored(parts, isinstance(node, prim.FloorDiv))
        if isinstance(node, prim.Div | prim.Mod) and (
            self.is_nonnegative(parts[0]) or self.analyzer.can_prove(node.a >= 0)
        ):
            return self._part(parts, isinstance(node, prim.Div))
        return self._bits(node, parts)

    def _bits(self, node: Expr, parts: Sequence[Form]) -> Form | None:
        """The form of a shift or of a mask of low bits, None if it is not one."""
        value = polynomial.value_of(parts[1]) if len(parts) == 2 else None
        if value is None or value < 0:
            return None
        # Powers of 2 that fit into int64.
        if isinstance(node, prim.LShift | prim.RShift) and value < 62:
            power = polynomial.constant(1 << value)
            if isinstance(node, prim.LShift):
                return times(parts[0], power)
            return self._part([parts[0], power], True)
        # A mask of low bits is one less than a power of 2.
        if isinstance(node, prim.BitwiseAnd) and value & (value + 1) == 0:
            return self._part([parts[0], polynomial.constant(value + 1)], False)
        return None

    def _floored(self, parts: Sequence[Form], wants_quotient: bool) -> Form | None:
        """The form of a floor division; a divisor may be negative: a / -b = -a / b."""
        if polynomial.single_term(parts[1]) is not None:
            return self._part(parts, wants_quotient)
        # a // -b is -a // b, and a % -b is -(-a % b).
        result = self._part([plus({}, part, -1) for part in parts], wants_quotient)
        return result if wants_quotient or result is None else plus({}, result, -1)

    def _part(self, parts: Sequence[Form], wants_quotient: bool) -> Form | None:
        """The quotient or the remainder of a floor division, None if it is unknown."""
        by = polynomial.single_term(parts[1])
        # Only by what is surely positive can a form be taken apart.
        if by is None or not self.positive.issuperset(by[1]):
            return None
        # Without unknowns the division as a whole is a parameter.
        if not polynomial.unknowns_of(parts[0]):
            return None
        quotient, remainder = self._split(parts[0], by)
        if not polynomial.unknowns_of(remainder):
            # Of what is left, made of sizes alone, the quotient is a parameter.
            rest_quotient = self._bound_quotient(remainder, parts[1])
            multiple = times(rest_quotient, parts[1])
            assert multiple is not None
            quotient, remainder = plus(quotient, rest_quotient), plus(remainder, multiple, -1)
        elif not self._is_remainder(remainder, by):
            # Of what is left, quotient and remainder become unknowns.
            division = self._division(remainder, parts[1])
            quotient = plus(quotient, {(division.quotient, ()): 1})
            remainder = {(division.remainder, ()): 1}
        return quotient if wants_quotient else remainder

    def _split(self, form: Form, by: Term) -> tuple[Form, Form]:
        """The q and r with form = `by` · q + r, and 0 ≤ r < `by` if that can be reached."""
        quotient, remainder = polynomial.divided(form, by)
        divisor = {(ONE, by[1]): by[0]}
        # Divided term by term, the quotient may be off by one.
        for shift in (0, 1, -1):
            moved = plus(remainder, divisor, shift)
            if self._is_remainder(moved, by):
                return plus(quotient, polynomial.constant(-shift)), moved
        return quotient, remainder

    def _is_remainder(self, form: Form, by: Term) -> bool:
        below = plus(plus({(ONE, by[1]): by[0]}, form, -1), polynomial.constant(-1))
        return self.is_nonnegative(form) and self.is_nonnegative(below)

    def _division(self, dividend: Form, divisor: Form) -> Division:
        for existing in self.divisions:
            if existing.dividend == dividend and existing.divisor == divisor:
                return existing
        limits = self.bounds(dividend)
        if limits is None:
            raise NotAffineError(self.expression(dividend, self._names()))
        low, high = (self._bound_quotient(bound, divisor) for bound in limits)
        axis = min(self.unknowns[u].axis for u in polynomial.unknowns_of(dividend))
        name = self.unknowns[axis].name
        last = plus(divisor, polynomial.constant(-1))
        number = len(self.unknowns)
        # The equation bounds the quotient where the others are in their ranges.
        self.unknowns.append(Unknown(f"{name}_outer", low, high, axis, bounded=False))
        self.unknowns.append(Unknown(f"{name}_inner", {}, last, axis))
        division = Division(dividend, divisor, number, number + 1)
        self.divisions.append(division)
        remainder: Form = {(number + 1, ()): 1}
        form = plus(dividend, remainder, -1)
        by_quotient = times(divisor, {(number, ()): 1})
        assert by_quotient is not None
        self.add_row(plus(form, by_quotient, -1), tirx.const(0, self.dtype))
        return division

    def _names(self) -> list[Expr]:
        """A variable for each unknown, by its name."""
        return [te.var(unknown.name, self.dtype) for unknown in self.unknowns]

    def _bound_quotient(self, bound: Form, divisor: Form) -> Form:
        """The quotient of a form without unknowns."""
        by = polynomial.single_term(divisor)
        assert by is not None
        quotient, remainder = self._split(bound, by)
        if self._is_remainder(remainder, by):
            return quotient
        rest_quotient = tirx.floordiv(self.expression(remainder, []), self.safe_divisor(divisor))
        number = self._parameter(self.analyzer.simplify(rest_quotient))
        return plus(quotient, {(ONE, (number,)): 1})


def _refuse_loads(*exprs: Expr) -> None:
    """Raise an error if an expression reads a tensor: TVM's simplifier fails to hash it."""
    for node in postorder(*exprs):
        if is_load(node):
            raise NotAffineError(node)
