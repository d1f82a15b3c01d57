"""Recurrences by key: h[k(t)] ← a(t) · h[k(t)] + b(t) at each point t of some loops, in order.

Each point finds what the last one of the same key has left. That is linear in what h holds at first
and in b, and transposed it is the same recurrence over the points in reverse: with s the cotangents
of h, those of what the points find are added on the way, and what a point finds of s belongs to its
b. So derivatives of every order take as long as the recurrence: one visit of each point.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm_ffi
from tvm import te, tirx
from tvm.ir import prim

from ..ir.kernel_structure import statements_of
from ..ir.loops import sequence, store
from .graph import DETECT_ACCESS
from .indices.linear_system import Axis, element_axes
from .kinds import map_stage
from .scatter import nested_loops, tensors_in
from .walk import Expr, inline_lets, substitute_expressions, tensor_key, transformed

TAG = "graphgrad.keyed"
_DESCENDING = "descending"


@dataclass(frozen=True)
class Keyed:
    """A recurrence by key.

    Attributes
    ----------
    axes : list of Axis
        The loops over the points, from 0, in the order of the visits.
    indices : list of Expr
        The key of a point, an element of the data, in the variables of the axes.
    guards : list of Expr
        A point counts only where all of these hold, outermost first; another one finds 0.
    data : Tensor
        What h holds at first, of float32 or float64.
    factors, terms : Tensor or None
        a and b, at the coordinates of a point; None for zeros.
    descending : tuple of bool
        Along which axes a point's coordinate is counted from the last one. Ascending if left out.
    """

    axes: list[Axis]
    indices: list[Expr]
    guards: list[Expr]
    data: te.Tensor
    factors: te.Tensor | None
    terms: te.Tensor | None
    descending: tuple[bool, ...] = ()

    def coordinates(self, visit: Sequence[Expr]) -> list[Expr]:
        """The coordinates of the point that is visited at given values of the loops.

        As well the values of the loops at given coordinates.
        """
        return [
            _mirrored(axis, value) if flag else value
            for axis, value, flag in zip(self.axes, visit, self._flags, strict=True)
        ]

    @property
    def _flags(self) -> tuple[bool, ...]:
        return self.descending or (False,) * len(self.axes)

    def reversed(self) -> Keyed:
        """The same points, those of each key in reverse.

        Along an axis that is itself an index of the key no two points have one key: their order
        does not matter, and neighbors stay neighbors.
        """
        turned = [not any(i.same_as(axis.var) for i in self.indices) for axis in self.axes]
        values = [
            (axis.var, _mirrored(axis, axis.var))
            for axis, turns in zip(self.axes, turned, strict=True)
            if turns
        ]
        exprs = substitute_expressions([*self.indices, *self.guards], values)
        exprs = [transformed(expr, _mirrored_once) for expr in exprs]
        rank = len(self.indices)
        descending = tuple(a != b for a, b in zip(self._flags, turned, strict=True))
        return replace(self, indices=exprs[:rank], guards=exprs[rank:], descending=descending)


def keyed(recurrence: Keyed) -> list[te.Tensor]:
    """What each point finds, at its coordinates, and what is left in the end."""
    data, factors, terms = recurrence.data, recurrence.factors, recurrence.terms
    axes, rank, dtype = recurrence.axes, len(recurrence.indices), str(recurrence.data.dtype)
    exprs = [*recurrence.indices, *recurrence.guards]

    def visit(found: Any, held: Any, at: Sequence[Any]) -> Any:
        renamed = list(zip([axis.var for axis in axes], at, strict=True))
        placed = substitute_expressions(exprs, renamed)
        key, guards, point = placed[:rank], placed[rank:], recurrence.coordinates(at)
        old = tirx.BufferLoad(held, key)
        parts = [] if factors is None else [factors(*point) * old]
        parts += [] if terms is None else [terms(*point)]
        zero = tirx.const(0.0, dtype)
        new = parts[0] + parts[1] if len(parts) == 2 else [*parts, zero][0]
        statement = sequence(store(found, point, old), store(held, key, new))
        for guard in reversed(guards):
            statement = tirx.IfThenElse(guard, statement, store(found, point, zero))
        return statement

    def build(_: Any, outputs: Sequence[Any]) -> Any:
        found, held = outputs
        begin = nested_loops(element_axes(data.shape, "i"), lambda i: store(held, i, data(*i)))
        return sequence(begin, nested_loops(axes, lambda at: visit(found, held, at)))

    operands = [tensor for tensor in (data, factors, terms) if tensor is not None]
    bounds = [axis.extent for axis in axes]
    inputs = {tensor_key(t): t for t in [*operands, *tensors_in([*exprs, *bounds])]}
    numbers = {key: number for number, key in enumerate(inputs)}
    names = {"data": data, "factors": factors, "terms": terms}
    attrs = {name: -1 if t is None else numbers[tensor_key(t)] for name, t in names.items()}
    flags = "".join(str(int(flag)) for flag in recurrence.descending)
    return list(
        te.extern(
            [tuple(bounds), tuple(data.shape)], list(inputs.values()), build,
            dtype=[dtype, dtype], name="keyed", tag=TAG,
            attrs={**DETECT_ACCESS, **attrs, _DESCENDING: flags},
        )
    )  # fmt: skip


def keyed_of(op: Any) -> Keyed | None:
    """The recurrence by key that a stage is, read off its loops; None for any other stage."""
    if not isinstance(op, te.ExternOp) or op.tag != TAG or _DESCENDING not in op.attrs:
        return None
    # The first statement writes what is held at first.
    _, *visits = op.body.seq
    axes, guards = [], []
    while isinstance(visits[0], tirx.For):
        each = visits[0]
        axes.append(Axis(each.loop_var, each.min, each.extent))
        visits = statements_of(each.body)
    while isinstance(visits[0], tirx.IfThenElse):
        guards.append(inline_lets(visits[0].condition))
        visits = statements_of(visits[0].then_case)
    operands = [int(op.attrs[name]) for name in ("data", "factors", "terms")]
    data, factors, terms = (None if n < 0 else op.inputs[n] for n in operands)
    _, leaves = visits
    indices = [inline_lets(index) for index in leaves.indices]
    descending = tuple(flag == "1" for flag in str(op.attrs[_DESCENDING]))
    assert data is not None
    return Keyed(axes, indices, guards, data, factors, terms, descending)


def transposed(
    op: Any, found_ct: te.Tensor | None, left_ct: te.Tensor | None
) -> list[tuple[te.Tensor, te.Tensor]]:
    """What a recurrence by key adds to the cotangents of its data, factors and terms.

    Parameters
    ----------
    op : ExternOp
        A stage of `keyed`.
    found_ct, left_ct : Tensor or None
        The cotangents of what the points find, and of what is left.
    """
    recurrence, found = keyed_of(op), op.output(0)
    assert recurrence is not None
    data, factors, terms = recurrence.data, recurrence.factors, recurrence.terms
    if left_ct is None:
        zero = tirx.const(0.0, str(data.dtype))
        left_ct = map_stage(data.shape, lambda *_: zero, name="nothing")
    backwards = replace(recurrence.reversed(), data=left_ct, terms=found_ct)
    s, data_ct = keyed(backwards)
    parts = [(data, data_ct)]
    if terms is not None:
        parts.append((terms, s))
    if factors is not None:
        factors_ct = map_stage(found.shape, lambda *t: s(*t) * found(*t), name="factors_ct")
        parts.append((factors, factors_ct))
    return parts


def _mirrored(axis: Axis, value: Expr) -> Expr:
    """The value of a loop as far from its end as another is from its start."""
    return axis.extent - 1 - value


def _mirrored_once(node: Expr) -> Expr:
    """A value that is mirrored twice as it was."""
    is_twice = (
        isinstance(node, prim.Sub)
        and isinstance(node.b, prim.Sub)
        and tvm_ffi.structural_equal(node.a, node.b.a)
    )
    return node.b.b if is_twice else node
