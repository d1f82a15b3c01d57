"""Whether two accesses never touch the same element."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import prim

from ..constants import integer_value
from ..guarded import Guard
from ..indices.conditions import conjuncts
from ..indices.index_system import Inversion, invert
from ..indices.linear_system import Axis, NotAffineError, analyzer_of
from ..walk import Expr, identity, substituted
from .statements import integral, is_integral, loads


@dataclass(frozen=True)
class Place:
    """The elements that an access touches: its indices at all points of some loops.

    Attributes
    ----------
    indices : list of Expr
    axes : tuple of Axis
        The loops, outermost first.
    guards : tuple of Guard
        It happens only where all of these hold.
    """

    indices: list[Expr]
    axes: tuple[Axis, ...]
    guards: tuple[Guard, ...]


def never_meet(reading: Place, writing: Place, common: Sequence[Axis] = ()) -> bool:
    """Whether no point of one access touches an element that a point of the other one does.

    Parameters
    ----------
    reading, writing : Place
    common : sequence of Axis
        Loops around both of which only equal points are compared.

    Returns
    -------
    bool
        False also where it cannot be proved.
    """
    fixed = [axis.var for axis in common]
    axes = known_ranges(writing.axes)
    bound = {identity(var) for var in [*fixed, *(axis.var for axis in axes)]}
    # Of a loop whose range is read from data, the two are at points of their own.
    if any(identity(axis.var) not in bound for axis in writing.axes):
        return False
    try:
        inversion = inverted(
            [*writing.indices, *fixed],
            axes,
            reading.axes,
            position=[*reading.indices, *fixed],
        )
    except NotAffineError:
        return False
    analyzer = analyzer_of([*known_ranges(reading.axes), *inversion.loops])
    # The point that would write the element, in terms of the one that reads it.
    pairs = zip([axis.var for axis in axes], inversion.values, strict=True)
    writer_values = {identity(var): value for var, value in pairs}
    elsewhere = [
        tvm_ffi.structural_map(
            guard, (tvm.ir.Var, lambda var: writer_values.get(identity(var), var))
        )
        for guard in integral(writing.guards)
    ]
    # The reading point meets its conditions; if the writing one cannot, there is none.
    with ExitStack() as scopes:
        for guard in integral(reading.guards):
            scopes.enter_context(analyzer.constraint_scope(guard))
        apart = _unequal(reading.guards)
        return any(
            _never_holds(guard, analyzer, apart, reading.axes)
            for guard in [*inversion.guards, *elsewhere]
        )


def _unequal(guards: Sequence[Guard]) -> list[Expr]:
    """The differences that some conditions say are not 0."""
    parts = [part for condition, way in guards for part in conjuncts(condition, way)]
    denied = [part.a for part in parts if isinstance(part, prim.Not)]
    pairs = [part for part in denied if isinstance(part, prim.EQ | prim.LE | prim.GE)]
    pairs += [part for part in parts if isinstance(part, prim.NE | prim.LT | prim.GT)]
    return [part.a - part.b for part in pairs if is_integral(part)]


def _never_holds(
    guard: Expr, analyzer: tvm.sym.Analyzer, apart: Sequence[Expr], axes: Sequence[Axis]
) -> bool:
    """Whether a condition holds at no point of some loops, where some differences are not 0."""
    if analyzer.can_prove(tirx.Not(guard)):
        return True
    if not isinstance(guard, _COMPARISONS):
        return False
    difference = analyzer.simplify(guard.a - guard.b)
    least, greatest = (_extreme(difference, axes, largest) for largest in (False, True))
    if isinstance(guard, prim.EQ):
        # TVM does not conclude from i != j that j - i is not 0.
        is_apart = any(
            analyzer.can_prove_equal(difference, sign * other)
            for other in apart
            for sign in (1, -1)
        )
        return is_apart or _is_proved(least > 0) or _is_proved(greatest < 0)
    if isinstance(guard, prim.GT | prim.GE):
        return _is_proved(greatest <= 0 if isinstance(guard, prim.GT) else greatest < 0)
    return _is_proved(least >= 0 if isinstance(guard, prim.LT) else least > 0)


_COMPARISONS = (prim.EQ, prim.LT, prim.LE, prim.GT, prim.GE)


def _is_proved(condition: Expr) -> bool:
    return bool(tvm.sym.Analyzer().can_prove(condition))


def _extreme(expr: Expr, axes: Sequence[Axis], largest: bool) -> Expr:
    """A bound of an expression at all points of some loops, as close as their ranges say.

    TVM's own bounds of loops are constants, so that it does not see that k < j where k < i and
    i <= j, or that i + j is not n where j begins at n + 1 - i.
    """
    analyzer = tvm.sym.Analyzer()
    for axis in reversed(axes):
        slope = integer_value(
            analyzer.simplify(substituted(expr, [(axis.var, axis.var + 1)]) - expr)
        )
        if not slope:
            continue  # it does not depend on the loop, or is no straight line along it
        end = axis.low if (slope < 0) == largest else axis.low + axis.extent - 1
        expr = analyzer.simplify(substituted(expr, [(axis.var, end.astype(str(axis.var.ty)))]))
    return expr


def is_same_point(reading: Place, writing: Place) -> bool:
    """Whether only the same point of the same loops can touch the element that a point touches.

    Indices that are read from data may be anything.
    """
    affine = [
        n
        for n, pair in enumerate(zip(reading.indices, writing.indices, strict=True))
        if not loads(pair)
    ]
    try:
        inversion = inverted(
            [writing.indices[n] for n in affine],
            writing.axes,
            reading.axes,
            position=[reading.indices[n] for n in affine],
        )
    except NotAffineError:
        return False
    analyzer = analyzer_of([*reading.axes, *inversion.loops])
    return all(
        analyzer.can_prove_equal(axis.var, value)
        for axis, value in zip(writing.axes, inversion.values, strict=True)
    )


def inverted(
    indices: Sequence[Expr],
    axes: Sequence[Axis],
    element: Sequence[Axis],
    position: Sequence[Expr] | None = None,
    equations: Sequence[Expr] = (),
) -> Inversion:
    """The points of some loops at which indices are the given element (see `invert`).

    Raises
    ------
    NotAffineError
        An index is not affine, or is read from data, or the range of a loop is.
    """
    bounds = [bound for axis in axes for bound in (axis.low, axis.extent)]
    read = loads([*indices, *bounds, *(position or [])])
    if read:
        raise NotAffineError(read[0])
    if any(isinstance(index, prim.Cast) for index in indices):
        position = [axis.var for axis in element] if position is None else position
        pairs = [_without_casts(*pair) for pair in zip(indices, position, strict=True)]
        indices, position = [index for index, _ in pairs], [element for _, element in pairs]
    return invert(indices, axes, element, position, equations)


def _without_casts(index: Expr, element: Expr) -> tuple[Expr, Expr]:
    """An equation between integers in the dtype that the index was computed in.

    What a scan numbers has other integers than long loops.
    """
    while isinstance(index, prim.Cast):
        dtype = str(index.value.ty)
        element = element.value if isinstance(element, prim.Cast) else element
        index, element = index.value, element.astype(dtype)
    return index, element


def known_ranges(axes: Sequence[Axis]) -> list[Axis]:
    """Those of some loops whose ranges are not read from data."""
    return [axis for axis in axes if not loads([axis.low, axis.extent])]
