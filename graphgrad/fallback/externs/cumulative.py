"""Cumulative sums and products: recurrences along one axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import te, tirx, topi

from ..indices.row_major import element_count, reshaped
from ..kinds import map_stage
from ..reductions.recurrence import partial_results
from ..walk import Expr
from .match import same_stage


def cumsum(op: Any) -> list[te.Tensor] | None:
    """y[k] = Σ x[j] over j ≤ k, or over j < k"""
    return _restate_fold(op, topi.cumsum, lambda a, b: a + b, 0.0)


def cumprod(op: Any) -> list[te.Tensor] | None:
    """y[k] = Π x[j] over j ≤ k, or over j < k"""
    return _restate_fold(op, topi.cumprod, lambda a, b: a * b, 1.0)


def _restate_fold(
    op: Any, function: Any, combine: Callable[[Expr, Expr], Expr], neutral: float
) -> list[te.Tensor] | None:
    (data,) = op.inputs
    output = op.output(0)
    dtype = str(output.dtype)
    # The loops name neither the axis nor the variant, so each is tried; None is over all elements.
    for axis in (None, *range(len(data.shape))):
        for exclusive in (False, True):
            if same_stage(op, function(data, axis, dtype, exclusive)):
                flat = reshaped(data, [element_count(data.shape)]) if axis is None else data
                return [running(flat, axis or 0, dtype, exclusive, combine, neutral)]
    return None


def running(
    data: te.Tensor,
    axis: int,
    dtype: str,
    exclusive: bool,
    combine: Callable[[Expr, Expr], Expr],
    neutral: float,
    reverse: bool = False,
) -> te.Tensor:
    """The running fold of the elements along an axis, up to each of them.

    Parameters
    ----------
    data : Tensor
    axis : int
    dtype : str
        Of the result.
    exclusive : bool
        The element itself does not count.
    combine : callable
        Of what was folded and the next element.
    neutral : float
        What nothing folds to.
    reverse : bool
        The last element goes first.
    """
    shape = list(data.shape)
    count = shape.pop(axis)

    def row(k: Expr) -> Expr:
        return count - 1 - k if reverse else k

    elements = map_stage(
        (count, *shape),
        lambda k, *at: data(*at[:axis], row(k), *at[axis:]).astype(dtype),
        name=f"{data.op.name}_elements",
    )
    (states,) = partial_results(
        [elements],
        [dtype],
        lambda *_: [tirx.const(neutral, dtype)],
        lambda state, element: [combine(state[0], element[0])],
        f"{data.op.name}_cumulative",
    )

    def result(*at: Any) -> Expr:
        # State k is the fold of the first k elements; state 0 is that of none.
        folded = row(at[axis]) if exclusive else row(at[axis]) + 1
        return states(folded, *at[:axis], *at[axis + 1 :]).astype(dtype)

    return map_stage(data.shape, result, name=f"{data.op.name}_partial")
