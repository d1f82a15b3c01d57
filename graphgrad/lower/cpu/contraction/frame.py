"""The loops of one nest: their variables, and the indices of a tile's elements."""

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
    """The variables of the loops of a plan, and the indices that follow from them.

    Parameters
    ----------
    contraction : Contraction
    plan : Plan
    variables : dict, optional
        The variables of loops that have one already; the other loops get new ones.
    """

    def __init__(
        self, contraction: Contraction, plan: Plan, variables: Mapping[Loop, Any] | None = None
    ) -> None:
        self.contraction = contraction
        self.plan = plan
        self.dtype = str(contraction.spatial[0].var.ty.dtype)
        self._loops = (*plan.tasks, *plan.parts, *plan.blocks, *plan.tiles, *plan.terms)
        existing = variables or {}
        self._variables = {
            plan_loop: existing[plan_loop]
            if plan_loop in existing
            else variable(str(plan_loop.axis.var.name), self.dtype)
            for plan_loop in self._loops
        }

    def renewed(self, loops: Iterable[Loop]) -> Frame:
        """A frame with new variables for the given loops, and the same ones for the others.

        It serves a second nest over the same tiles: each loop needs a variable of its own.
        """
        renewed_loops = list(loops)
        unchanged = {
            plan_loop: var
            for plan_loop, var in self._variables.items()
            if plan_loop not in renewed_loops
        }
        return Frame(self.contraction, self.plan, unchanged)

    def number(self, value: int) -> Any:
        """A constant of the dtype of the indices."""
        return tirx.const(value, self.dtype)

    def around(self, loops: Sequence[Loop], body: Any, unrolled: int = 0) -> Any:
        """Serial loops around a statement; the `unrolled` innermost ones of them are unrolled."""
        for position, plan_loop in enumerate(reversed(loops)):
            if plan_loop.trips != 1:
                kind = ForKind.UNROLLED if position < unrolled else ForKind.SERIAL
                body = loop(self._variables[plan_loop], self._trips(plan_loop), body, kind)
        return body

    def in_parallel(self, loops: Sequence[Loop], body: Any, kind: ForKind) -> Any:
        """Several loops fused into one of the given kind, around a statement.

        If the number of trips of one is symbolic, they stay as they are, and only the first is of
        that kind.
        """
        loops_and_trips = [
            (self._variables[plan_loop], self._trips(plan_loop))
            for plan_loop in loops
            if plan_loop.trips != 1
        ]
        return fused(loops_and_trips, body, kind)

    def start(self, axis: Axis) -> Any:
        """The first index of a tile along an axis."""
        return self._start(axis, self._loops)

    def start_of_task(self, axis: Axis) -> Any:
        """The first index along an axis of all tiles of a task."""
        return self._start(axis, self.plan.tasks)

    def line(self, axis: Axis) -> Any:
        """The first index along an axis that the innermost loop reaches in any of its trips."""
        return self._start(axis, self._loops[:-1])

    def trip(self, plan_loop: Loop) -> Any:
        """The number of the trip that a loop is in."""
        return self.number(0) if plan_loop.trips == 1 else self._variables[plan_loop]

    def tile_of(self, axis: Axis) -> Any:
        """The number of the tile along an axis of the result."""
        number = tirx.floordiv(self.start(axis), self.plan.length(axis))
        return tvm.sym.Analyzer().simplify(number)

    def read(self, rows: Sequence[Any], column: Any) -> dict[Any, Any]:
        """The indices along all axes, by variable, at which an element of the tile reads.

        A ragged tile reads nothing beyond the end of the result: rows beyond it read what the last
        row does, and all columns are moved so far back that the last one is within. So are all rows
        of registers for matrices.
        """
        indices = {}
        for axis in (*self.contraction.spatial, *self.contraction.reduced):
            indices[axis.var] = self.start(axis)
        for (axis, _), row in zip(self.plan.rows, rows, strict=True):
            index = indices[axis.var] + row
            if self.plan.matrices:
                index = self.first(axis) + row
            elif self.plan.is_ragged(axis):
                index = tirx.min(index, self.contraction.extent(axis) - self.number(1))
            indices[axis.var] = index
        indices[self.plan.vector.var] = self.first(self.plan.vector) + column
        return indices

    def first(self, axis: Axis) -> Any:
        """The first index at which the tile reads along the vector axis, or one of such rows."""
        start = self.start(axis)
        if not self.plan.is_ragged(axis):
            return start
        # No tile is longer than its axis, so the difference is not negative.
        return tirx.min(start, self.number(known(axis) - self.plan.length(axis)))

    def _start(self, axis: Axis, loops: Iterable[Loop]) -> Any:
        total: Any = None
        for plan_loop in loops:
            if plan_loop.axis is axis and plan_loop.trips != 1:
                var = self._variables[plan_loop]
                term = var * plan_loop.step if plan_loop.step != 1 else var
                total = term if total is None else total + term
        return self.number(0) if total is None else total

    def _trips(self, plan_loop: Loop) -> Any:
        """The number of trips of a loop.

        The last trip of a loop around it may have less of the axis left than the others; then the
        number is an expression over the variables of the outer loops.
        """
        if plan_loop.trips is None:
            return ceil_div(self.contraction.extent(plan_loop.axis), plan_loop.step)
        axis_loops = [candidate for candidate in self._loops if candidate.axis is plan_loop.axis]
        innermost_step = axis_loops[-1].step
        # Steps are of whole tiles (of single terms along a reduction), so the axis is rounded up.
        remaining: Any = ceil_div(known(plan_loop.axis), innermost_step) * innermost_step
        for outer in axis_loops[: axis_loops.index(plan_loop)]:
            # All trips of the outer loop have the same length if they divide what remains, or if
            # there is only one. Otherwise the last one is shorter.
            if isinstance(remaining, int) and (
                remaining % outer.step == 0 or remaining < outer.step
            ):
                remaining = min(remaining, outer.step)
            else:
                passed = self.trip(outer) * outer.step
                remaining = tirx.min(self.number(outer.step), remaining - passed)
        return ceil_div(remaining, plan_loop.step)
