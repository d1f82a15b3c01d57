"""Cotangents of reads whose indices cannot be inverted: added up where the forward pass read.

The loops of the forward pass run in their order, so the result is the same in every run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import te, tirx

from .backprop import Guarded
from .index_system import Axis
from .walk import Expr, is_load, loaded, postorder, substituted, tensor_key

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
    guards = [c if wanted else tirx.Not(c) for c, wanted in term.guards]
    sources = _tensors([*indices, term.value, *guards])

    def build(inputs: Sequence[Any], outputs: Sequence[Any]) -> Any:
        (out,) = outputs
        zero = _loops(
            [Axis(te.var("i", str(e.ty)), tirx.const(0, str(e.ty)), e) for e in shape],
            lambda position: tirx.BufferStore(out, tirx.const(0.0, dtype), position),
        )

        def store(position: Sequence[Any]) -> Any:
            renamed = list(zip([axis.var for axis in axes], position, strict=True))
            at = [substituted(index, renamed) for index in indices]
            total = tirx.BufferLoad(out, at) + substituted(term.value, renamed)
            statement = tirx.BufferStore(out, total, at)
            for guard in reversed(guards):
                statement = tirx.IfThenElse(substituted(guard, renamed), statement, None)
            return statement

        return tirx.SeqStmt([zero, _loops(axes, store)])

    return te.extern([tuple(shape)], sources, build, dtype=[dtype], name=name, tag=_TAG)


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
        guards.append(statement.condition)
        statement = statement.then_case
    return Scatter(axes, list(statement.indices), statement.value.b, guards)


def _loops(axes: Sequence[Axis], body: Callable[[list[Any]], Any]) -> Any:
    """Return nested serial loops; `body` is given the variables."""
    variables = [tirx.Var(axis.var.name, str(axis.var.ty)) for axis in axes]
    statement = body(variables)
    for var, axis in reversed(list(zip(variables, axes, strict=True))):
        statement = tirx.For(var, axis.low, axis.extent, tirx.ForKind.SERIAL, statement)
    return statement


def _tensors(roots: Sequence[Expr]) -> list[te.Tensor]:
    """Return the tensors that some expressions read, each once."""
    found: dict[tuple[int, int], te.Tensor] = {}
    for node in postorder(*roots):
        if is_load(node):
            tensor = loaded(node)[0]
            found.setdefault(tensor_key(tensor), tensor)
    return list(found.values())
