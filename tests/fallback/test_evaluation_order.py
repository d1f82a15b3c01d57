"""Conditions come before what they protect, and nothing before what it is made of."""

from tvm import te, tirx

from graphgrad.fallback.evaluation_order import order_conditions_first
from graphgrad.fallback.walk import graph_of, identity

X = te.placeholder((8,), "float64", name="x")
PLACE = tirx.Var("i", "int32")


def test_a_shared_part_comes_behind_all_conditions_around_it():
    shared = tirx.exp(X(PLACE))
    zero = tirx.const(0.0, "float64")
    conditions = [X(PLACE + k) > 0.5 for k in (1, 2)]
    root = sum(tirx.if_then_else(c, shared, zero) for c in conditions)
    graph = graph_of([root])
    ordered = order_conditions_first(graph, {identity(shared)})
    places = {identity(node): place for place, (node, _) in enumerate(ordered)}
    assert len(ordered) == len(graph)
    assert all(places[identity(c)] < places[identity(shared)] for c in conditions)
    assert all(places[identity(p)] < places[identity(n)] for n, parts in ordered for p in parts)


def test_without_protected_parts_the_order_stays():
    graph = graph_of([tirx.exp(X(PLACE)) * tirx.if_then_else(X(PLACE) > 0.5, X(PLACE), 0.0)])
    assert order_conditions_first(graph, set()) is graph
