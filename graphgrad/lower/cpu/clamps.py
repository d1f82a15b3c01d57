"""Clamped indices: reads of a neighbor, or of the border where there is none.

``max(min(i + 1, n - 1), 0)`` is ``i + 1`` but at the end. Written as a choice of the two, it is a
condition like any other on what a vector reads.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from ...ir.kernel_structure import Load, linear_coefficient, uses
from ...ir.visits import nodes_in, replace_nodes

_CLAMPS = (tirx.Min, tirx.Max)


def is_clamped(load: Any) -> bool:
    """Whether an index of a load has a minimum or a maximum."""
    return bool(nodes_in(list(load.indices), _CLAMPS))


def unclamped(load: Any, var: Any) -> Any:
    """A load with what its indices are clamped from along a variable."""
    return tirx.BufferLoad(load.source, [_bounded(index, var)[0] for index in load.indices])


def choose_where_clamped(body: Any, var: Any) -> Any:
    """An expression or a statement in which indices that are clamped along a variable are choices.

    Where it is in bounds, an index is what it is clamped from.
    """

    def chosen(index: Any) -> Any:
        value, bounds = _bounded(index, var)
        return tirx.if_then_else(tirx.all(*bounds), value, index) if bounds else index

    def load(node: Any) -> Any:
        if not is_clamped(node):
            return node
        return tirx.BufferLoad(node.source, [chosen(index) for index in node.indices])

    return replace_nodes(body, Load, load)


def _bounded(index: Any, var: Any) -> tuple[Any, list[Any]]:
    """What an index is clamped from along a variable, and where it is that.

    One that is not clamped, or does not move by one with the variable, is itself, everywhere.
    """
    bounds: list[tuple[type, Any]] = []
    inside = index
    while isinstance(inside, _CLAMPS):
        inner, bound = (inside.a, inside.b) if uses(inside.a, var) else (inside.b, inside.a)
        if not uses(inner, var) or uses(bound, var):
            break
        bounds.append((type(inside), bound))
        inside = inner
    if linear_coefficient(inside, var) != 1:
        return index, []
    return inside, [inside <= b if kind is tirx.Min else inside >= b for kind, b in bounds]
