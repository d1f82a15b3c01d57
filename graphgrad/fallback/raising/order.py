"""Which loops may be taken apart: whether their iterations touch what other ones write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import tirx

from ..constants import integer_value
from ..indices.index_system import Inversion, invert
from ..indices.linear_system import Axis, NotAffineError, analyzer_of, element_axes
from ..walk import Expr, identity
from .statements import Access, Loop, depends, expressions, loads


def conflicting(touched: Sequence[Access], loop: Loop) -> bool:
    """Return whether iterations of a loop affect one another through a buffer.

    They do not if every access tells the iteration by the element. Nor do they if a single
    statement accesses the buffer: that one sees to its order itself.

    Parameters
    ----------
    touched : sequence of Access
        All accesses to the buffer in the loop.
    loop : Loop
    """
    if len({id(access.write) for access in touched if not access.write.initial}) < 2:
        return False
    return shares_elements(touched, loop.axis)


def race(touched: Sequence[Access], loop: Loop) -> bool:
    """Return whether threads change an element that others change too, not atomically."""
    return any(
        access.stores
        and not access.write.atomic
        and any(load.source.same_as(access.buffer) for load in loads(expressions(access.write)))
        and shares_elements([access], loop.axis)
        for access in touched
    )


def shares_elements(touched: Sequence[Access], axis: Axis) -> bool:
    """Return whether iterations of a loop may access the same element of a buffer."""
    element = element_axes(touched[0].buffer.shape)
    owners = [_iteration(access, axis, element) for access in touched]
    first = owners[0]
    return first is None or not all(
        owner is not None and tvm_ffi.structural_equal(owner, first) for owner in owners
    )


def inverted(
    indices: Sequence[Expr],
    axes: Sequence[Axis],
    element: Sequence[Axis],
    position: Sequence[Expr] | None = None,
    equations: Sequence[Expr] = (),
) -> Inversion:
    """Return the points of some loops at which indices are the given element (see `invert`).

    Raises
    ------
    NotAffineError
        An index is not affine, or is read from data, or the range of a loop is.
    """
    bounds = [bound for axis in axes for bound in (axis.low, axis.extent)]
    found = loads([*indices, *bounds, *(position or [])])
    if found:
        raise NotAffineError(found[0])
    return invert(indices, axes, element, position, equations)


def known_ranges(axes: Sequence[Axis]) -> list[Axis]:
    """Return those of some loops whose ranges are not read from data."""
    return [axis for axis in axes if not loads([axis.low, axis.extent])]


def _iteration(access: Access, axis: Axis, element: list[Axis]) -> Expr | None:
    """Return the loop's variable as the accessed element determines it; None if it does not."""
    axes = known_ranges(access.axes)
    others = [own.var for own in access.axes if not any(own is known for known in axes)]
    plain = [
        n
        for n, index in enumerate(access.indices)
        if not loads([index]) and not depends(index, others)
    ]
    position = [element[n].var for n in plain]
    number = next((i for i, own in enumerate(axes) if own.var.same_as(axis.var)), None)
    if number is None:
        return None
    try:
        inversion = inverted([access.indices[n] for n in plain], axes, element, position=position)
    except NotAffineError:
        return None
    value = inversion.values[number]
    return None if depends(value, [own.var for own in inversion.loops]) else value


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
        """Return the row that an iteration writes, by the value of its variable."""
        return (time if self.sign == 1 else 0 - time) + self.first

    def back(self, index: Expr, time: Expr) -> int:
        """Return by how many rows an index is behind."""
        behind = tirx.const(self.sign, str(index.ty)) * (
            self.row(time.astype(str(index.ty))) - index
        )
        found = integer_value(analyzer_of([]).simplify(behind))
        assert found is not None
        return found


def rows_of(touched: Sequence[Access], axis: Axis) -> Rows | None:
    """Return how a loop walks along a buffer; None if it does not walk along one dimension."""
    around = {identity(own.var) for access in touched for own in access.axes}
    if _variables(axis.low) & around:
        return None
    for dimension in range(len(touched[0].indices)):
        for sign in (1, -1):
            found = _walked(touched, axis, dimension, sign, around)
            if found is not None:
                return found
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
    behind = [
        integer_value(analyzer.simplify((first - other) * sign))
        for other in [*offsets[True], *offsets[False]]
    ]
    if any(lag is None or lag < 0 for lag in behind) or any(behind[: len(offsets[True])]):
        return None
    return Rows(dimension, sign, first, max(lag or 0 for lag in behind))


def _variables(expr: Any) -> set[int]:
    return {identity(var) for var in tirx.analysis.undefined_vars(expr)}
