"""Recurrences that keep few of their states: the time cut into segments.

The gradient of a scan of T steps reads all its states. If it keeps every k-th alone, and computes
those between anew when it comes to them, it needs memory for T / k + k states, least for k = √T, at
the price of one more evaluation of the steps. See Griewank and Walther, Evaluating Derivatives
(2nd edition, 2008), section 12.2; Chen et al., Training deep nets with sublinear memory cost
(2016).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt
from typing import Any

import tvm
from tvm import te, tirx

from ...errors import ArgumentError
from ...tvm_fixes.hooks import scan_stage
from ..constants import integer_value
from ..graph import (
    RECOMPUTED,
    STEPWISE,
    listed,
    operations,
    outputs_of,
    rewritten,
    scan_body,
    sources,
)
from ..indices.index_system import Axis
from ..kinds import map_stage
from ..walk import Expr, tensor_key
from .circular_buffers import reads_rows
from .scan import replace_externs
from .slices import Slicing
from .stacks import Stacking


def checkpointed(
    states: te.Tensor | Sequence[te.Tensor],
    every: int | None = None,
    inputs: Sequence[te.Tensor] = (),
) -> list[te.Tensor]:
    """The last rows of the states of a scan, such that their gradient takes little memory.

    Rather than the states at all T times, and every intermediate result of a step at all times,
    those at every k-th time are kept and those of k times at once: O(√T) for k = √T, besides what
    is as large as the inputs. The gradients by what all steps read, as weights, are summed in the
    loop. That costs one more evaluation of the steps than the gradient of the scan itself.

    Parameters
    ----------
    states : Tensor or sequence of Tensor
        Results of one `te.scan`, whose steps read its states at the `lag` times before alone,
        where `lag` is how many initial rows there are.
    every : int, optional
        How many steps are between states that are kept: k; the root of their number if left out.
    inputs : sequence of Tensor, optional
        Intermediate results that the steps read and that are kept as a whole, as placeholders and
        the results of scans and of extern stages are. Others are computed anew for each segment,
        and there is no gradient by them.

    Returns
    -------
    list of Tensor of shape (lag, ...)
        For each state the rows of the last `lag` times, of its dtype: what ``state[-lag:]`` is.

    Raises
    ------
    ArgumentError
        The states are not those of one scan, the number of times is not a constant, an input
        depends on the states, or a step reads a state of other times.
    """
    states = listed(states)
    op = _scan_of(states)
    extent = tvm.sym.Analyzer().simplify(op.scan_axis.dom.extent)
    steps = integer_value(extent)
    if steps is None:
        raise ArgumentError(
            f"the scan {op.name} runs for {extent} steps; to keep some of its "
            "states, their number must be a constant"
        )
    every = isqrt(max(steps - 1, 0)) + 1 if every is None else every
    if every < 1:
        raise ArgumentError(f"a state is to be kept every {every} steps; it must be 1 at least")
    rows = _Segments(op, inputs).last_rows(steps, every)
    return [rows[state.value_index] for state in states]


def _scan_of(states: Sequence[te.Tensor]) -> Any:
    op = states[0].op if states else None
    if not isinstance(op, te.ScanOp) or any(not state.op.same_as(op) for state in states):
        names = ", ".join(str(state.op.name) for state in states)
        raise ArgumentError(f"{names or 'nothing'} is not what one te.scan returns")
    return op


class _Segments:
    """A scan, some of its steps at a time."""

    def __init__(self, op: Any, inputs: Sequence[te.Tensor]):
        self.op = op
        self.lag = int(op.init[0].shape[0])
        before = operations(*sources(op))
        kept = [stage for stage in before if isinstance(stage, te.ScanOp | te.ExternOp)]
        self.inputs = [*inputs, *op.inputs, *(t for stage in kept for t in outputs_of(stage))]
        placeholders = {tensor_key(state) for state in op.state_placeholder}
        for tensor in self.inputs:
            read = [other for stage in operations(tensor) for other in outputs_of(stage)]
            if any(tensor_key(other) in placeholders for other in read):
                raise ArgumentError(
                    f"the input {tensor.op.name} depends on a state of the scan {op.name}; what is "
                    "kept as a whole must be computed before the scan"
                )
        recomputed = scan_body(self._stepwise(op.update))
        self.attributes = {RECOMPUTED: [t for stage in recomputed for t in outputs_of(stage)]}

    def _stepwise(self, updates: Sequence[te.Tensor]) -> Any:
        """The scan as one of which all stages after the inputs are computed step by step."""
        op = self.op
        return scan_stage(
            op.name, STEPWISE, {}, op.scan_axis, op.init, updates, op.state_placeholder, self.inputs
        )

    def last_rows(self, steps: int, every: int) -> list[te.Tensor]:
        """The rows of the last times of each state."""
        count, remainder = divmod(steps, every)
        begin = list(self.op.init)
        # A single segment would save nothing.
        if count < 2:
            return self._segment(begin, steps)
        # The steps that fill no segment go first, so that all segments are of one length.
        if remainder:
            begin = self._segment(begin, remainder)
        # From 1: row s of what is kept is the state after s segments.
        segment = Axis(te.var("segment", "int32"), tirx.const(1), tirx.const(count))
        states = [
            te.placeholder((count + 1, *rows.shape), str(rows.dtype), name=f"{rows.op.name}_kept")
            for rows in begin
        ]
        before = [row_of(state, segment.var - 1) for state in states]
        after = self._segment(before, every, remainder + every * (segment.var - 1), [segment])
        stages = operations(*after, above=self.inputs)
        stages = [stage for stage in stages if not isinstance(stage, te.PlaceholderOp)]
        stacked = Stacking(segment).tensors(after, stages)
        kept = te.scan(
            [as_single_row(rows) for rows in begin],
            [_later(rows, 1) for rows in stacked],
            states,
            inputs=self.inputs,
            name=f"{self.op.name}_segments",
            tag=STEPWISE,
            attrs=self.attributes,
        )
        return [row_of(state, tirx.const(count)) for state in listed(kept)]

    def _segment(
        self,
        begin: Sequence[te.Tensor],
        steps: int,
        first: Expr | int = 0,
        around: Sequence[Axis] = (),
    ) -> list[te.Tensor]:
        """The last rows of the states after some steps.

        Parameters
        ----------
        begin : sequence of Tensor
            The rows before.
        steps : int
        first : Expr or int
            The time of the first of the rows before.
        around : sequence of Axis
            In terms of whose variables it is.
        """
        if not steps:
            return list(begin)
        op, lag = self.op, self.lag
        time = Axis(te.var("t", "int32"), tirx.const(lag), tirx.const(steps))
        states = [
            te.placeholder((lag + steps, *whole.shape[1:]), str(whole.dtype), whole.op.name)
            for whole in op.state_placeholder
        ]
        shifted = {
            tensor_key(whole): _from_time(state, whole, first)
            for whole, state in zip(op.state_placeholder, states, strict=True)
        }
        updates = rewritten(replace_externs(op), lambda stage: None, shifted)
        slicing = Slicing(scan_body(self._stepwise(updates)), time, {}, around)
        rows = slicing.tensors(updates, first + time.var)
        for state in states:
            # Rows further back belong to the segment before, which has not kept them.
            if not reads_rows(
                slicing.made, tensor_key(state), time.var - lag, time.var, [*around, time]
            ):
                raise ArgumentError(
                    f"a step of the scan {op.name} reads the state {state.op.name} at another time "
                    f"than the {lag} before; such a scan keeps all its states"
                )
        stacked = Stacking(time).tensors(rows, slicing.made)
        updates = [_later(rows, lag) for rows in stacked]
        result = te.scan(list(begin), updates, states, name=op.name, attrs=self.attributes)
        return [_last(state, steps) for state in listed(result)]


def row_of(tensor: te.Tensor, row: Expr) -> te.Tensor:
    """One row of a tensor."""
    return map_stage(tensor.shape[1:], lambda *at: tensor(row, *at), name=f"{tensor.op.name}_row")


def _from_time(rows: te.Tensor, state: te.Tensor, first: Expr | int) -> te.Tensor:
    """A state at all times, read off rows of which the first is that of some time."""
    return map_stage(state.shape, lambda t, *at: rows(t - first, *at), name=f"{state.op.name}_at")


def _last(state: te.Tensor, steps: int) -> te.Tensor:
    """The rows of a state behind its first `steps` ones."""
    shape = (state.shape[0] - steps, *state.shape[1:])
    return map_stage(shape, lambda t, *at: state(t + steps, *at), name=f"{state.op.name}_last")


def as_single_row(rows: te.Tensor) -> te.Tensor:
    """A tensor as the only row of another."""
    return map_stage((1, *rows.shape), lambda _, *at: rows(*at), name=f"{rows.op.name}_first")


def _later(rows: te.Tensor, count: int) -> te.Tensor:
    """Rows with `count` others in front, which are not read."""
    shape = (rows.shape[0] + count, *rows.shape[1:])
    return map_stage(shape, lambda t, *at: rows(t - count, *at), name=f"{rows.op.name}_later")
