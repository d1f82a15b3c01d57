"""Reductions of many tensors to one number."""

from __future__ import annotations

from typing import Any

from ...ir.calls import result_types
from .elementwise import is_excluded
from .graph import GraphWriter, Site, elem_type, writes

_SMALL = 2.0**-64
"""Times this, finite elements have a finite sum; others have none."""


@writes("graphgrad.all_finite")
def _all_finite(site: Site) -> Any:
    graph, types = site.graph, result_types(site.call.args[0].ty)
    sums = []
    for x, ty in zip(site.names[0], types, strict=True):
        small = graph.node("Mul", x, graph.constant(_SMALL, str(ty.dtype)))
        sums.append(_wide(graph, graph.node("ReduceSum", small, keepdims=0)))
    return graph.node("Not", is_excluded(graph, graph.node("Sum", *sums), "float64"))


@writes("graphgrad.sum_of_squares")
def _sum_of_squares(site: Site) -> Any:
    graph = site.graph
    # Squares of large float32 would overflow.
    sums = [graph.node("ReduceSumSquare", _wide(graph, x), keepdims=0) for x in site.names[0]]
    return graph.node("Sum", *sums)


def _wide(graph: GraphWriter, x: str) -> str:
    return str(graph.node("Cast", x, to=elem_type("float64")))
