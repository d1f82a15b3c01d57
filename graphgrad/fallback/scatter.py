"""Cotangents of reads whose indices cannot be inverted: added up where the forward pass read.

The loops of the forward pass run in their order, so the result is the same in every run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import tvm_ffi
from tvm import te, tirx
from tvm.ir import prim
from tvm.te import _ffi_api

from .graph import DETECT_ACCESS
from .guarded import Guarded
from .indices.linear_system import Axis, element_axes
from .kinds import Kind, marked
from .share import shared
from .walk import Expr, is_load, loaded, postorder, reads, substituted, tensor_key, without_lets

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


def scatter_add(
    shape: Sequence[Expr],
    dtype: str,
    axes: Sequence[Axis],
    indices: Sequence[Expr],
    term: Guarded,
    name: str,
) -> te.Tensor:
    """Return a tensor of zeros to which a term is added at the indices that it read.

    Parameters
    ----------
    shape : sequence of Expr
    dtype : str
        Of the sum; the term is in it.
    axes : sequence of Axis
        The loops in whose variables the term and the indices are.
    indices : sequence of Expr
    term : Guarded
    name : str
        Of the stage.
    """
    guards = [c if wanted else _negated(c) for c, wanted in term.guards]
    guards += _not_among(guards, _bounds(indices, shape))
    scatter = Scatter(list(axes), list(indices), term.value, guards)
    elements = element_axes(shape, "i")
    ranges = [end for axis in axes for end in (axis.low, axis.extent)]

    def build(inputs: Sequence[Any], outputs: Sequence[Any]) -> Any:
        (out,) = outputs
        zero = tirx.const(0.0, dtype)
        zeros = _loops(elements, lambda position: tirx.BufferStore(out, zero, position))
        return tirx.SeqStmt([zeros, _loops(axes, partial(_added, scatter, out))])

    return te.extern(
        [tuple(shape)], _tensors([*indices, term.value, *guards, *ranges]), build,
        dtype=[dtype], name=name, tag=_TAG, attrs={**DETECT_ACCESS, **marked(Kind.SCATTER)},
    )  # fmt: skip


def scatter_of(op: Any) -> Scatter | None:
    """Return what a scatter stage does, read off its loops; None for any other stage."""
    if not isinstance(op, te.ExternOp) or op.tag != _TAG:
        return None
    statement = op.body.seq[1]
    axes, guards = [], []
    while isinstance(statement, tirx.For):
        axes.append(Axis(statement.loop_var, statement.min, statement.extent))
        statement = statement.body
    while isinstance(statement, tirx.IfThenElse):
        guards.append(without_lets(statement.condition))
        statement = statement.then_case
    indices = [without_lets(index) for index in statement.indices]
    return Scatter(axes, indices, without_lets(statement.value.b), guards)


def scatter_into(op: Any) -> te.Tensor:
    """Return a scatter stage without its zeros: it adds to what its output holds already."""
    return _ffi_api.ExternOp(
        op.name, "", op.attrs,
        op.inputs, op.input_placeholders, op.output_placeholders, op.body.seq[1],
    ).output(0)  # fmt: skip


def _added(scatter: Scatter, out: Any, position: Sequence[Any]) -> Any:
    """Return the statement that adds to a buffer at one point of a scatter's loops."""
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


def _loops(axes: Sequence[Axis], body: Callable[[list[Any]], Any]) -> Any:
    """Return nested serial loops; `body` is given the variables.

    The range of a loop may depend on those around it.
    """
    variables = [tirx.Var(axis.var.name, str(axis.var.ty)) for axis in axes]
    renamed = list(zip([axis.var for axis in axes], variables, strict=True))
    statement = body(variables)
    for var, axis in reversed(list(zip(variables, axes, strict=True))):
        low, extent = substituted(axis.low, renamed), substituted(axis.extent, renamed)
        statement = tirx.For(var, low, extent, tirx.ForKind.SERIAL, statement)
    return statement


def _negated(condition: Expr) -> Expr:
    """Return whether a condition fails; TVM writes `not a < b` as `b <= a`, wrongly for NaN."""
    return tirx.if_then_else(condition, tirx.const(False), tirx.const(True))


def _bounds(indices: Sequence[Expr], shape: Sequence[Expr]) -> list[Expr]:
    """Return conditions under which indices that are read from tensors are inside a shape.

    An index outside made the forward pass read a wrong element; here it would write one.
    """
    return [
        condition
        for index, extent in zip(indices, shape, strict=True)
        if reads(index)
        for condition in (index >= 0, index < extent)
    ]


def _not_among(known: Sequence[Expr], conditions: Sequence[Expr]) -> list[Expr]:
    return [c for c in conditions if not any(tvm_ffi.structural_equal(c, k) for k in known)]


def _tensors(roots: Sequence[Expr]) -> list[te.Tensor]:
    """Return the tensors that some expressions read, each once."""
    found: dict[tuple[int, int], te.Tensor] = {}
    for node in postorder(*roots):
        if is_load(node):
            tensor = loaded(node)[0]
            found.setdefault(tensor_key(tensor), tensor)
    return list(found.values())
