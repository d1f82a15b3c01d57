"""Cotangents of reads whose indices cannot be inverted: added up where the forward pass read.

The loops of the forward pass run in their order, so the result is the same in every run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import tvm
import tvm_ffi
from tvm import te, tirx
from tvm.ir import prim

from ..ir.loops import loop, sequence, variable
from ..tvm_fixes.hooks import extern_stage
from .bindings import shared
from .graph import DETECT_ACCESS
from .guarded import Guarded, balanced
from .indices.linear_system import Axis, element_axes
from .kinds import Kind, map_stage, marked
from .walk import (
    Expr,
    inline_lets,
    is_load,
    loaded,
    postorder,
    reads,
    substituted,
    tensor_key,
    transformed,
)

_TAG = "graphgrad.scatter"


@dataclass(frozen=True)
class Scatter:
    """What a scatter stage does: at each point of some loops, `out[indices] += value`.

    Attributes
    ----------
    axes : list of Axis
    indices : list of Expr
    value : Expr
    guards : list of Expr
        A point counts only where all of these hold, outermost first.
    """

    axes: list[Axis]
    indices: list[Expr]
    value: Expr
    guards: list[Expr]

    @classmethod
    def of(cls, axes: Sequence[Axis], indices: Sequence[Expr], term: Guarded) -> Scatter:
        """The statement that adds a term at each point of some loops, in whose variables all is."""
        guards = [c if wanted else _negate(c) for c, wanted in term.guards]
        return cls(list(axes), list(indices), term.value, guards)

    @property
    def expressions(self) -> list[Expr]:
        """All that it evaluates."""
        ranges = [end for axis in self.axes for end in (axis.low, axis.extent)]
        return [*self.indices, self.value, *self.guards, *ranges]


def scatter_add(
    shape: Sequence[Expr], dtype: str, scatters: Sequence[Scatter], name: str
) -> te.Tensor:
    """A tensor of zeros to which values are added, those of each scatter after another's.

    Parameters
    ----------
    shape : sequence of Expr
    dtype : str
        Of the sum; the values are in it.
    scatters : sequence of Scatter
    name : str
        Of the stage.
    """
    scatters = [_inside(scatter, shape) for scatter in scatters]
    elements = element_axes(shape, "i")

    def build(inputs: Sequence[Any], outputs: Sequence[Any]) -> Any:
        (out,) = outputs
        zero = tirx.const(0.0, dtype)
        zeros = nested_loops(elements, lambda position: tirx.BufferStore(out, zero, position))
        additions = [
            nested_loops(scatter.axes, partial(_added, scatter, out)) for scatter in scatters
        ]
        return sequence(zeros, *additions)

    tensors = tensors_in([expr for scatter in scatters for expr in scatter.expressions])
    return te.extern(
        [tuple(shape)], tensors, build,
        dtype=[dtype], name=name, tag=_TAG, attrs={**DETECT_ACCESS, **marked(Kind.SCATTER)},
    )  # fmt: skip


def scatters_of(op: Any) -> list[Scatter]:
    """The terms of a scatter stage, read off its loops; nothing for any other stage."""
    if not isinstance(op, te.ExternOp) or op.tag != _TAG:
        return []
    # The first statement writes the zeros.
    return [_parse_scatter(statement) for statement in list(op.body.seq)[1:]]


def separated(op: Any) -> list[te.Tensor] | None:
    """The output of a stage of several scatters as a sum of stages of one; None for others.

    Made for `graph.rewritten`.
    """
    scatters = scatters_of(op)
    if len(scatters) < 2:
        return None
    out = op.output(0)
    parts = [scatter_add(out.shape, str(out.dtype), [each], op.name) for each in scatters]
    return [map_stage(out.shape, lambda *at: balanced([p(*at) for p in parts]), name=op.name)]


def scatter_into(op: Any) -> te.Tensor:
    """A scatter stage without its zeros: it adds to what its output holds already."""
    added = list(op.body.seq)[1:]
    return extern_stage(
        op.name, "", op.attrs, op.inputs, op.input_placeholders, op.output_placeholders,
        sequence(*added),
    ).output(0)  # fmt: skip


def _parse_scatter(statement: Any) -> Scatter:
    """The term that the loops of one scatter add."""
    axes, guards = [], []
    while isinstance(statement, tirx.For):
        axes.append(Axis(statement.loop_var, statement.min, statement.extent))
        statement = statement.body
    while isinstance(statement, tirx.IfThenElse):
        guards.append(inline_lets(statement.condition))
        statement = statement.then_case
    # What is stored is `out[indices] + value`.
    indices = [inline_lets(index) for index in statement.indices]
    return Scatter(axes, indices, inline_lets(statement.value.b), guards)


def _inside(scatter: Scatter, shape: Sequence[Expr]) -> Scatter:
    """A scatter that adds nothing outside of a shape."""
    bounds = _not_among(scatter.guards, _bounds(scatter.indices, shape))
    return replace(scatter, guards=[*scatter.guards, *bounds])


def _added(scatter: Scatter, out: Any, position: Sequence[Any]) -> Any:
    """The statement that adds to a buffer at one point of a scatter's loops."""
    renamed = list(zip([axis.var for axis in scatter.axes], position, strict=True))
    around = [replace(axis, var=var) for axis, var in zip(scatter.axes, position, strict=True)]

    def placed(expr: Expr) -> Expr:
        return shared(substituted(expr, renamed), axes=around)

    # Placed twice: TVM takes each binding of a variable once.
    before = tirx.BufferLoad(out, [placed(index) for index in scatter.indices])
    # Not by `+`, which leaves a zero out.
    total = prim.Add(before, placed(scatter.value))
    statement = tirx.BufferStore(out, total, [placed(index) for index in scatter.indices])
    for guard in reversed(scatter.guards):
        # TVM fails on a binding in a condition that its analysis looks into.
        condition = placed(guard) if reads(guard) else substituted(guard, renamed)
        statement = tirx.IfThenElse(condition, statement, None)
    return statement


def nested_loops(axes: Sequence[Axis], body: Callable[[list[Any]], Any]) -> Any:
    """Nested serial loops; `body` is given the variables.

    The range of a loop may depend on those around it.
    """
    variables = [variable(axis.var.name, str(axis.var.ty)) for axis in axes]
    renamed = list(zip([axis.var for axis in axes], variables, strict=True))
    statement = body(variables)
    for var, axis in reversed(list(zip(variables, axes, strict=True))):
        low, extent = substituted(axis.low, renamed), substituted(axis.extent, renamed)
        statement = loop(var, extent, statement, start=low)
    return statement


def _negate(condition: Expr) -> Expr:
    """Whether a condition fails; TVM writes `not a < b` as `b <= a`, wrongly for NaN."""
    return tirx.if_then_else(condition, tirx.const(False), tirx.const(True))


def _bounds(indices: Sequence[Expr], shape: Sequence[Expr]) -> list[Expr]:
    """Conditions under which indices that are read from tensors are inside a shape.

    An index outside made the forward pass read a wrong element; here it would write one.
    """
    analyzer = tvm.sym.Analyzer()

    # A bound that holds whatever is read needs no guard.
    def holds(condition: Expr) -> bool:
        return bool(analyzer.can_prove(transformed(condition, _any_value)))

    return [
        condition
        for index, extent in zip(indices, shape, strict=True)
        if reads(index)
        for condition in (index >= 0, index < extent)
        if not holds(condition)
    ]


def _any_value(node: Expr) -> Expr:
    """A new variable for a load: TVM's analysis fails on some tensors."""
    return tirx.Var("value", str(node.ty)) if is_load(node) else node


def _not_among(others: Sequence[Expr], conditions: Sequence[Expr]) -> list[Expr]:
    return [c for c in conditions if not any(tvm_ffi.structural_equal(c, k) for k in others)]


def tensors_in(roots: Sequence[Expr]) -> list[te.Tensor]:
    """The tensors that some expressions read, each once."""
    tensors: dict[tuple[int, int], te.Tensor] = {}
    for node in postorder(*roots):
        if is_load(node):
            tensor = loaded(node)[0]
            tensors.setdefault(tensor_key(tensor), tensor)
    return list(tensors.values())
