"""The loops of one nest: their variables, and which elements a tile is made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tvm
from tvm import tirx
from tvm.tirx import ForKind

from ....ir.kernel_structure import Axis
from ....ir.loops import ceil_div, fused, loop, variable
from ...kernels.contraction import Contraction, known
from .plan import Loop, Plan


class Frame:
    """The variables of the loops of a plan.

    Parameters
    ----------
    contraction : Contraction
    plan : Plan
    variables : dict, optional
        By loop, those that are known already; the others are new.
    """

    def __init__(
        self, contraction: Contraction, plan: Plan, variables: Mapping[Loop, Any] | None = None
    ) -> None:
        self.contraction = contraction
        self.plan = plan
        self.dtype = str(contraction.spatial[0].var.ty.dtype)
        self._loops = (*plan.tasks, *plan.parts, *plan.blocks, *plan.tiles, *plan.terms)
        known = variables or {}
        self._variables = {
            one: known[one] if one in known else variable(str(one.axis.var.name), self.dtype)
            for one in self._loops
        }

    def renewed(self, loops: Iterable[Loop]) -> Frame:
        """A frame with new variables for some loops, and these for the others."""
        new = list(loops)
        kept = {one: var for one, var in self._variables.items() if one not in new}
        return Frame(self.contraction, self.plan, kept)

    def number(self, value: int) -> Any:
        """A constant of the dtype of indices."""
        return tirx.const(value, self.dtype)

    def around(self, loops: Sequence[Loop], body: Any, unrolled: int = 0) -> Any:
        """Serial loops around a statement, so many of the innermost ones unrolled."""
        for position, one in enumerate(reversed(loops)):
            if one.trips != 1:
                kind = ForKind.UNROLLED if position < unrolled else ForKind.SERIAL
                body = loop(self._variables[one], self._trips(one), body, kind)
        return body

    def in_parallel(self, loops: Sequence[Loop], body: Any, kind: ForKind) -> Any:
        """One loop over the points of several around a statement.

        Only the first of them is parallel if one is symbolic.
        """
        long = [(self._variables[one], self._trips(one)) for one in loops if one.trips != 1]
        return fused(long, body, kind)

    def start(self, axis: Axis) -> Any:
        """The first index of a tile along an axis."""
        return self._start(axis, self._loops)

    def line(self, axis: Axis) -> Any:
        """The first index along an axis in all trips of the innermost loop."""
        return self._start(axis, self._loops[:-1])

    def tile(self, one: Loop) -> Any:
        """How many trips a loop has made."""
        return self.number(0) if one.trips == 1 else self._variables[one]

    def tile_of(self, axis: Axis) -> Any:
        """The number of the tile along an axis of the result."""
        number = tirx.floordiv(self.start(axis), self.plan.length(axis))
        return tvm.sym.Analyzer().simplify(number)

    def read(self, rows: Sequence[Any], column: Any) -> dict[Any, Any]:
        """The indices along all axes at which an element of the tile reads.

        What lies beyond the end of the result is computed from elements within: of the last row
        again, and of columns before.
        """
        at = {}
        for axis in (*self.contraction.spatial, *self.contraction.reduced):
            at[axis.var] = self.start(axis)
        for (axis, _), row in zip(self.plan.rows, rows, strict=True):
            index = at[axis.var] + row
            if self.plan.is_ragged(axis):
                index = tirx.min(index, self.contraction.extent(axis) - self.number(1))
            at[axis.var] = index
        at[self.plan.vector.var] = self.first_column() + column
        return at

    def first_column(self) -> Any:
        """The first index along the vector axis at which the tile reads."""
        vector = self.plan.vector
        start = self.start(vector)
        if not self.plan.is_ragged(vector):
            return start
        return tirx.min(start, self.number(known(vector) - self.plan.width))

    def _start(self, axis: Axis, loops: Iterable[Loop]) -> Any:
        total: Any = None
        for one in loops:
            if one.axis is axis and one.trips != 1:
                var = self._variables[one]
                term = var * one.step if one.step != 1 else var
                total = term if total is None else total + term
        return self.number(0) if total is None else total

    def _trips(self, one: Loop) -> Any:
        """The number of trips of a loop: what is left of the axis, where that is less."""
        if one.trips is None:
            return ceil_div(self.contraction.extent(one.axis), one.step)
        along = [other for other in self._loops if other.axis is one.axis]
        unit = along[-1].step
        left: Any = ceil_div(known(one.axis), unit) * unit
        for outer in along[: along.index(one)]:
            if isinstance(left, int) and (left % outer.step == 0 or left < outer.step):
                left = min(left, outer.step)
            else:
                passed = self.tile(outer) * outer.step
                left = tirx.min(self.number(outer.step), left - passed)
        return ceil_div(left, one.step)
