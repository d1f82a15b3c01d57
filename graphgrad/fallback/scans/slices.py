"""Graphs of stages at one place along some of their dimensions.

A scan's update is a graph over all times, of which one time is computed at each step. Taking that
time out of every stage gives the graph of a step, in which time is a parameter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import te, tirx
from tvm.ir import prim
from tvm.sym import ProofStrength

from ...errors import ArgumentError
from ..backprop import is_float
from ..constants import integer_value
from ..graph import Key, Operation, outputs_of, rebuild_scan, scan_body
from ..indices.linear_system import Axis, analyzer_of
from ..kinds import map_stage
from ..value_numbering import same
from ..walk import (
    Expr,
    called,
    children,
    depend,
    identity,
    is_load,
    loaded,
    postorder,
    reads,
    rebuilt,
    substituted,
    tensor_key,
    transformed,
)
from .restage import Stage, like, stage_of

Position = Mapping[int, Expr]
"""Where a tensor is read along some of its dimensions."""


@dataclass
class Slice:
    """One stage at one place.

    Attributes
    ----------
    op : Operation
        The stage.
    position : dict
        Along which dimensions of it, and where, in terms of the stage that reads it.
    readers : list of Axis
        Those loops of the stage that reads it that occur in `position`: dimensions of the result.
    stage : Stage or None
        What it computes; of a scan or a placeholder, None.
    read_by_it : list of Slice
    outputs : list of Tensor
        The result, once it is built.
    """

    op: Operation
    position: dict[int, Expr]
    readers: list[Axis] = field(default_factory=list)
    stage: Stage | None = None
    read_by_it: list[Slice] = field(default_factory=list)
    outputs: list[te.Tensor] = field(default_factory=list)

    def read(self, load: Expr) -> Expr:
        """A load of the result for a load of the stage at this place."""
        tensor, indices = loaded(load)
        others = [index for i, index in enumerate(indices) if i not in self.position]
        at = [*(axis.var - axis.low for axis in self.readers), *others]
        if self.stage is not None and self.stage.is_view:
            variables = [axis.var for axis in self.stage.axes]
            values = [like(var, index) for var, index in zip(variables, at, strict=True)]
            return substituted(self.stage.roots[0], zip(variables, values, strict=True))
        return self.outputs[tensor.value_index](*at)


class Slicing:
    """Stages computed for one place only, which may depend on a parameter.

    Parameters
    ----------
    stages : sequence of Operation
        What is to be computed for one place, each after those it reads; what is read of any other
        stage is read as it is.
    parameter : Axis
        Along its range.
    replacements : mapping
        What is to be read instead of some tensors of other stages.
    around : sequence of Axis
        Further parameters, which the range of the parameter and the place may depend on.
    """

    def __init__(
        self,
        stages: Sequence[Operation],
        parameter: Axis,
        replacements: Mapping[Key, te.Tensor],
        around: Sequence[Axis] = (),
    ):
        self.parameter = parameter
        self.parameters = [*around, parameter]
        self.replacements = replacements
        self.outermost = {identity(op) for op in stages}
        self.made: list[Operation] = []
        """What was made for the results, each stage after those it reads; scans as one stage."""
        self.slices: dict[int, list[Slice]] = {
            identity(inner): [] for op in stages for inner in _expand_scan(op)
        }
        self.demanded: list[Slice] = []
        self._scans = [
            inner for op in stages for inner in _expand_scan(op) if isinstance(inner, te.ScanOp)
        ]
        self._sliced_along: dict[int, set[int]] = {}
        """For some scans and their states, the dimensions along which alone they are sliced."""

    def tensors(self, tensors: Sequence[te.Tensor], where: Expr) -> list[te.Tensor]:
        """Some tensors where their first index has a value; zero outside their bounds.

        Parameters
        ----------
        tensors : sequence of Tensor
        where : Expr
            In terms of the parameter.

        Raises
        ------
        ArgumentError
            A stage cannot be computed for one place; the error names it.
        """
        position = {0: self._analyzer([]).simplify(where)}
        counts = {key: len(parts) for key, parts in self.slices.items()}
        # All that is read is known before anything is built, so that each slice is built once.
        while True:
            parts = [self._demand(tensor, position, []) for tensor in tensors]
            while self.demanded:
                self._put(self.demanded.pop())
            if not self._restrict_scans():
                break
            for key, count in counts.items():
                del self.slices[key][count:]
        for part in _readers_last(part for part in parts if part is not None):
            self._build(part)
        return [self._at(tensor, position) for tensor in tensors]

    def _demand(self, tensor: te.Tensor, position: Position, local: Sequence[Axis]) -> Slice | None:
        """The slice of a tensor at a place, a new one if there is none yet."""
        existing = self.slices.get(identity(tensor.op))
        if existing is None:
            return None
        if isinstance(tensor.op, te.ScanOp):
            # Its own time is no dimension to slice: each of its steps needs those before.
            position = {i: at for i, at in position.items() if i > 0}
        along = self._sliced_along.get(identity(tensor.op), position.keys())
        position = {i: at for i, at in position.items() if i in along}
        for part in existing:
            if _same_position(part.position, position):
                return part
        used = {identity(node) for node in postorder(*position.values())}
        existing.append(
            Slice(tensor.op, dict(position), [a for a in local if identity(a.var) in used])
        )
        self.demanded.append(existing[-1])
        return existing[-1]

    def _restrict_scans(self) -> bool:
        """Slice scans along fewer dimensions, where places differ by more than the outer time.

        A row of a state that is the outer time's, among others, is an element of the state at that
        time: the scan computes them all. Returns whether there was such a scan.
        """
        is_restricted = False
        for op in self._scans:
            keys = [identity(op), *(identity(state.op) for state in op.state_placeholder)]
            positions = [part.position for key in keys for part in self.slices[key]]
            if not positions:
                continue
            common = {
                i
                for i, at in positions[0].items()
                if all(i in other and same(other[i], at) for other in positions)
            }
            # With nothing in common it is read at several times; `_scan` says so.
            if common and any(position.keys() != common for position in positions):
                self._sliced_along |= dict.fromkeys(keys, common)
                is_restricted = True
        return is_restricted

    def _put(self, part: Slice) -> None:
        """Put a stage at its place, and demand what it reads there."""
        op = part.op
        if isinstance(op, te.PlaceholderOp):
            return
        if isinstance(op, te.ScanOp):
            if part.readers:
                raise ArgumentError(
                    f"the scan {op.name} inside another is read at times of the outer one that "
                    "differ by element; give the outer time a dimension of its own"
                )
            read = [self._demand(tensor, part.position, []) for tensor in [*op.init, *op.update]]
        else:
            part.stage = self._stage(part)
            read = [
                self._read(node, part.stage.axes)
                for node in postorder(*part.stage.expressions)
                if is_load(node)
            ]
        part.read_by_it = [other for other in read if other is not None]

    def _stage(self, part: Slice) -> Stage:
        """A stage at its place, its conditions and indices simplified."""
        fresh = [zero_based(axis) for axis in part.readers]
        renamed = [
            (axis.var, like(axis.var, new.var + axis.low))
            for axis, new in zip(part.readers, fresh, strict=True)
        ]
        position = {i: substituted(index, renamed) for i, index in part.position.items()}
        shape = part.op.output(0).shape
        original = stage_of(part.op)
        if original.as_is:
            # Such a stage takes no conditions: outside of its bounds the nearest place stands in.
            position = {i: tirx.max(tirx.min(at, shape[i] - 1), 0) for i, at in position.items()}
        stage = original.at(position, fresh)
        analyzer = self._analyzer(stage.axes)
        if not original.as_is:
            inside = [c for i, at in position.items() for c in (at >= 0, at < shape[i])]
            stage = stage.where([c for c in inside if not _provable(analyzer, c)])
        return stage.changed(lambda root: _simplified(root, analyzer))

    def _read(self, load: Expr, local: Sequence[Axis]) -> Slice | None:
        """The slice that a load reads; None if it reads no stage that is sliced."""
        tensor, indices = loaded(load)
        position = {i: at for i, at in enumerate(indices) if self._depends(at)}
        loops = {identity(axis.var) for axis in local}
        fixed = {i: at for i, at in position.items() if not depend([at], loops)}
        if fixed:
            # A gather within the row is no reason to compute an element anew for each reader.
            # A scan is not computed for some elements of its rows alone.
            if isinstance(tensor.op, te.PlaceholderOp | te.ScanOp):
                position = {i: at for i, at in fixed.items() if not reads(at)}
            else:
                position = {i: at for i, at in position.items() if not reads(at) or i in fixed}
        return self._demand(tensor, position, local)

    def _depends(self, index: Expr) -> bool:
        return depend([index], {identity(self.parameter.var)})

    def _build(self, part: Slice) -> None:
        """Build a slice, unless it is a view, which its readers see through."""
        if part.stage is not None:
            local = part.stage.axes
            part.stage = part.stage.changed(lambda root: self._reading(root, local))
            if part.stage.is_view:
                return
        self._finish(part)

    def _finish(self, part: Slice) -> None:
        if part.stage is not None and part.stage.is_view:
            tensor, indices = loaded(part.stage.roots[0])
            is_whole = len(indices) == len(part.stage.axes) and all(
                index.same_as(axis.var) and same(axis.extent, extent)
                for index, axis, extent in zip(indices, part.stage.axes, tensor.shape, strict=True)
            )
            # What only renames a stage that was made needs no copy.
            if is_whole and any(tensor.op.same_as(op) for op in self.made):
                part.outputs = [tensor]
                return
        part.outputs = self._built(part)
        if identity(part.op) in self.outermost:
            self.made.append(part.outputs[0].op)

    def _built(self, part: Slice) -> list[te.Tensor]:
        if isinstance(part.op, te.ScanOp):
            return self._scan(part)
        if isinstance(part.op, te.PlaceholderOp):
            tensor = part.op.output(0)
            shape = [extent for i, extent in enumerate(tensor.shape) if i not in part.position]
            return [te.placeholder(shape, str(tensor.dtype), name=tensor.op.name)]
        assert part.stage is not None
        return part.stage.built(self.parameters)

    def _reading(self, root: Expr, local: Sequence[Axis]) -> Expr:
        """An expression that reads slices, or what is known, instead of stages."""
        results: dict[int, Expr] = {}
        for node in postorder(root):
            new = rebuilt(node, [results[identity(child)] for child in children(node)])
            if is_load(node):
                part = self._read(node, local)
                tensor, indices = loaded(new)
                new = self._outside(tensor)(*indices) if part is None else part.read(new)
            results[identity(node)] = new
        return results[identity(root)]

    def _scan(self, part: Slice) -> list[te.Tensor]:
        """A scan inside the graph, at a place along dimensions other than its own time."""
        op = part.op
        for state in op.state_placeholder:
            if any(
                not _same_position(o.position, part.position)
                for o in self.slices[identity(state.op)]
            ):
                raise ArgumentError(
                    f"the scan {op.name} inside another reads its state {state.op.name} at another "
                    "time of the outer scan than that of what it computes"
                )
        init, update, states = (
            [self._at(tensor, part.position) for tensor in tensors]
            for tensors in (op.init, op.update, op.state_placeholder)
        )
        return outputs_of(rebuild_scan(op, init, update, states))

    def _at(self, tensor: te.Tensor, position: Position) -> te.Tensor:
        """A tensor at a place: its slice, or part of it if it is not one to be sliced."""
        part = self._demand(tensor, position, [])
        if part is None:
            return self._part(self._outside(tensor), position)
        if not part.outputs:  # a view, or a state that the updates of its scan do not read
            self._finish(part)
        result = part.outputs[tensor.value_index]
        remaining = {i: at for i, at in position.items() if i not in part.position}
        return self._part(result, remaining) if remaining else result

    def _part(self, tensor: te.Tensor, position: Position) -> te.Tensor:
        """A copy of a part of a tensor."""
        dimensions = range(len(tensor.shape))

        def body(*at: Any) -> Expr:
            others = iter(at)
            return tensor(*(position[i] if i in position else next(others) for i in dimensions))

        kept = tuple(tensor.shape[i] for i in dimensions if i not in position)
        part = map_stage(kept, body, name=f"{tensor.op.name}_part")
        self.made.append(part.op)
        return part

    def _outside(self, tensor: te.Tensor) -> te.Tensor:
        return self.replacements.get(tensor_key(tensor), tensor)

    def _analyzer(self, axes: Sequence[Axis]) -> Any:
        low = integer_value(self.parameter.low)
        if low is None or integer_value(self.parameter.extent) != 1:
            return analyzer_of([*self.parameters, *axes])
        # Bound to a range of one value, a parameter would be replaced by it, and what is read
        # there would no longer seem to depend on the parameter.
        analyzer = analyzer_of([*self.parameters[:-1], *axes])
        analyzer.update(self.parameter.var, tvm.sym.ConstIntBound(low, low))
        return analyzer


def _expand_scan(op: Operation) -> list[Operation]:
    """A stage; a scan after its states and the stages of its body."""
    if not isinstance(op, te.ScanOp):
        return [op]
    states = [state.op for state in op.state_placeholder]
    return [*states, *(inner for stage in scan_body(op) for inner in _expand_scan(stage)), op]


def _readers_last(wanted: Iterable[Slice]) -> list[Slice]:
    """Slices and all that they read, each once, after those it reads."""
    order: list[Slice] = []
    seen: set[int] = set()
    # No recursion, for chains of stages may be long.
    stack = [(part, False) for part in wanted]
    while stack:
        part, expanded = stack.pop()
        if expanded:
            order.append(part)
        elif id(part) not in seen:
            seen.add(id(part))
            stack.append((part, True))
            stack.extend((read, False) for read in part.read_by_it)
    return order


def _same_position(a: Position, b: Position) -> bool:
    return a.keys() == b.keys() and all(same(a[i], b[i]) for i in a)


def zero_based(axis: Axis) -> Axis:
    """A new loop of the same extent, from 0."""
    dtype = str(axis.var.ty)
    return Axis(te.var(axis.var.name, dtype), tirx.const(0, dtype), axis.extent)


def _simplified(root: Expr, analyzer: Any) -> Expr:
    """An expression with its indices simplified, and the conditions on indices alone."""

    def index(value: Expr) -> Expr:
        return value if reads(value) else analyzer.simplify(value)

    def change(node: Expr) -> Expr:
        if is_load(node):
            tensor, indices = loaded(node)
            return tensor(*map(index, indices))
        if _is_round_trip(node):
            return node.value.value
        chosen = _choice(node)
        if chosen is None:
            return node
        build, condition, branches = chosen
        if _provable(analyzer, condition):
            return branches[0]
        if _provable(analyzer, tirx.Not(condition)):
            return branches[1]
        return build(index(condition), *branches)

    root = transformed(root, change)
    return root if is_float(root.ty) else index(root)


def _is_round_trip(node: Expr) -> bool:
    """Whether an integer of 32 bits is cast to 64 and back, as by loops in loops of other dtypes.

    TVM keeps both casts, so that the time of a step would seem to be another one.
    """
    return (
        isinstance(node, prim.Cast)
        and str(node.ty) == "int32"
        and isinstance(node.value, prim.Cast)
        and str(node.value.ty) == "int64"
        and str(node.value.value.ty) == "int32"
    )


def _choice(node: Expr) -> tuple[Any, Expr, list[Expr]] | None:
    """How a choice is built, what it depends on and its branches; None if it is none."""
    if isinstance(node, prim.Select):
        return tirx.Select, node.condition, [node.true_value, node.false_value]
    if called(node) == "prim.if_then_else":
        return tirx.if_then_else, node.args[0], list(node.args[1:])
    return None


def _provable(analyzer: Any, condition: Expr) -> bool:
    return not reads(condition) and analyzer.can_prove(condition, ProofStrength.SYMBOLIC_BOUND)
