"""Integer expressions evaluated by numpy, and inversions by running their loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm.ir import prim

from graphgrad.fallback.indices.index_system import Axis, Inversion
from graphgrad.fallback.walk import called, children, identity, postorder
from tests.fallback.interpreter import BINARY

Known = Mapping[int, Any]
"""Values of variables, by their identity."""


def integer(root: Any, known: Known) -> Any:
    """Return the value of an integer expression.

    Raises
    ------
    FloatingPointError
        It divides by zero.
    """
    results = dict(known)
    with np.errstate(divide="raise"):
        for node in postorder(root):
            if identity(node) not in results:
                parts = [results[identity(child)] for child in children(node)]
                results[identity(node)] = _node(node, parts)
    return results[identity(root)]


def points(axes: Sequence[Axis], known: Known) -> list[Known]:
    """Return the values of the variables at each point of some loops."""
    found = [dict(known)]
    for axis in axes:
        found = [
            {**point, identity(axis.var): int(integer(axis.low, point)) + step}
            for point in found
            for step in range(int(integer(axis.extent, point)))
        ]
    return found


def readers(inversion: Inversion, axes: Sequence[Axis], known: Known) -> list[tuple[int, ...]]:
    """Run the loops of an inversion for one element; return every point that its guards pass."""
    found = []
    for point in points(inversion.loops, known):
        if all(integer(guard, point) for guard in inversion.guards):
            found.append(tuple(int(integer(value, point)) for value in inversion.values))
    return found


def _node(node: Any, parts: list[Any]) -> Any:
    if isinstance(node, prim.IntImm):
        return int(node.value)
    if isinstance(node, prim.Cast):
        return parts[0]
    if isinstance(node, prim.Select) or called(node) == "prim.if_then_else":
        return np.where(*parts)
    if isinstance(node, prim.Not):
        return np.logical_not(parts[0])
    if isinstance(node, prim.Div):
        return np.trunc(parts[0] / parts[1]).astype("int64")
    return BINARY[type(node)](*parts)
