"""Indices that choose, as those of a clamped or mirrored window: split into affine pieces.

`min(i, n)` is one affine index where i ≤ n and another one elsewhere. A contribution with such
indices is a sum of contributions, each over a part of the points; the parts are disjoint and cover
all of them.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import prim

from ..backprop import is_float
from ..constants import is_false, is_true
from ..contribution import Contribution
from ..indices import polynomial
from ..indices.conditions import conjuncts, narrowed, nonnegative_form
from ..indices.float_indices import replace_float_arithmetic
from ..indices.linear_system import Axis, LinearSystem, NotAffineError, analyzer_of
from ..walk import Expr, choice_of, contain, depend, identity, postorder, reads, transformed
from .terms import hoisted

_MAX_PIECES = 16
"""Pieces that a contribution may fall into, a stage each: chosen, not measured."""

_OPPOSITE = {prim.LT: prim.GE, prim.LE: prim.GT, prim.GT: prim.LE, prim.GE: prim.LT}
_COMPARISONS = (*_OPPOSITE, prim.EQ, prim.NE)


@dataclass(frozen=True)
class _Piece:
    """Some points, as ranges of the loops and conditions, and the indices there."""

    axes: list[Axis]
    indices: list[Expr]
    conditions: list[Expr]


def affine_pieces(contribution: Contribution) -> list[Contribution]:
    """Contributions with affine indices that are, together, a given one.

    Parameters
    ----------
    contribution : Contribution

    Returns
    -------
    list of Contribution
        Each point of the loops that counts is in one of them. The given one alone if its indices
        do not choose, if there would be too many pieces, or if some of them would not be affine.
    """
    variables = {identity(axis.var) for axis in contribution.axes}
    if not contain(
        contribution.indices, lambda node: is_float(node.ty) or _is_choice(node, variables)
    ):
        return [contribution]
    # TVM's analyzer fails on indices that are read.
    if reads(*contribution.indices):
        return [contribution]
    indices = [replace_float_arithmetic(index, contribution.axes) for index in contribution.indices]
    base = hoisted(contribution)
    waiting = [_Piece(base.axes, indices, base.conditions)]
    finished: list[_Piece] = []
    try:
        while waiting:
            piece = _simplified(waiting.pop())
            if piece is None:
                continue
            parts = _split(piece)
            waiting += parts
            if not parts:
                _check_affine(piece)
                finished.append(piece)
            if len(waiting) + len(finished) > _MAX_PIECES:
                return [contribution]
    except NotAffineError:
        return [contribution]
    pieces = [
        replace(base, axes=p.axes, indices=p.indices, conditions=p.conditions) for p in finished
    ]
    # If no piece has a point, the given one adds nothing, either.
    return pieces or [contribution]


def _is_choice(node: Expr, variables: set[int]) -> bool:
    """Whether a node is one of several integers, by the values of some variables."""
    chooses = type(node) in (prim.Min, prim.Max) or choice_of(node) is not None
    return chooses and not is_float(node.ty) and depend([node], variables)


def _check_affine(piece: _Piece) -> None:
    system = LinearSystem(piece.axes)
    for index in piece.indices:
        system.linear(index)


def _simplified(piece: _Piece) -> _Piece | None:
    """A piece with simple indices and narrow loops; None if it has no points."""
    axes, conditions = _narrowed(piece)
    if any(is_false(condition) for condition in conditions):
        return None
    if any(isinstance(axis.extent, prim.IntImm) and int(axis.extent) <= 0 for axis in axes):
        return None
    analyzer = analyzer_of(axes)
    with ExitStack() as stack:
        for condition in conditions:
            stack.enter_context(analyzer.constraint_scope(condition))
        return _Piece(axes, [analyzer.simplify(index) for index in piece.indices], conditions)


def _narrowed(piece: _Piece) -> tuple[list[Axis], list[Expr]]:
    """The loops of a piece within the bounds that conditions are, and other conditions."""
    analyzer = analyzer_of(piece.axes)
    system = LinearSystem(piece.axes)
    fixed = [
        isinstance(axis.low, prim.IntImm) and isinstance(axis.extent, prim.IntImm)
        for axis in piece.axes
    ]
    conditions = []
    for conjunction in piece.conditions:
        for condition in conjuncts(analyzer.simplify(conjunction)):
            form = _bound_of_axis(system, condition)
            # A range that is not constant stays as it is, with the condition beside it.
            if form is not None and fixed[polynomial.unknowns_of(form)[0]]:
                narrowed(system, form)
            elif not is_true(condition):
                conditions.append(condition)
    # Behind the axes, a system has unknowns for the parts of divisions.
    axes = [
        Axis(axis.var, _like(axis, unknown.low), _like(axis, unknown.extent)) if is_fixed else axis
        for axis, unknown, is_fixed in zip(piece.axes, system.unknowns, fixed, strict=False)
    ]
    return axes, conditions


def _bound_of_axis(system: LinearSystem, condition: Expr) -> polynomial.Form | None:
    """The form that is ≥ 0 where a condition holds, if it is one loop's by constants."""
    try:
        form = nonnegative_form(system, condition)
    except NotAffineError:
        return None
    if form is None or any(monomial for _, monomial in form):
        return None
    unknowns = polynomial.unknowns_of(form)
    return form if len(unknowns) == 1 and unknowns[0] < len(system.axes) else None


def _like(axis: Axis, bound: polynomial.Form) -> Expr:
    return tirx.const(polynomial.value_of(bound), str(axis.var.ty))


def _split(piece: _Piece) -> list[_Piece]:
    """The pieces that the first choice in the indices splits one into; none if there is none."""
    variables = {identity(axis.var) for axis in piece.axes}
    choice = next((n for n in postorder(*piece.indices) if _is_choice(n, variables)), None)
    if choice is None:
        return []
    if isinstance(choice, prim.Min | prim.Max):
        compare = prim.LE if isinstance(choice, prim.Min) else prim.GE
        atom = compare(choice.a, choice.b)
    else:
        atom = _atom(choice.condition if isinstance(choice, prim.Select) else choice.args[0])
    if isinstance(atom, prim.EQ | prim.NE):
        # a ≠ b is no range, but a < b and a > b are.
        equal = isinstance(atom, prim.EQ)
        cases = [(prim.EQ, equal), (prim.LT, not equal), (prim.GT, not equal)]
    else:
        cases = [(type(atom), True), (_OPPOSITE[type(atom)], False)]
    return [
        _Piece(
            piece.axes,
            [_decide_choice(index, choice, atom, holds) for index in piece.indices],
            [*piece.conditions, compare(atom.a, atom.b)],
        )
        for compare, holds in cases
    ]


def _atom(condition: Expr) -> Any:
    """A comparison of integers that a condition is made of.

    Raises
    ------
    NotAffineError
        There is none.
    """
    for node in postorder(condition):
        if isinstance(node, _COMPARISONS) and str(node.a.ty) in ("int32", "int64"):
            return node
    raise NotAffineError(condition)


def _decide_choice(index: Expr, choice: Expr, atom: Any, holds: bool) -> Expr:
    """An index where a comparison is known to hold, or not to."""

    def change(node: Expr) -> Expr:
        if identity(node) == identity(choice) and isinstance(node, prim.Min | prim.Max):
            return node.a if holds else node.b
        return tirx.const(holds) if tvm_ffi.structural_equal(node, atom) else node

    return transformed(index, change)
