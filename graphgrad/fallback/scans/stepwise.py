"""Gradients of scans of which nothing is kept but the states: step by step, backwards.

Step s computes the rows S[s] from the rows before, S[s-1], and from tensors O that all steps read.
Its vector-Jacobian product, of one step alone, takes the cotangents of S[s] to those of S[s-1], and
to what the step adds to those of O. A scan backwards in time has both as states: Ō is summed as it
runs. What a step computes on the way is computed anew in the loop, and is gone after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import te, tirx

from ...errors import ArgumentError, MissingGradientError
from ..backprop import is_float, wide
from ..contribution import Contribution
from ..graph import (
    STEPWISE,
    Key,
    Operation,
    listed,
    operations,
    outputs_of,
    rewritten,
    sources,
    state_extents,
)
from ..kinds import map_stage
from ..scatter import separated
from ..walk import Expr, is_load, loaded, postorder, tensor_key, transformed
from .checkpoints import as_single_row, row_of
from .restage import stage_of
from .scan import Parts, Sweep, step, step_time
from .stacks import Stacking
from .windows import window as window_of


def stepwise_parts(
    op: Any, cotangents: Sequence[te.Tensor | None], sweep: Sweep
) -> list[tuple[te.Tensor, Contribution | te.Tensor]]:
    """The contribution of a `STEPWISE` scan to the cotangents of its initial states and its inputs.

    Parameters and errors are those of `scan.scan_parts`.
    """
    try:
        return _Backwards(op, cotangents, sweep).parts()
    except ArgumentError as error:
        raise MissingGradientError(str(error)) from error


class _Step:
    """One step of a scan, and the parts of tensors that it reads.

    Attributes
    ----------
    before : list of Tensor
        The row before of each state.
    windows, read : list
        Of each of the tensors `outside`, what the step reads; as stages.
    rows : list of Tensor
        What it computes, from nothing but these of the states and of the tensors outside.
    order : list of Operation
    """

    def __init__(self, op: Any, outside: Sequence[te.Tensor]):
        self.time = step_time(op)
        self.states = outputs_of(op)
        self.inputs = [*self.states, *sources(op)]
        replacements = zip(map(tensor_key, op.state_placeholder), self.states, strict=True)
        rows, _ = step(op, self.time, dict(replacements))
        by_key = {tensor_key(tensor): tensor for tensor in self.inputs}
        stages = postorder(
            *(row.op for row in rows),
            parts=lambda stage: [t.op for t in stage.input_tensors if tensor_key(t) not in by_key],
        )
        self.before = [row_of(state, self.time.var - 1) for state in self.states]
        self.windows = [window_of(tensor, stages, self.time) for tensor in outside]
        self.read = [window.part() for window in self.windows]
        self._state_numbers = {tensor_key(state): i for i, state in enumerate(self.states)}
        self._outside = {tensor_key(tensor): i for i, tensor in enumerate(outside)}
        self.rows = rewritten(rows, self._narrowed, by_key)
        self.order = self.stages(self.rows)

    def stages(self, tensors: Sequence[te.Tensor]) -> list[Operation]:
        """The stages behind some tensors that depend on what the step reads."""
        order = operations(*tensors, above=self.inputs)
        return [stage for stage in order if not isinstance(stage, te.PlaceholderOp)]

    def _narrowed(self, stage: Operation) -> list[te.Tensor] | None:
        """A stage that reads no more of other tensors than the step does."""
        keys = {tensor_key(tensor) for tensor in sources(stage)}
        if isinstance(stage, te.ScanOp) or not keys & (
            self._state_numbers.keys() | self._outside.keys()
        ):
            return None
        narrowed = stage_of(stage).changed(lambda root: transformed(root, self._reading))
        return narrowed.built([self.time])

    def _reading(self, node: Expr) -> Expr:
        if not is_load(node):
            return node
        tensor, indices = loaded(node)
        key = tensor_key(tensor)
        if key in self._state_numbers:
            assert tvm.sym.Analyzer().can_prove_equal(indices[0], self.time.var - 1)
            return self.before[self._state_numbers[key]](*indices[1:])
        if key in self._outside:
            number = self._outside[key]
            return self.windows[number].read(self.read[number], indices)
        return node


class _Backwards:
    """The scan backwards in time, and what it finds."""

    def __init__(self, op: Any, cotangents: Sequence[te.Tensor | None], sweep: Sweep):
        self.op = op
        self.heads = {i: c for i, c in enumerate(cotangents) if c is not None}
        self.sweep = sweep
        self.outside = [tensor for tensor in sources(op) if tensor_key(tensor) in sweep.active]
        self.step = _Step(op, self.outside)
        self.steps = self.step.time.extent
        self.inits: list[te.Tensor] = []
        self.updates: list[te.Tensor] = []
        self.states: list[te.Tensor] = []

    def parts(self) -> list[tuple[te.Tensor, Contribution | te.Tensor]]:
        """The parts for the initial states and for what the steps read."""
        carried, totals = self._of_a_step()
        added = [i for i, read in enumerate(self.step.read) if tensor_key(read) in totals]
        at_steps = self._at_all_steps(totals)
        for i, state in carried.items():
            self._carry(i, state, at_steps.get(tensor_key(self.step.before[i])))
        for i in added:
            self._add(i, at_steps[tensor_key(self.step.read[i])])
        result = te.scan(
            self.inits,
            self.updates,
            self.states,
            inputs=[*self.step.inputs, *self.heads.values()],
            name=f"{self.op.name}_ct",
            tag=STEPWISE,
            attrs=self.op.attrs,
        )
        results = listed(result)
        inits = [
            (self.op.init[i], as_single_row(row_of(rows, self.steps)))
            for i, rows in zip(carried, results, strict=False)
            if tensor_key(self.op.init[i]) in self.sweep.active
        ]
        # Behind the carried states come the sums of what is outside.
        sums = zip(added, results[len(carried) :], strict=True)
        return [*inits, *(self._of_outside(i, rows) for i, rows in sums)]

    def _of_a_step(self) -> tuple[dict[int, te.Tensor], dict[Key, te.Tensor]]:
        """The states of the scan backwards, and the cotangents of what a step reads."""
        before = self.step.before
        keys = {tensor_key(row) for row in before if is_float(row.dtype)}
        keys |= {tensor_key(read) for read in self.step.read}
        carried: dict[int, te.Tensor] = {}
        due = list(self.heads)
        # The cotangent of one state may reach another one, which then has to be carried, too.
        while due:
            carried |= {i: self._placeholder(self.step.states[i]) for i in due}
            parts: Parts = {}
            for i, state in carried.items():
                # Row r of the scan backwards is the cotangent of row `steps - r`.
                after = row_of(state, self.steps - self.step.time.var)
                parts.setdefault(tensor_key(self.step.rows[i]), []).append(after)
            totals = self.sweep.propagate(self.step.order, keys, parts)
            due = [
                i for i, row in enumerate(before) if tensor_key(row) in totals and i not in carried
            ]
        return carried, {key: total for key, total in totals.items() if key in keys}

    def _placeholder(self, like: te.Tensor, dtype: str | None = None) -> te.Tensor:
        return te.placeholder(like.shape, dtype or str(like.dtype), name=f"{like.op.name}_ct")

    def _at_all_steps(self, totals: dict[Key, te.Tensor]) -> dict[Key, te.Tensor]:
        """Cotangents with a row for each step."""
        by_key = {tensor_key(tensor): tensor for tensor in self.step.inputs}
        tensors = rewritten(list(totals.values()), separated, by_key)
        stages = self.step.stages(tensors)
        return dict(zip(totals, Stacking(self.step.time).tensors(tensors, stages), strict=True))

    def _carry(self, i: int, state: te.Tensor, before: te.Tensor | None) -> None:
        """Add the state that is the cotangent of a state: row r that of row `steps - r`."""
        head, zero = self.heads.get(i), tirx.const(0, str(state.dtype))

        def body(r: Any, *position: Any) -> Expr:
            terms = [part(self.steps - r, *position) for part in (head, before) if part is not None]
            return sum(terms[1:], terms[0]) if terms else zero

        last = map_stage(
            (1, *state.shape[1:]),
            lambda _, *position: zero if head is None else head(self.steps, *position),
            name=f"{state.op.name}_last",
        )
        self._state(last, map_stage(state.shape, body, name=f"{state.op.name}_before"), state)

    def _add(self, i: int, at_steps: te.Tensor) -> None:
        """Add the state that is the sum of what the steps add to the cotangent of a tensor.

        If each reads a window of its own, it is what each adds.
        """
        moves = self.step.windows[i].dimension is not None
        # A sum over all steps is carried wide; what each step adds on its own is not summed here.
        dtype = str(at_steps.dtype) if moves else wide(at_steps.dtype)
        shape = [self.steps + 1, *state_extents(at_steps.shape[1:])]
        state = te.placeholder(shape, dtype, name=f"{at_steps.op.name}_sum")

        def body(r: Any, *position: Any) -> Expr:
            value = at_steps(self.steps - r, *position).astype(dtype)
            return value if moves else state(r - 1, *position) + value

        zeros = map_stage(
            (1, *shape[1:]), lambda *_: tirx.const(0, dtype), name=f"{at_steps.op.name}_none"
        )
        self._state(zeros, map_stage(shape, body, name=f"{at_steps.op.name}_next"), state)

    def _state(self, init: te.Tensor, update: te.Tensor, state: te.Tensor) -> None:
        self.inits.append(init)
        self.updates.append(update)
        self.states.append(state)

    def _of_outside(self, i: int, rows: te.Tensor) -> tuple[te.Tensor, Contribution | te.Tensor]:
        """The contribution of all steps to the cotangent of a tensor that they read."""
        tensor, window = self.outside[i], self.step.windows[i]
        if window.dimension is not None:
            return tensor, window.contribution(rows)
        return tensor, map_stage(
            tensor.shape,
            lambda *at: rows(self.steps, *at).astype(str(tensor.dtype)),
            name=f"{tensor.op.name}_ct",
        )
