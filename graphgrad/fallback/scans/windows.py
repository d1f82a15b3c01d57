"""What each step of a loop reads of a tensor: all of it, or a window that moves with the time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import te, tirx

from ..backprop import widened
from ..constants import integer_value
from ..contribution import Contribution
from ..graph import Operation
from ..guarded import Guarded
from ..indices.linear_system import Axis, element_axes
from ..kinds import map_stage
from ..scatter import scatters_of
from ..walk import Expr, identity, is_load, loaded, postorder, tensor_key
from .restage import stage_of

_UNBOUNDED_EXTENT = 1 << 31


@dataclass(frozen=True)
class Window:
    """Part of a tensor: at time t, `extent` elements from `stride * t + first` on, in a dimension.

    Attributes
    ----------
    tensor : Tensor
    time : Axis
    dimension : int or None
        None if it is the whole tensor at all times.
    stride, first, extent : int
    """

    tensor: te.Tensor
    time: Axis
    dimension: int | None = None
    stride: int = 0
    first: int = 0
    extent: int = 0

    def part(self) -> te.Tensor:
        """The part, as a stage in terms of the time; zero outside the tensor."""

        def body(*position: Any) -> Expr:
            indices, conditions = self._source_indices(position, self.time.var)
            value = self.tensor(*indices)
            zero = tirx.const(0, str(self.tensor.dtype))
            return tirx.if_then_else(tirx.all(*conditions), value, zero) if conditions else value

        return map_stage(self._shape(), body, name=f"{self.tensor.op.name}_read")

    def contribution(self, rows: te.Tensor) -> Contribution:
        """The sums of the part's cotangents, from the last time to the first.

        Parameters
        ----------
        rows : Tensor
            Row r, from 1 on, is the cotangent of the part r times before the end.
        """
        one = tirx.const(1, str(self.time.extent.ty))
        back = Axis(te.var("r", str(one.ty)), one, self.time.extent)
        loops = element_axes(self._shape(), "p")
        position = [loop.var for loop in loops]
        time = self.time.low + self.time.extent - back.var
        indices, conditions = self._source_indices(position, time)
        term = Guarded((), widened(rows(back.var, *position)))
        return Contribution(
            self.tensor, [back, *loops], indices, [term], conditions, str(rows.op.name)
        )

    def _shape(self) -> list[Expr]:
        shape = list(self.tensor.shape)
        if self.dimension is not None:
            shape[self.dimension] = tirx.const(self.extent, str(shape[self.dimension].ty))
        return shape

    def _source_indices(
        self, position: Sequence[Expr], time: Expr
    ) -> tuple[list[Expr], list[Expr]]:
        """Where the tensor has an element of the part, and conditions that it has it."""
        if self.dimension is None:
            return list(position), []
        start = self.stride * time + self.first
        index = position[self.dimension] + start
        bound = self.tensor.shape[self.dimension]
        ends = [self.time.low, self.time.low + self.time.extent - 1]
        # The window moves evenly, so that it is inside at all times if it is at the first and last.
        starts = [self.stride * int(tvm.sym.Analyzer().simplify(end)) + self.first for end in ends]
        inside = min(starts) >= 0 and max(starts) + self.extent <= int(bound)
        return _with(position, self.dimension, index), [] if inside else [index >= 0, index < bound]

    def read(self, part: te.Tensor, indices: Sequence[Expr]) -> Expr:
        """A load of the part for a load of the tensor."""
        if self.dimension is None:
            return part(*indices)
        index = indices[self.dimension] - (self.stride * self.time.var + self.first)
        return part(*_with(indices, self.dimension, tvm.sym.Analyzer().simplify(index)))


def window(tensor: te.Tensor, stages: Sequence[Operation], time: Axis) -> Window:
    """The smallest window of a tensor that stages read.

    Parameters
    ----------
    tensor : Tensor
    stages : sequence of Operation
        All of one step, those inside scans too.
    time : Axis
        Of the step.
    """
    reads = [read for op in stages for read in _reads(op, tensor)]
    for dimension, bound in enumerate(tensor.shape):
        moves = [_moving(indices[dimension], axes, time) for indices, axes in reads]
        linear_moves = [move for move in moves if move is not None]
        if (
            not linear_moves
            or len(linear_moves) < len(moves)
            or len({stride for stride, _, _ in linear_moves}) > 1
        ):
            continue
        first, last = (
            min(low for _, low, _ in linear_moves),
            max(high for _, _, high in linear_moves),
        )
        # A window as large as the dimension saves nothing.
        if last - first + 1 < (integer_value(bound) or 0):
            return Window(tensor, time, dimension, linear_moves[0][0], first, last - first + 1)
    return Window(tensor, time)


def _reads(op: Operation, tensor: te.Tensor) -> list[tuple[list[Expr], list[Axis]]]:
    """The indices at which a stage reads a tensor, and its loops."""
    if not isinstance(op, te.ComputeOp) and not scatters_of(op):
        return []
    stage = stage_of(op)
    return [
        (loaded(node)[1], stage.axes)
        for node in postorder(*stage.expressions)
        if is_load(node) and tensor_key(loaded(node)[0]) == tensor_key(tensor)
    ]


def _moving(index: Expr, axes: Sequence[Axis], time: Axis) -> tuple[int, int, int] | None:
    """How much an index grows with the time, and its bounds at time 0; None if unknown."""
    nodes = postorder(index)
    if any(is_load(node) for node in nodes):
        return None
    if not any(identity(node) == identity(time.var) for node in nodes):
        return None
    linear = tvm.sym.detect_linear_equation(index, [time.var])
    stride = integer_value(linear[0]) if len(linear) == 2 else None
    if not stride:
        return None
    analyzer = tvm.sym.Analyzer()
    for axis in axes:
        if integer_value(axis.low) is not None and integer_value(axis.extent) is not None:
            analyzer.bind(axis.var, tvm.ir.Range.from_min_extent(axis.low, axis.extent))
    bound = analyzer.const_int_bound(linear[1])
    # Of what TVM does not know, the bounds are those of int64.
    if bound.min_value < -_UNBOUNDED_EXTENT or bound.max_value > _UNBOUNDED_EXTENT:
        return None
    return stride, int(bound.min_value), int(bound.max_value)


def _with(indices: Sequence[Expr], dimension: int, index: Expr) -> list[Expr]:
    """Indices with one of them changed."""
    return [*indices[:dimension], index, *indices[dimension + 1 :]]
