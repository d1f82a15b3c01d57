"""Reductions whose conditions, starts and empty ranges are spelled out, for lowerings without them.

`te.create_prim_func` drops the `where` and the `init` of a reduction, takes its components to be
listed in order and all of them, and leaves those elements unwritten whose range is empty. What is
rewritten here means the same to it as it says.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import te, tirx
from tvm.ir import prim

from ..backprop import is_float
from ..constants import is_true
from ..graph import Operation, is_reduction, listed, outputs_of, rebuild_reduction, replace_bodies
from ..guarded import within
from ..kinds import map_stage
from ..walk import Expr, depend, identity, reads, substituted


def spell_out_reduction(op: Operation) -> list[te.Tensor] | None:
    """The new outputs of a reduction, or None for a stage that may stay as it is.

    A condition goes into the source; the identity of the combiner is in the other branch. What is
    given as `init` is combined, as the left operand, in a stage behind: a reduction must start
    from an identity, for schedules cut it into parts. The same stage fills in for ranges that are
    empty; so the source of a contraction stays a plain product. Only where a range depends on
    another loop that is reduced, the source is guarded. A reduction over nothing is a fill.

    Parameters
    ----------
    op : Operation
        Made for `graph.rewritten`.
    """
    if not is_reduction(op):
        return None
    body = op.body[0]
    combiner = _make_identity_infinite(body.combiner) if len(body.init) else body.combiner
    identities = list(combiner.identity_element)
    init = _init(body.init, identities)
    loops = _loops(op)
    components = [int(part.value_index) for part in op.body]
    if loops is None:
        outputs = _fill(op, init or identities)
        return [outputs[component] for component in components]
    lengthened, not_empty = loops
    where = [] if is_true(body.condition) else [body.condition]
    in_order = components == list(range(len(identities)))
    if not (not_empty or where or len(body.init)) and in_order:
        return None
    if depend(not_empty, {identity(axis.var) for axis in op.reduce_axis}):
        sources = _choices([*not_empty, *where], body.source, identities)
        reduced = rebuild_reduction(body, sources, tirx.const(True), [], combiner, lengthened)
        not_empty = []
    else:
        sources = _choices(where, body.source, identities)
        reduced = rebuild_reduction(body, sources, tirx.const(True), [], combiner)
    # All components in order; the stage itself may have some of them, in any order.
    outputs = outputs_of(replace_bodies(op, reduced))
    if init or not_empty:
        outputs = _completed(op, combiner, init, not_empty, outputs)
    return [outputs[component] for component in components]


def _make_identity_infinite(combiner: Any) -> Any:
    """A combiner of floats by maximum or minimum with an infinity as its identity.

    That of TVM is the largest finite number, which an infinite `init` would lose against.
    """
    result = combiner.result[0]
    if len(combiner.result) > 1 or not isinstance(result, prim.Max | prim.Min):
        return combiner
    (start,) = combiner.identity_element
    if not is_float(start.ty):
        return combiner
    infinity = -math.inf if isinstance(result, prim.Max) else math.inf
    start = tirx.const(infinity, str(start.ty))
    return tirx.CommReducer(combiner.lhs, combiner.rhs, combiner.result, [start])


def _init(init: Sequence[Expr], identities: Sequence[Expr]) -> list[Expr]:
    """The initial values of a reduction, in the right dtypes; empty if that is the identity."""
    values = [
        value if str(value.ty) == str(start.ty) else prim.Cast(start.ty, value)
        for value, start in zip(init, identities, strict=False)
    ]
    if all(map(tvm_ffi.structural_equal, values, identities)):
        return []
    return values


def _loops(op: Any) -> tuple[list[Any], list[Expr]] | None:
    """The loops of a reduction without empty ranges; None if it is always over nothing.

    Returns
    -------
    loops : list of IterVar
        Those that are reduced, each lengthened to one point at least.
    not_empty : list of Expr
        The conditions under which the stage's own have any; each may be evaluated where those
        before it hold.
    """
    analyzer = tvm.sym.Analyzer()
    loops: list[Any] = []
    not_empty: list[Expr] = []
    lengthened: set[int] = set()
    # There is an element to reduce for, so no loop over the elements is empty.
    with analyzer.constraint_scope(_all([axis.dom.extent >= 1 for axis in op.axis])):
        for axis in op.axis:
            analyzer.bind(axis.var, axis.dom)
        for axis in op.reduce_axis:
            bounds = [axis.dom.min, axis.dom.extent]
            loads = reads(*bounds)  # which TVM's analyzer does not take
            if not loads and analyzer.can_prove(axis.dom.extent < 1):
                return None
            sure = not loads and analyzer.can_prove(axis.dom.extent >= 1)
            # What depends on the variable of an empty loop may not even be evaluated.
            depends = depend(bounds, lengthened)
            loop = (
                axis if sure and not depends else _extend_loop(axis, not_empty if depends else [])
            )
            if not sure:
                not_empty.append(axis.dom.extent >= 1)
                lengthened.add(identity(axis.var))
            if not loads:
                analyzer.bind(loop.var, loop.dom)
            loops.append(loop)
    return loops, not_empty


def _extend_loop(axis: Any, conditions: Sequence[Expr]) -> Any:
    """A loop of at least one point, whose bounds are evaluated under conditions only."""
    low, extent = axis.dom.min, axis.dom.extent
    one = tirx.const(1, str(extent.ty))
    low = _where(conditions, low, tirx.const(0, str(low.ty)))
    extent = _where(conditions, tirx.max(extent, one), one)
    return tirx.IterVar(tvm.ir.Range.from_min_extent(low, extent), axis.var, axis.iter_type)


def _fill(op: Any, values: Sequence[Expr]) -> list[te.Tensor]:
    """Tensors of some values, in terms of the loops over the elements of a reduction."""

    def body(*position: Any) -> Any:
        here = list(zip([axis.var for axis in op.axis], position, strict=True))
        results = tuple(substituted(value, here) for value in values)
        return results if len(results) > 1 else results[0]

    return listed(map_stage([axis.dom.extent for axis in op.axis], body, op.name))


def _completed(
    op: Any,
    combiner: Any,
    init: Sequence[Expr],
    not_empty: Sequence[Expr],
    reduced: Sequence[te.Tensor],
) -> list[te.Tensor]:
    """A stage that combines a start with the results of a reduction, if there are any.

    Parameters
    ----------
    op : ComputeOp
        In terms of whose loops the expressions are.
    combiner : CommReducer
    init : sequence of Expr
        One per component, or none.
    not_empty : sequence of Expr
        Elements for which one of these does not hold are not among the results.
    reduced : sequence of Tensor
    """

    def body(*position: Any) -> Any:
        here = list(zip([axis.var for axis in op.axis], position, strict=True))
        starts = [substituted(value, here) for value in init]
        values = [tensor(*position) for tensor in reduced]
        if starts:
            operands = [
                *zip(combiner.lhs, starts, strict=True),
                *zip(combiner.rhs, values, strict=True),
            ]
            values = [substituted(result, operands) for result in combiner.result]
        conditions = [substituted(condition, here) for condition in not_empty]
        values = _choices(conditions, values, starts or list(combiner.identity_element))
        return tuple(values) if len(values) > 1 else values[0]

    shape = [axis.dom.extent for axis in op.axis]
    return listed(map_stage(shape, body, name=f"{op.name}_complete"))


def _choices(
    conditions: Sequence[Expr], values: Sequence[Expr], otherwise: Sequence[Expr]
) -> list[Expr]:
    """Values inside conditions, each with its own other branch."""
    return [_where(conditions, a, b) for a, b in zip(values, otherwise, strict=True)]


def _where(conditions: Sequence[Expr], value: Expr, otherwise: Expr) -> Expr:
    return within([(condition, True) for condition in conditions], value, otherwise)


def _all(conditions: Sequence[Expr]) -> Expr:
    return tirx.all(*conditions) if conditions else tirx.const(True)
