"""Recurrences along the first dimension of tensors: partial results of folding their elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import te

from ..backprop import widened
from ..graph import listed
from ..kinds import map_stage
from ..walk import Expr

Combine = Callable[[list[Expr], list[Expr]], Sequence[Expr]]
"""Given the components of a state and those of the next element, returns the next state's."""


def partial_results(
    elements: Sequence[te.Tensor],
    dtypes: Sequence[str],
    start: Callable[..., Sequence[Expr]],
    combine: Combine,
    name: str,
) -> list[te.Tensor]:
    """The states of a recurrence before, between and after the elements.

    Parameters
    ----------
    elements : sequence of Tensor of shape (n, ...)
        Components of what is folded, in the order of their first dimension.
    dtypes : sequence of str
        Of the components of a state, as `start` and `combine` compute them.
    start : callable
        Given a position in the other dimensions, returns the components of the first state.
    combine : callable
    name : str
        Of the stages.

    Returns
    -------
    list of Tensor of shape (n + 1, ...)
        Components of the states: row t follows t elements. In the dtype in which their cotangents
        are summed, float32 at least.
    """
    # The loop variables that te.scan makes are int32, whatever the extents are.
    count, *kept = (extent.astype("int32") for extent in elements[0].shape)
    shape = (count + 1, *kept)

    def first(_: Any, *position: Any) -> tuple[Expr, ...]:
        return tuple(widened(value) for value in start(*position))

    begin = listed(map_stage((1, *kept), first, name=f"{name}_start"))
    states = [
        te.placeholder(shape, str(tensor.dtype), name=f"{name}_state{i}")
        for i, tensor in enumerate(begin)
    ]

    def update(time: Any, *position: Any) -> tuple[Expr, ...]:
        # States are carried wide, and combined in the dtypes of the forward pass.
        before = [
            state(time - 1, *position).astype(dtype)
            for state, dtype in zip(states, dtypes, strict=True)
        ]
        element = [tensor(time - 1, *position) for tensor in elements]
        return tuple(widened(value) for value in combine(before, element))

    updates = listed(map_stage(shape, update, name=f"{name}_update"))
    return listed(te.scan(begin, updates, states, list(elements), name=name))
