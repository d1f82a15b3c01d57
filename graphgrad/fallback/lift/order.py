"""Which loops may be taken apart: whether their iterations touch what other ones write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import prim

from ..constants import integer_value
from ..indices.conditions import conjuncts
from ..indices.index_system import Inversion
from ..indices.linear_system import Axis, NotAffineError, analyzer_of, element_axes
from ..walk import Expr, identity
from .disjoint import Place, inverted, known_ranges, never_meet
from .statements import Access, Loop, depends, expressions, integral, loads


def conflicting(touched: Sequence[Access], loop: Loop) -> bool:
    """Whether iterations of a loop affect one another through a buffer.

    They do not if every access tells the iteration by the element; reads of what none of them
    writes do not count, as of a pivot's row above the rows that change. Nor do they if a single
    statement accesses the buffer: that one sees to its order itself. What comes first for each
    element does not count as one.

    Parameters
    ----------
    touched : sequence of Access
        All accesses to the buffer in the loop.
    loop : Loop
    """
    writes = {id(access.write) for access in touched}
    first = {id(access.write) for access in touched if access.write.initial and access.stores}
    if len(writes) < 2 or (len(writes - first) < 2 and _begins_first(touched, loop.axis)):
        return False
    return shares_elements(touched, loop.axis) and shares_elements(
        _of_iterations(touched, loop), loop.axis
    )


def _of_iterations(touched: Sequence[Access], loop: Loop) -> list[Access]:
    """Accesses without the reads of what no iteration of a loop writes."""
    stores = [access for access in touched if access.stores]

    def meets(read: Access, store: Access) -> bool:
        return not never_meet(_place(read), _place(store), _outside(read, loop.axis))

    reads = [access for access in touched if not access.stores]
    return [*stores, *(read for read in reads if any(meets(read, store) for store in stores))]


def _place(access: Access) -> Place:
    return Place(access.indices, access.axes, access.guards)


def _outside(access: Access, axis: Axis) -> list[Axis]:
    """The loops around an access that are around a given one, and so around all accesses in it."""
    number = next(n for n, loop in enumerate(access.axes) if loop.var.same_as(axis.var))
    return list(access.axes[:number])


def race(touched: Sequence[Access], loop: Loop) -> bool:
    """Whether threads change an element that others change too, not atomically."""
    return any(
        access.stores
        and not access.write.atomic
        and any(load.source.same_as(access.buffer) for load in loads(expressions(access.write)))
        and shares_elements([access], loop.axis)
        for access in touched
    )


def shares_elements(touched: Sequence[Access], axis: Axis) -> bool:
    """Whether iterations of a loop may access the same element of a buffer."""
    element = element_axes(touched[0].buffer.shape)
    owners = [_iteration(access, axis, element) for access in touched]
    first = owners[0]
    return first is None or not all(
        owner is not None and tvm_ffi.structural_equal(owner, first) for owner in owners
    )


def _begins_first(touched: Sequence[Access], axis: Axis) -> bool:
    """Whether a loop's iterations begin elements at most once, and before all else there.

    They begin one anew in each iteration if the loop is none that their block reduces over. The
    loops inside must do so as well: if one of them had to keep its order, it would go outermost.
    """
    around = [{identity(loop.var) for loop in access.axes} for access in touched]
    loops = [loop for loop in touched[0].axes if all(identity(loop.var) in vars for vars in around)]
    start = next(number for number, loop in enumerate(loops) if loop.var.same_as(axis.var))
    return all(_begins_first_along(touched, loop) for loop in loops[start:])


def _begins_first_along(touched: Sequence[Access], axis: Axis) -> bool:
    """Whether, in each iteration of the loops around, a loop begins elements first."""
    beginnings = [access for access in touched if access.write.initial and access.stores]
    beginnings = [access for access in beginnings if not _at_first(access, axis)]
    if not beginnings:
        return True
    exprs = [e for a in beginnings for e in (*a.indices, *(guard for guard, _ in a.guards))]
    # Neither place nor condition tells the loop: each iteration begins the same elements anew.
    if not any(depends(expr, [axis.var]) for expr in exprs):
        return False
    around = _around(touched[0], axis)
    element = [*element_axes(touched[0].buffer.shape), *(loop for _, loop in around)]
    # Iterations are compared within one of the loops around, whose variables are held fixed.
    fixed = [(outer.var, loop.var) for outer, loop in around]
    for beginning in beginnings:
        start = _solved(beginning, axis, element, fixed, integral(beginning.guards))
        if start is None or depends(start[0], [loop.var for loop in start[1].loops]):
            return False
        for access in touched:
            if access.write is beginning.write:
                continue
            other = _solved(access, axis, element, fixed, integral(access.guards))
            if other is None:
                return False
            analyzer = analyzer_of([*element, *other[1].loops])
            # Every other access to the element has to be in the same iteration or in a later one.
            if not analyzer.can_prove(other[0] >= start[0]):
                return False
    return True


def _at_first(access: Access, axis: Axis) -> bool:
    """Whether a condition says that an access happens in a loop's first iteration alone."""
    parts = [part for guard, way in access.guards for part in conjuncts(guard, way)]
    return any(
        isinstance(part, prim.EQ)
        and any(
            side.same_as(axis.var) and tvm_ffi.structural_equal(other, axis.low)
            for side, other in ((part.a, part.b), (part.b, part.a))
        )
        for part in parts
    )


def _around(access: Access, axis: Axis) -> list[tuple[Axis, Axis]]:
    """The loops around one whose ranges are constant, each with one like it."""
    pairs = []
    for outer in access.axes:
        if outer.var.same_as(axis.var):
            break
        if integer_value(outer.low) is not None and integer_value(outer.extent) is not None:
            copy = replace(outer, var=tirx.Var(outer.var.name, str(outer.var.ty)))
            pairs.append((outer, copy))
    return pairs


def _iteration(access: Access, axis: Axis, element: list[Axis]) -> Expr | None:
    """The loop's variable as the accessed element determines it; None if it does not."""
    solved = _solved(access, axis, element)
    if solved is None:
        return None
    value, inversion = solved
    return None if depends(value, [loop.var for loop in inversion.loops]) else value


def _solved(
    access: Access,
    axis: Axis,
    element: Sequence[Axis],
    fixed: Sequence[tuple[Expr, Expr]] = (),
    equations: Sequence[Expr] = (),
) -> tuple[Expr, Inversion] | None:
    """The value of a loop in the iterations that access an element; None if not known.

    Parameters
    ----------
    access : Access
    axis : Axis
    element : sequence of Axis
        Loops over the elements of the buffer.
    fixed : pairs of Expr
        What has a given value, too, and that value.
    equations : sequence of Expr
        Conditions for the access.
    """
    axes = known_ranges(access.axes)
    others = [loop.var for loop in access.axes if not any(loop is known for known in axes)]
    # What is left out of the equations can only leave the iteration less determined.
    usable = [
        n
        for n, index in enumerate(access.indices)
        if not loads([index]) and not depends(index, others)
    ]
    indices = [*(access.indices[n] for n in usable), *(expr for expr, _ in fixed)]
    position = [*(element[n].var for n in usable), *(value for _, value in fixed)]
    equations = [condition for condition in equations if not depends(condition, others)]
    number = next((i for i, loop in enumerate(axes) if loop.var.same_as(axis.var)), None)
    if number is None:
        return None
    try:
        inversion = inverted(indices, axes, element, position, equations)
    except NotAffineError:
        return None
    return inversion.values[number], inversion


@dataclass(frozen=True)
class Rows:
    """A buffer along which a loop walks: iteration t writes row `sign · t + first`.

    Attributes
    ----------
    dimension, sign : int
    first : Expr
    lag : int
        How many rows back it looks; 0 if only at its own.
    """

    dimension: int
    sign: int
    first: Expr
    lag: int

    def row(self, time: Expr) -> Expr:
        """The row that an iteration writes, by the value of its variable."""
        return (time if self.sign == 1 else 0 - time) + self.first

    def back(self, index: Expr, time: Expr) -> int:
        """By how many rows an index is behind."""
        behind = tirx.const(self.sign, str(index.ty)) * (
            self.row(time.astype(str(index.ty))) - index
        )
        count = integer_value(analyzer_of([]).simplify(behind))
        assert count is not None
        return count


def rows_of(touched: Sequence[Access], axis: Axis) -> Rows | None:
    """How a loop walks along a buffer; None if it does not walk along one dimension."""
    around = {identity(loop.var) for access in touched for loop in access.axes}
    # The rows of a walk must be the same in all iterations of the loops around.
    if _variables(axis.low) & around:
        return None
    for dimension in range(len(touched[0].indices)):
        for sign in (1, -1):
            rows = _walked(touched, axis, dimension, sign, around)
            if rows is not None:
                return rows
    return None


def _walked(
    touched: Sequence[Access], axis: Axis, dimension: int, sign: int, around: set[int]
) -> Rows | None:
    analyzer = analyzer_of([])
    offsets: dict[bool, list[Expr]] = {True: [], False: []}
    for access in touched:
        index = access.indices[dimension]
        time = axis.var.astype(str(index.ty))
        offset = analyzer.simplify(index - time if sign == 1 else index + time)
        if loads([offset]) or _variables(offset) & around:
            return None
        offsets[access.stores].append(offset)
    if not offsets[True]:
        return None
    first = offsets[True][0]
    lags = [
        integer_value(analyzer.simplify((first - other) * sign))
        for other in [*offsets[True], *offsets[False]]
    ]
    # All stores are to the row of the iteration; reads may be of rows before, of none ahead.
    if any(lag is None or lag < 0 for lag in lags) or any(lags[: len(offsets[True])]):
        return None
    return Rows(dimension, sign, first, max(lag or 0 for lag in lags))


def _variables(expr: Any) -> set[int]:
    return {identity(var) for var in tirx.analysis.undefined_vars(expr)}
