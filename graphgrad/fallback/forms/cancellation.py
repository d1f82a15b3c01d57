"""Sums of tensors that are zero by algebra, whatever is read.

The derivative of a variance by the mean that it subtracts is such a sum, Σ (x − Σ x / n), and that
of log Σ exp by the maximum, which is subtracted only to keep rounding errors small. An element is
written as a polynomial in *atoms*: elements of tensors that are given, functions of polynomials,
and sums of products of atoms over loops. In a sum nothing stays inside that does not depend on its
loops, and loops have the same names wherever they are: so what is equal is mostly written alike. A
polynomial without terms is zero, in the arithmetic of real numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

from tvm import te, tirx
from tvm.ir import prim

from ..backprop import is_float
from ..constants import integer_value, is_true
from ..graph import is_reduction
from ..reductions.combiner import Combination, Combiner
from ..walk import (
    Expr,
    called,
    dtype_name,
    graph_of,
    identity,
    inline_lets,
    is_load,
    items,
    loaded,
    tensor_key,
)
from .terms import finite_factors

_MAX_NODES = 1000
"""Nodes that are looked at, at most; then nothing is proved. Chosen, not measured."""

_MAX_TERMS = 64
"""Terms of a polynomial, at most. Chosen, not measured."""

_MAX_DEPTH = 32
"""Stages that are written out inside one another, at most. Chosen, not measured."""

Monomial: TypeAlias = tuple[tuple[int, int], ...]
"""Atoms by their numbers, in order, and their exponents, which are not 0."""

Polynomial: TypeAlias = dict[Monomial, Fraction]
"""Coefficients, none of which is 0."""

Terms: TypeAlias = tuple[tuple[Monomial, Fraction], ...]
"""The terms of a polynomial, in order."""


class _NotProvedError(Exception):
    """The expression is too large, or of a form that is not known."""


@dataclass(frozen=True)
class _Atom:
    """A variable, an element, a function, or a sum.

    Attributes
    ----------
    kind : tuple
        What it is, but for its parts. That of a sum are the variables of its loops.
    parts : tuple of Terms
        Of a sum, the extents of its loops and what is summed, a single monomial.
    """

    kind: tuple[Any, ...]
    parts: tuple[Terms, ...] = ()

    @property
    def is_sum(self) -> bool:
        return self.kind[0] == "sum"


def drop_canceling(stages: Sequence[te.Tensor]) -> list[te.Tensor]:
    """Those tensors of one shape whose sum is that of all; none if it is zero by algebra.

    Only tensors that reduce are looked at: others cost as little as they are worth.
    """
    reducing = [_reduces(stage) for stage in stages]
    if not any(reducing):
        return list(stages)
    algebra = _Algebra()
    left: list[te.Tensor] = []
    total: Polynomial | None = {}
    for stage, reduces in zip(stages, reducing, strict=True):
        value = algebra.element(stage)
        if reduces and value == {}:
            continue
        left.append(stage)
        total = None if total is None or value is None else _plus(total, value)
    return [] if total == {} else left


def _reduces(tensor: te.Tensor) -> bool:
    """Whether a tensor is a reduction, or one whose elements are scaled."""
    op = tensor.op
    return isinstance(op, te.ComputeOp) and (
        is_reduction(op) or any(is_reduction(source.op) for source in op.input_tensors)
    )


class _Algebra:
    """The atoms of some polynomials, numbered."""

    def __init__(self) -> None:
        self._atoms: list[_Atom] = []
        self._numbers: dict[_Atom, int] = {}
        self._variables: list[frozenset[int]] = []  # that each atom depends on
        self._heights: list[int] = []  # how many sums are inside one another in each atom
        self._elements: dict[tuple[Any, ...], Polynomial] = {}
        self._shapes: dict[Any, int] = {}  # of atoms in which loops have no names
        self._nodes_left = _MAX_NODES

    def element(self, tensor: te.Tensor) -> Polynomial | None:
        """An element of a tensor, at variables that are the same for all; None if not known."""
        indices = [_single(self._number(_Atom(("index", i)))) for i in range(len(tensor.shape))]
        try:
            return self._read(tensor, indices, 0)
        except _NotProvedError:
            return None

    # --- expressions

    def _read(self, tensor: te.Tensor, indices: Sequence[Polynomial], depth: int) -> Polynomial:
        """An element of a tensor, which is written out if a stage computes it."""
        indices = [
            {} if integer_value(extent) == 1 else index
            for index, extent in zip(indices, tensor.shape, strict=True)
        ]
        key = (*tensor_key(tensor), *map(_terms, indices))
        known = self._elements.get(key)
        if known is None:
            known = self._written_out(tensor, indices, depth)
            if known is None:
                known = self._opaque(("load", *tensor_key(tensor)), indices)
            self._elements[key] = known
        return known

    def _written_out(
        self, tensor: te.Tensor, indices: Sequence[Polynomial], depth: int
    ) -> Polynomial | None:
        """An element as what its stage computes; None if it is no map and no sum."""
        op = tensor.op
        if not isinstance(op, te.ComputeOp):
            return None
        if depth == _MAX_DEPTH:
            raise _NotProvedError
        values = {
            identity(axis.var): index for axis, index in zip(items(op.axis), indices, strict=True)
        }
        body = op.body[tensor.value_index]
        if not isinstance(body, tirx.Reduce):
            return self._expression(inline_lets(body), values, depth)
        number = int(body.value_index)
        combiner = Combiner(body.combiner)
        is_sum = combiner.combination(sorted(combiner.needs[number])) is Combination.SUM
        if not is_sum or len(body.init) or not is_true(body.condition):
            return None
        loops = {}
        for axis in items(op.reduce_axis):
            extent = self._expression(axis.dom.extent, values, depth)
            variable = self._fresh()
            loops[variable] = extent
            low = self._expression(axis.dom.min, values, depth)
            values[identity(axis.var)] = _plus(low, _single(variable))
        return self._sum(self._expression(inline_lets(body.source[number]), values, depth), loops)

    def _expression(
        self, root: Expr, variables: Mapping[int, Polynomial], depth: int
    ) -> Polynomial:
        graph = graph_of([root])
        self._nodes_left -= len(graph)
        if self._nodes_left < 0:
            raise _NotProvedError
        values: dict[int, Polynomial] = {}
        for node, parts in graph:
            below = [values[identity(part)] for part in parts]
            factors = finite_factors(node)
            if factors is not None:
                value = self._times(*(values[identity(factor)] for factor in factors))
            elif is_load(node):
                value = self._read(loaded(node)[0], below, depth + 1)
            elif identity(node) in variables:
                value = variables[identity(node)]
            else:
                value = self._node(node, below)
            values[identity(node)] = value
        return values[identity(root)]

    def _node(self, node: Expr, parts: Sequence[Polynomial]) -> Polynomial:
        """The value of a node from those of its parts."""
        kind = type(node)
        if kind in (prim.IntImm, prim.FloatImm) and math.isfinite(node.value):
            return _constant(Fraction(node.value))
        if kind is prim.Add:
            return _plus(parts[0], parts[1])
        if kind is prim.Sub:
            return _plus(parts[0], parts[1], -1)
        if kind is prim.Mul:
            return self._times(*parts)
        if kind is prim.Div and is_float(node.ty):
            return self._times(parts[0], self._reciprocal(parts[1]))
        # What rounding does is left out, as everywhere here; of integers it is no rounding.
        if kind is prim.Cast and (is_float(node.ty) or not is_float(node.value.ty)):
            return parts[0]
        own = repr(getattr(node, "value", None)) if not parts else None
        name = identity(node) if isinstance(node, tirx.Var) else called(node)
        return self._opaque((kind, name, own, dtype_name(node.ty)), parts)

    def _opaque(self, kind: tuple[Any, ...], parts: Iterable[Polynomial]) -> Polynomial:
        """Something of which only this is known: what it is, and of which values."""
        return _single(self._number(_Atom(kind, tuple(map(_terms, parts)))))

    # --- arithmetic

    def _times(self, a: Polynomial, b: Polynomial) -> Polynomial:
        if len(a) * len(b) > _MAX_TERMS:
            raise _NotProvedError
        total: Polynomial = {}
        for monomial, coefficient in a.items():
            for other, factor in b.items():
                total = _plus(total, {_joined(monomial, other): coefficient * factor})
        return total

    def _reciprocal(self, value: Polynomial) -> Polynomial:
        if len(value) != 1:
            return self._opaque(("reciprocal",), [value])
        ((monomial, coefficient),) = value.items()
        return {tuple((atom, -power) for atom, power in monomial): 1 / coefficient}

    def _sum(self, value: Polynomial, loops: Mapping[int, Polynomial]) -> Polynomial:
        """The sum of a polynomial over loops, given by their variables with their extents."""
        if any(self._depends(atom, loops) for e in loops.values() for m in e for atom, _ in m):
            raise _NotProvedError  # the range of one loop depends on another
        total: Polynomial = {}
        for monomial, coefficient in value.items():
            inside = [item for item in monomial if self._depends(item[0], loops)]
            outside = tuple(item for item in monomial if not self._depends(item[0], loops))
            term = {outside: coefficient}
            for loop, extent in loops.items():
                if not any(loop in self._variables[atom] for atom, _ in inside):
                    term = self._times(term, extent)
            if inside:
                term = self._times(term, _single(self._sum_atom(inside, loops)))
            total = _plus(total, term)
        return total

    def _sum_atom(self, inside: Sequence[tuple[int, int]], loops: Mapping[int, Polynomial]) -> int:
        """The atom of a sum of one monomial, with its loops and those of sums in it in order."""
        loops = dict(loops)
        monomial: Monomial = ()
        for atom, power in inside:
            own = self._atoms[atom]
            if not own.is_sum or power != 1:
                monomial = _joined(monomial, ((atom, power),))
                continue
            # Σ f Σ g is the sum of f · g over the loops of both.
            renamed = {variable: self._fresh() for variable in own.kind[1:]}
            *extents, summed = own.parts
            loops |= {new: dict(e) for new, e in zip(renamed.values(), extents, strict=True)}
            (((factors, _),)) = summed
            monomial = _joined(monomial, self._renamed_monomial(factors, renamed))
        order = self._loops_in_order(monomial, loops)
        height = 1 + max(self._heights[atom] for atom, _ in monomial)
        names = [self._number(_Atom(("loop", height, i))) for i in range(len(order))]
        monomial = self._renamed_monomial(monomial, dict(zip(order, names, strict=True)))
        extents = [_terms(loops[variable]) for variable in order]
        return self._number(_Atom(("sum", *names), (*extents, _terms({monomial: Fraction(1)}))))

    def _loops_in_order(self, monomial: Monomial, loops: Mapping[int, Any]) -> list[int]:
        """The loops that a monomial depends on, in an order that does not go by their names."""
        masked: dict[int, int] = {}
        found: dict[int, None] = {}  # all that was met, of which only loops are returned
        pending = sorted(
            (atom for atom, _ in monomial), key=lambda a: self._masked(a, loops, masked)
        )
        while pending:
            atom = pending.pop(0)
            if atom in found or not self._depends(atom, loops):
                continue
            found[atom] = None
            inner = [
                a for part in self._atoms[atom].parts for factors, _ in part for a, _ in factors
            ]
            pending = [*sorted(inner, key=lambda a: self._masked(a, loops, masked)), *pending]
        return [atom for atom in found if atom in loops]

    def _masked(self, atom: int, loops: Mapping[int, Any], known: dict[int, int]) -> int:
        """A number that atoms share which are equal but for the names of loops."""
        if atom not in known:
            own = self._atoms[atom]
            parts = tuple(
                tuple(
                    sorted(
                        (
                            coefficient,
                            sorted((self._masked(a, loops, known), p) for a, p in factors),
                        )
                        for factors, coefficient in part
                    )
                )
                for part in own.parts
            )
            key = "loop" if atom in loops else (own.kind, repr(parts))
            known[atom] = self._shapes.setdefault(key, len(self._shapes))
        return known[atom]

    # --- atoms

    def _number(self, atom: _Atom) -> int:
        number = self._numbers.get(atom)
        if number is None:
            number = self._numbers[atom] = len(self._atoms)
            inner = [a for part in atom.parts for factors, _ in part for a, _ in factors]
            variables = frozenset().union(*(self._variables[a] for a in inner))
            self._variables.append(
                variables - set(atom.kind[1:])
                if atom.is_sum
                else variables or frozenset([number] if not atom.parts else [])
            )
            self._heights.append(max((self._heights[a] for a in inner), default=0) + atom.is_sum)
            self._atoms.append(atom)
        return number

    def _fresh(self) -> int:
        """A variable that nothing depends on yet."""
        return self._number(_Atom(("fresh", len(self._atoms))))

    def _depends(self, atom: int, loops: Mapping[int, Any]) -> bool:
        return not self._variables[atom].isdisjoint(loops)

    def _renamed_monomial(self, monomial: Monomial, names: Mapping[int, int]) -> Monomial:
        """A monomial with other variables."""
        renamed = dict(names)
        return self._renamed_factors(monomial, names, renamed)

    def _renamed_factors(
        self, monomial: Monomial, names: Mapping[int, int], renamed: dict[int, int]
    ) -> Monomial:
        result: Monomial = ()
        for atom, power in monomial:
            if atom not in renamed:
                renamed[atom] = self._renamed(atom, names, renamed)
            result = _joined(result, ((renamed[atom], power),))
        return result

    def _renamed(self, atom: int, names: Mapping[int, int], renamed: dict[int, int]) -> int:
        """An atom with other variables; what becomes of those in it is kept in `renamed`."""
        if not self._depends(atom, names):
            return atom
        own = self._atoms[atom]
        parts = tuple(
            _terms({self._renamed_factors(factors, names, renamed): c for factors, c in part})
            for part in own.parts
        )
        return self._number(_Atom(own.kind, parts))


def _constant(value: Fraction) -> Polynomial:
    return {(): value} if value else {}


def _single(atom: int) -> Polynomial:
    return {((atom, 1),): Fraction(1)}


def _terms(value: Polynomial) -> Terms:
    return tuple(sorted(value.items()))


def _plus(a: Polynomial, b: Polynomial, factor: int = 1) -> Polynomial:
    total = dict(a)
    for monomial, coefficient in b.items():
        total[monomial] = total.get(monomial, Fraction(0)) + factor * coefficient
        if not total[monomial]:
            del total[monomial]
    return total


def _joined(a: Monomial, b: Monomial) -> Monomial:
    """The product of two monomials."""
    powers = dict(a)
    for atom, power in b:
        powers[atom] = powers.get(atom, 0) + power
    return tuple(sorted((atom, power) for atom, power in powers.items() if power))
