"""Recurrences: the step of a scan, and its gradient as a scan backwards in time.

With S the states at all times and U the updates of all times as a function of them, a scan solves
S[t] = U(S)[t] for t ≥ lag. Its cotangents solve the transposed equation, S̄ = head + (∂U/∂S)ᵀ S̄,
where row t depends on later rows alone: a scan in reverse, whose update is the derivative of the
forward update. What the steps read from outside then gets the derivative of U by it at S̄, for all
times at once. See Werbos, Backpropagation through time (1990).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import te, tirx

from ...errors import ArgumentError, MissingGradientError
from .. import externs
from ..backprop import is_float
from ..constants import integer_value
from ..contribution import Contribution
from ..copies import original
from ..externs.writes import by_sorting
from ..forms.assemble import assembled
from ..graph import (
    Key,
    Operation,
    active_stages,
    listed,
    outputs_of,
    rewritten,
    scan_body,
    sources,
    state_extents,
)
from ..indices.linear_system import Axis, analyzer_of
from ..kinds import map_stage
from ..scatter import scatters_of, separated
from ..walk import Expr, identity, is_load, loaded, postorder, reads, tensor_key
from .kept import entries, worth_keeping
from .restage import stage_of
from .slices import Slicing
from .stacks import Stacking

Parts = dict[Key, list[Contribution | te.Tensor]]
"""What is added to the cotangents of tensors, by their keys."""

Row = Callable[..., Expr]
"""The cotangent of a state as a function of the time and the position in it."""


@dataclass(frozen=True)
class StackedStep:
    """The step of a scan at all times at once, from its states.

    Attributes
    ----------
    scan : ScanOp
    low : Expr
        The first time.
    updates : list of Tensor
        The states at all times from the first one on, as the steps compute them.
    stages : list of Tensor or None
        What each stage of the step computes; None where that is the same at all times.
    """

    scan: Any
    low: Expr
    updates: list[te.Tensor]
    stages: list[te.Tensor | None]


@dataclass(frozen=True)
class Sweep:
    """The reverse sweep that comes to a scan.

    Attributes
    ----------
    active : set of Key
        The tensors whose cotangents are asked for.
    propagate : callable
        Takes the parts of what stages compute through them, to those of what they read.
    pads : bool
        See `te_gradient`.
    steps : list of StackedStep, optional
        Where the steps of scans are noted. Of such a scan, the states are read where the steps
        have computed them.
    """

    active: set[Key]
    propagate: Callable[..., Any]
    pads: bool
    steps: list[StackedStep] | None = None


def scan_parts(
    op: Any, cotangents: Sequence[te.Tensor | None], sweep: Sweep
) -> list[tuple[te.Tensor, Contribution | te.Tensor]]:
    """The contribution of a scan to the cotangents of its initial states and of its steps' reads.

    Parameters
    ----------
    op : ScanOp
    cotangents : sequence of Tensor or None
        One per state.
    sweep : Sweep

    Raises
    ------
    MissingGradientError
        A stage of its update has no known derivative, or cannot be computed one time at a time.
    """
    try:
        return _Reversal(op, cotangents, sweep).parts()
    except ArgumentError as error:
        raise MissingGradientError(str(error)) from error


def step_time(op: Any) -> Axis:
    """The times that a scan computes, as a loop over a new variable."""
    low, extent = op.scan_axis.dom.min, op.scan_axis.dom.extent
    dtype = str(extent.ty)
    return Axis(te.var("t", dtype), low.astype(dtype), extent)


def step(
    op: Any, time: Axis, replacements: Mapping[Key, te.Tensor]
) -> tuple[list[te.Tensor], list[Operation]]:
    """The states that a scan computes at one time, and the stages of that.

    Parameters
    ----------
    op : ScanOp
    time : Axis
        The parameter of the result.
    replacements : mapping
        What is to be read instead of its state placeholders and other tensors.

    Raises
    ------
    ArgumentError
        A stage cannot be computed one time at a time, or reads a state of the time that it
        computes or of a later one; the error names it.
    """
    updates = replace_externs(op)
    states = [replacements.get(tensor_key(state), state) for state in op.state_placeholder]
    slicing = Slicing(scan_body(op, updates), time, replacements)
    rows = slicing.tensors(updates, time.var)
    _check_past(slicing.made, states, time)
    return rows, slicing.made


def replace_externs(op: Any) -> list[te.Tensor]:
    """The updates of a scan with its extern stages by others, as far as they are known."""
    return by_other_stages(op.update, [*sources(op), *op.state_placeholder])


def by_other_stages(tensors: Sequence[te.Tensor], read: Sequence[te.Tensor]) -> list[te.Tensor]:
    """Tensors with the extern stages that compute them by others, as far as they are known.

    What is left of them are scatters, each of its own, and what nothing is known of. Recurrences by
    key become others over sorted points.

    Parameters
    ----------
    tensors : sequence of Tensor
    read : sequence of Tensor
        What they are computed from: the stages above are left as they are.
    """

    def change(stage: Operation) -> list[te.Tensor] | None:
        if not isinstance(stage, te.ExternOp) or scatters_of(stage):
            return separated(stage)
        try:
            outputs = externs.restated(stage)
        except MissingGradientError:
            return None
        known = [
            old if new is None else new for new, old in zip(outputs, outputs_of(stage), strict=True)
        ]
        return rewritten(known, by_sorting, {tensor_key(t): t for t in sources(stage)})

    return rewritten(tensors, change, {tensor_key(tensor): tensor for tensor in read})


def _check_past(stages: Sequence[Operation], states: Sequence[te.Tensor], time: Axis) -> None:
    """Raise if a stage of a step reads a state that no step before has computed."""
    # No step is computed, so none reads a state.
    if integer_value(time.extent) == 0:
        return
    keys = {tensor_key(state) for state in states}
    analyzer = analyzer_of([time])
    for op in stages:
        if isinstance(op, te.ScanOp):
            continue
        for node in postorder(*stage_of(op).expressions):
            if is_load(node) and tensor_key(loaded(node)[0]) in keys:
                row = loaded(node)[1][0]
                if not reads(row) and analyzer.can_prove(row >= time.var):
                    raise ArgumentError(
                        f"the stage {op.name} of a scan reads a state at the time that the step "
                        "computes, or later; a step may read the states of steps before it"
                    )


class _Reversal:
    """A scan, and the one that computes the cotangents of its states."""

    def __init__(self, op: Any, cotangents: Sequence[te.Tensor | None], sweep: Sweep):
        self.op = op
        self.heads = {i: c for i, c in enumerate(cotangents) if c is not None}
        self.sweep = sweep
        self.states = outputs_of(op)
        self.time = step_time(op)
        # An extent that stays t + 1 − 1 is another than t to the passes of TVM.
        self.last = tvm.sym.Analyzer().simplify(self.states[0].shape[0] - 1)
        replacements = {
            tensor_key(placeholder): state
            for placeholder, state in zip(op.state_placeholder, self.states, strict=True)
        }
        # The sweep has all states at hand, so the updates of all times are computed at once.
        stacking = Stacking(self.time)
        rows, stages = step(op, self.time, replacements)
        self.updates = stacking.tensors(rows, stages)
        self.returned: set[Key] = set()
        if sweep.steps is not None:
            self.returned = set(map(tensor_key, self.updates))
            found = [stacking.done.get(tensor_key(stage.output(0))) for stage in stages]
            sweep.steps.append(StackedStep(op, self.time.low, self.updates, found))
        self.order = stacking.stages(self.updates)
        self.times = stacking.dimensions_of_stacked()
        self._floats = {tensor_key(s): i for i, s in enumerate(self.states) if is_float(s.dtype)}
        self._outside = {tensor_key(tensor): tensor for tensor in sources(op)}
        self._wanted = self._outside.keys() & sweep.active
        # Their cotangents reach tensors outside by no other stage.
        self._entries = entries(self.order, self._floats.keys(), self._wanted)
        self._entered = [tensor_key(t) for entry in self._entries for t in outputs_of(entry)]

    def parts(self) -> list[tuple[te.Tensor, Contribution | te.Tensor]]:
        """The parts for the initial states and for what the steps read."""
        cotangents, kept = self._cotangents()
        if kept:
            arrived = self._arrived_outside(cotangents, kept)
        else:
            arrived, _ = self._arrived(self._wanted, cotangents)
        inits = [
            (init, _rows(init, cotangents[i], 0, init.shape[0]))
            for i, init in enumerate(self.op.init)
            if i in cotangents and tensor_key(init) in self.sweep.active
        ]
        outside = self._outside
        return [*inits, *((outside[key], p) for key, parts in arrived.items() for p in parts)]

    def _arrived(
        self, wanted: set[Key], cotangents: Mapping[int, Row]
    ) -> tuple[Parts, dict[Key, te.Tensor]]:
        """The contribution of all updates to the cotangents of some tensors.

        Behind it the cotangents of what the steps compute on the way, for all times.
        """
        parts = self._seeds(cotangents)
        totals = self.sweep.propagate(self.order, wanted, parts, returned=self.returned)
        assert parts.keys() <= wanted, "a cotangent reaches a stage that is not of the step"
        return parts, totals

    def _arrived_outside(
        self, cotangents: Mapping[int, Row], kept: Mapping[Key, te.Tensor]
    ) -> Parts:
        """What arrives outside, where the cotangents of entries are known."""
        _, stages = active_stages(self.order, self._floats.keys(), is_float)
        outer = [op for op in self.order if identity(op) not in stages]
        targets = self._wanted | {tensor_key(t) for op in outer for t in outputs_of(op)}
        parts = {key: p for key, p in self._seeds(cotangents).items() if key in targets}
        for stage in self._entries:
            own = {key: [kept[key]] for key in map(tensor_key, outputs_of(stage)) if key in kept}
            self.sweep.propagate([stage], targets, own, returned=self.returned)
            for key, arrived in own.items():
                if key in targets:
                    parts.setdefault(key, []).extend(arrived)
        self.sweep.propagate(outer, self._wanted, parts, returned=self.returned)
        return {key: arrived for key, arrived in parts.items() if key in self._wanted}

    def _seeds(self, cotangents: Mapping[int, Row]) -> Parts:
        """The cotangents of the updates."""
        parts: Parts = {}
        for i, row in cotangents.items():
            stacked = _rows(self.updates[i], row, self.time.low, self.time.extent)
            parts.setdefault(tensor_key(self.updates[i]), []).append(stacked)
        return parts

    def _cotangents(self) -> tuple[dict[int, Row], dict[Key, te.Tensor]]:
        """The cotangents of those states that have any; and those of entries, if they are kept."""
        heads: dict[int, Row] = dict(self.heads)
        if integer_value(self.time.extent) == 0:
            return heads, {}
        carried, arrived, totals = self._all_carried(set())
        if not arrived:  # no step reads the one before
            return heads, {}
        kept: dict[Key, te.Tensor] = {}
        if self._may_keep(carried, totals):
            carried, arrived, totals = self._all_carried(set(self._entered))
            kept = {tensor_key(base): base for base in self._of_entries(totals).values()}
        results = self._reverse_scan(carried, arrived, list(kept.values()))
        count = len(carried)
        states = {i: self._backwards(row) for i, row in zip(carried, results[:count], strict=True)}
        rows = dict(zip(kept, map(self._kept_rows, kept.values(), results[count:]), strict=True))
        of_entries = self._of_entries(totals) if kept else {}
        return states, {key: rows[tensor_key(base)] for key, base in of_entries.items()}

    def _of_entries(self, totals: Mapping[Key, te.Tensor]) -> dict[Key, te.Tensor]:
        """The cotangents of what entries compute; equal ones are one tensor."""
        return {key: original(totals[key]) for key in self._entered if key in totals}

    def _all_carried(
        self, entries_keys: set[Key]
    ) -> tuple[dict[int, te.Tensor], dict[int, Any], dict[Key, te.Tensor]]:
        """The states in reverse, what arrives at each from later rows, and all on the way.

        Parameters
        ----------
        entries_keys : set of Key
            Tensors of the steps whose cotangents are to be kept for all times. Then all times are
            gone through, those for the first rows among them; and none of these tensors is a view
            that is read through, because what arrived behind it would be missing in its cotangent.
        """
        carried: dict[int, te.Tensor] = {}
        due = list(self.heads)
        # The cotangent of one state may reach another one, which then has to be carried, too.
        while due:
            carried |= {i: self._carried(self.states[i], bool(entries_keys)) for i in due}
            rows = {i: self._backwards(tensor) for i, tensor in carried.items()}
            parts, totals = self._arrived(self._floats.keys() | entries_keys, rows)
            arrived = {self._floats[key]: part for key, part in parts.items()}
            due = [i for i in arrived if i not in carried]
        return carried, arrived, totals

    def _may_keep(self, carried: Mapping[int, te.Tensor], totals: Mapping[Key, te.Tensor]) -> bool:
        """Whether the scan in reverse is to keep the cotangents of entries."""
        kept = {tensor_key(base): base for base in self._of_entries(totals).values()}
        given = [*self.states, *sources(self.op), *self.heads.values(), *carried.values()]
        # A stage for other than all times would have its times elsewhere than in front.
        return all(self.times.get(key) == 0 for key in self._entered) and worth_keeping(
            list(kept.values()), carried.values(), self.order, given
        )

    def _reverse_scan(
        self,
        carried: Mapping[int, te.Tensor],
        arrived: Mapping[int, list[Contribution | te.Tensor]],
        kept: Sequence[te.Tensor],
    ) -> list[te.Tensor]:
        """The cotangents of the states as a scan, from the last time to the first.

        Behind them those that are `kept`: row s is what led to row s of the states.
        """
        inits, updates = [], []
        for i, placeholder in carried.items():
            init, update = self._last_and_before(i, placeholder, arrived.get(i, []))
            inits.append(init)
            updates.append(update)
        states = list(carried.values())
        length = states[0].shape[0]
        for tensor in kept:
            init, update = self._kept_row(tensor, length)
            inits.append(init)
            updates.append(update)
            states.append(te.placeholder(update.shape, str(update.dtype), name=update.op.name))
        return listed(te.scan(inits, updates, states, name=f"{self.op.name}_ct"))

    def _kept_row(self, tensor: te.Tensor, length: Expr) -> tuple[te.Tensor, te.Tensor]:
        """What a scan in reverse starts with and keeps of a cotangent for all times."""
        zero = tirx.const(0.0, str(tensor.dtype))
        one = tirx.const(1, str(self.last.ty))

        def row(step: Expr, *position: Expr) -> Expr:
            # The step to the state at time last − s goes through the stages of the time after.
            number = self.last - step + 1 - self.time.low
            return tirx.if_then_else(
                tirx.all(step > 0, number >= 0), tensor(number, *position), zero
            )

        name, shape = f"{tensor.op.name}_kept", state_extents(tensor.shape[1:])
        init = map_stage((one, *shape), lambda *_: zero, name=name)
        return init, map_stage((length, *shape), row, name=name)

    def _kept_rows(self, tensor: te.Tensor, state: te.Tensor) -> te.Tensor:
        """A cotangent for all times, from the rows that the scan in reverse has kept."""
        after = self.last + 1 - self.time.low
        return map_stage(
            tensor.shape,
            lambda number, *position: state(after - number, *position),
            name=tensor.op.name,
        )

    def _last_and_before(
        self, i: int, placeholder: te.Tensor, parts: Sequence[Contribution | te.Tensor]
    ) -> tuple[te.Tensor, te.Tensor]:
        """The cotangent of a state at the last time, and at all times from those behind."""
        state, head, name = self.states[i], self.heads.get(i), placeholder.op.name
        total = assembled(state, [*([] if head is None else [head]), *parts], self.sweep.pads)
        assert total is not None, "nothing cancels that follows no reduction"
        zero = tirx.const(0.0, str(state.dtype))
        one = tirx.const(1, str(self.last.ty))
        last = map_stage(
            (one, *state.shape[1:]),
            lambda _, *position: zero if head is None else head(self.last, *position),
            name=f"{name}_last",
        )
        before = map_stage(
            placeholder.shape,
            lambda step, *position: total(self.last - step, *position),
            name=f"{name}_before",
        )
        return last, before

    def _carried(self, state: te.Tensor, whole: bool) -> te.Tensor:
        """The state of the scan in reverse: the last time first, as far as it is needed."""
        wants_init = any(tensor_key(init) in self.sweep.active for init in self.op.init)
        runs = (integer_value(self.time.extent) or 0) > 0
        # Rows before the first step matter only where cotangents of initial states are asked for.
        first = self.time.low if runs and not (wants_init or whole) else 0
        shape = [self.last + 1 - first, *state.shape[1:]]
        return te.placeholder(shape, str(state.dtype), name=f"{state.op.name}_ct")

    def _backwards(self, tensor: te.Tensor) -> Row:
        return lambda time, *position: tensor(self.last - time, *position)


def _rows(like: te.Tensor, row: Row, low: Expr, extent: Expr) -> te.Tensor:
    """Some of the rows of a cotangent, those of a tensor."""
    return map_stage(
        (extent, *like.shape[1:]),
        lambda i, *position: row(i + low, *position),
        name=f"{like.op.name}_ct",
    )
