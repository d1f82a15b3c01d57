"""Stages taken apart, changed and put together again: other loops, other places, other reads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import tvm
from tvm import te, tirx

from ...errors import ArgumentError
from ...tvm_fixes.hooks import compute_stage
from ..bindings import shared
from ..graph import STOP_GRADIENT, Operation, outputs_of, rebuild_reduction, stops_gradient
from ..guarded import within
from ..indices.index_system import Axis
from ..kinds import Kind, kind_of, marked
from ..reductions.reduce import OTHERS, stage_axes
from ..scatter import Scatter, scatter_add, scatters_of
from ..walk import Expr, inline_lets, is_load, substituted

_LASTING_KINDS = (Kind.CONTRACTION, Kind.MAP, Kind.REDUCE)
"""Kinds that a stage keeps when it loses or gains dimensions."""

_SPATIAL, _REDUCED = tirx.IterVar.DataPar, tirx.IterVar.CommReduce


Some = TypeVar("Some", bound="Stage")


@dataclass(frozen=True)
class Stage(ABC):
    """What a stage evaluates at each point of its loops.

    Attributes
    ----------
    op : Operation
        The stage that it was made from.
    axes : list of Axis
        Its loops, those over its elements first.
    roots : list of Expr
        What it evaluates at each point, without `Let`.
    """

    op: Operation
    axes: list[Axis]
    roots: list[Expr]

    @property
    def expressions(self) -> list[Expr]:
        """All expressions that it evaluates, those of its loops' bounds too."""
        return [*self.roots, *(bound for axis in self.axes for bound in (axis.low, axis.extent))]

    @property
    def is_view(self) -> bool:
        """Whether it only copies elements of another tensor."""
        return False

    @property
    def as_is(self) -> bool:
        """Whether how its expressions are written says what its gradient is."""
        return bool(self.op.tag == OTHERS)

    def changed(self: Some, change: Callable[[Expr], Expr]) -> Some:
        """The stage with its expressions and the bounds of its loops changed."""
        axes = [Axis(axis.var, change(axis.low), change(axis.extent)) for axis in self.axes]
        return replace(self, axes=axes, roots=[change(root) for root in self.roots])

    @abstractmethod
    def at(self, position: Mapping[int, Expr], parameters: Sequence[Axis]) -> Stage:
        """The stage at a place along some of its dimensions.

        Parameters
        ----------
        position : mapping
            From dimensions, which the result does not have, to indices.
        parameters : sequence of Axis
            Loops in whose variables the indices are: the first dimensions of the result.
        """

    @abstractmethod
    def stacked(self, axis: Axis) -> Stage:
        """The stage with one more dimension, the first, whose variable it may use."""

    @abstractmethod
    def where(self, conditions: Sequence[Expr]) -> Stage:
        """The stage with zeros where not all of some conditions hold; never one `as_is`."""

    @abstractmethod
    def built(self, around: Sequence[Axis] = ()) -> list[te.Tensor]:
        """The computation of the stage; `around` are loops of others that it may depend on."""


def stage_of(op: Operation) -> Stage:
    """A stage of a graph, taken apart; one of several scatters must be `separated` first.

    Raises
    ------
    ArgumentError
        It is neither a compute stage nor a scatter.
    """
    scatters = scatters_of(op)
    if scatters:
        (scatter,) = scatters
        roots = [*scatter.indices, scatter.value, *scatter.guards]
        return _Scatter(op, list(scatter.axes), roots, list(op.output(0).shape))
    if not isinstance(op, te.ComputeOp):
        raise ArgumentError(
            f"the stage {op.name} inside a scan is a {type(op).__name__}, which cannot be computed "
            "one time at a time; put it before or after the scan, or write it as te.compute"
        )
    body = op.body[0]
    if isinstance(body, tirx.Reduce):
        roots = [*body.source, body.condition, *body.init]
    else:
        roots = list(op.body)
    roots = [inline_lets(root) for root in roots]
    return _Compute(op, stage_axes(op), roots, len(op.axis), _lasting_attributes(op))


def _lasting_attributes(op: Any) -> Mapping[str, Any]:
    """The attributes of a stage that hold for any part of it."""
    return dict(op.attrs) if kind_of(op) in _LASTING_KINDS else _general_attributes(op)


def _general_attributes(op: Any) -> Mapping[str, Any]:
    """The attributes of a stage of which no more is known than whether it sums.

    That is written on derived stages alone; whether a stage passes cotangents on, on any.
    """
    stopping = {STOP_GRADIENT: 1} if stops_gradient(op) else {}
    if kind_of(op) is None:
        return stopping
    kind = Kind.REDUCE if isinstance(op.body[0], tirx.Reduce) else Kind.MAP
    return {**marked(kind), **stopping}


@dataclass(frozen=True)
class _Compute(Stage):
    """A compute stage; the roots of a reduction are its sources, condition and start values."""

    spatial: int
    attributes: Mapping[str, Any]

    @property
    def is_view(self) -> bool:
        return (
            len(self.axes) == self.spatial
            and len(self.roots) == 1
            and is_load(self.roots[0])
            and not stops_gradient(self.op)
        )

    def at(self, position: Mapping[int, Expr], parameters: Sequence[Axis]) -> Stage:
        values = [
            (self.axes[i].var, like(self.axes[i].var, index)) for i, index in position.items()
        ]
        kept = [axis for i, axis in enumerate(self.axes) if i not in position]
        spatial = self.spatial - len(position) + len(parameters)
        part = replace(self, axes=[*parameters, *kept], spatial=spatial)
        return part.changed(lambda root: substituted(root, values))

    def stacked(self, axis: Axis) -> Stage:
        return replace(self, axes=[axis, *self.axes], spatial=self.spatial + 1)

    def where(self, conditions: Sequence[Expr]) -> Stage:
        if not conditions:
            return self
        body = self.op.body
        count = len(body[0].source if isinstance(body[0], tirx.Reduce) else body)
        guards = [(condition, True) for condition in conditions]
        # The condition and the start values of a reduction stay as they are.
        values = [within(guards, r, tirx.const(0, str(r.ty))) for r in self.roots[:count]]
        roots = [*values, *self.roots[count:]]
        return replace(self, roots=roots, attributes=_general_attributes(self.op))

    def built(self, around: Sequence[Axis] = ()) -> list[te.Tensor]:
        spatial, reduced = self.axes[: self.spatial], self.axes[self.spatial :]
        # How the tagged stage is written says what its gradient is.
        roots = self.roots
        if self.op.tag != OTHERS:
            roots = [shared(root, axes=[*around, *self.axes]) for root in roots]
        body = self.op.body[0]
        if isinstance(body, tirx.Reduce):
            loops = [_loop(axis, _REDUCED) for axis in reduced]
            count = len(body.source)
            components = rebuild_reduction(
                body, roots[:count], roots[count], roots[count + 1 :], axis=loops
            )
            roots = [components[int(b.value_index)] for b in self.op.body]
        loops = [_loop(axis, _SPATIAL) for axis in spatial]
        op = compute_stage(self.op.name, self.op.tag, self.attributes, loops, roots)
        return outputs_of(op)


@dataclass(frozen=True)
class _Scatter(Stage):
    """A scatter; its roots are its indices, its value and its guards."""

    shape: list[Expr]

    def at(self, position: Mapping[int, Expr], parameters: Sequence[Axis]) -> Stage:
        part: _Scatter = self
        for i in sorted(position, reverse=True):
            part = part._at_index(i, position[i])
        # Each value of the parameters has a result of its own.
        first = [axis.var for axis in parameters]
        return replace(
            part,
            axes=[*parameters, *part.axes],
            roots=[*first, *part.roots],
            shape=[*(axis.extent for axis in parameters), *part.shape],
        )

    def _at_index(self, dimension: int, index: Expr) -> _Scatter:
        """The addition where one index has a value, in loops over no more than that."""
        target = self.roots[dimension]
        roots = [root for i, root in enumerate(self.roots) if i != dimension]
        shape = [extent for i, extent in enumerate(self.shape) if i != dimension]
        solutions = [(axis, _solved(target, axis, index)) for axis in self.axes]
        solved = next(((axis, value) for axis, value in solutions if value is not None), None)
        if solved is not None:
            axis, value = solved
            axes = [other for other in self.axes if other is not axis]
            part = replace(self, axes=axes, roots=roots, shape=shape)
            part = part.changed(lambda root: substituted(root, [(axis.var, value)]))
            return part.where([value >= axis.low, value < axis.low + axis.extent])
        # Last, because the other guards may protect what this index reads.
        distance = target - index
        equal = tirx.EQ(distance, tirx.const(0, str(distance.ty)))
        return replace(self, roots=[*roots, equal], shape=shape)

    def stacked(self, axis: Axis) -> Stage:
        return replace(
            self,
            axes=[axis, *self.axes],
            roots=[axis.var, *self.roots],
            shape=[axis.extent, *self.shape],
        )

    def where(self, conditions: Sequence[Expr]) -> _Scatter:
        # In front of the other guards, which may be evaluated only where these hold.
        at = len(self.shape) + 1
        return replace(self, roots=[*self.roots[:at], *conditions, *self.roots[at:]])

    def built(self, around: Sequence[Axis] = ()) -> list[te.Tensor]:
        rank = len(self.shape)
        indices, value, guards = self.roots[:rank], self.roots[rank], self.roots[rank + 1 :]
        scatter = Scatter(self.axes, indices, value, guards)
        return [scatter_add(self.shape, str(self.op.output(0).dtype), [scatter], self.op.name)]


def _loop(axis: Axis, kind: int) -> Any:
    extent = tvm.ir.Range.from_min_extent(axis.low, axis.extent)
    return tirx.IterVar(extent, axis.var, kind)


def _solved(target: Expr, axis: Axis, index: Expr) -> Expr | None:
    """The value of a loop's variable where `target` is `index`, if it is linear in it."""
    linear = tvm.sym.detect_linear_equation(target, [axis.var])
    # With another stride some indices would have no solution.
    if len(linear) != 2 or not isinstance(linear[0], tirx.IntImm) or abs(int(linear[0])) != 1:
        return None
    return like(axis.var, (index - linear[1]) * int(linear[0]))


def like(var: Any, index: Expr) -> Expr:
    """An index in the dtype of the loop variable that it takes the place of."""
    return index if str(index.ty) == str(var.ty) else index.astype(str(var.ty))
