"""Equal expressions: found to be, and merged into one."""

import pytest
from tvm import te, tirx
from tvm.ir import prim

from graphgrad.fallback.value_numbering import Merged, same
from graphgrad.fallback.walk import graph_of, identity, postorder

A = te.placeholder((6,), "float32", name="A")
B = te.placeholder((6,), "float32", name="B")
I = te.var("i")  # noqa: E741


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (A(I) * 2.0, A(I) * 2.0, True),
        (A(I) * 2.0, A(I) * 3.0, False),
        (A(I), B(I), False),
        (A(I), A(I + 1), False),
        (tirx.exp(A(I)), tirx.log(A(I)), False),
        (A(I).astype("float16"), A(I).astype("float64"), False),
    ],
    ids=["equal", "constants", "tensors", "indices", "functions", "dtypes"],
)
def test_same(first, second, expected):
    assert same(first, second) is expected


def test_merged_nodes_are_one():
    root, graph = Merged(graph_of([tirx.exp(A(I) * 2.0) + tirx.exp(A(I) * 2.0)])).graph()
    assert root.a.same_as(root.b)
    assert [(identity(node), len(parts)) for node, parts in graph] == [
        (identity(node), len(parts)) for node, parts in graph_of([root])
    ]


def test_merging_renames():
    j = te.var("j")
    root, _ = Merged(graph_of([A(I) * tirx.exp(A(I))]), [(I, j)]).graph()
    assert same(root, A(j) * tirx.exp(A(j)))


def test_choices_by_constants_are_made():
    never = prim.GT(tirx.const(1), tirx.const(2))
    root, graph = Merged(graph_of([tirx.if_then_else(never, A(I + 100), B(I)) + A(I)])).graph()
    assert same(root, B(I) + A(I))
    assert {identity(node) for node in postorder(root)} <= {identity(n) for n, _ in graph}


def test_a_choice_of_equal_values_is_the_value():
    both = tirx.exp(A(I)) * 2.0
    for choose in (tirx.Select, tirx.if_then_else):
        root, _ = Merged(graph_of([choose(B(I) > 0.0, both, tirx.exp(A(I)) * 2.0)])).graph()
        assert same(root, both)


def test_a_node_that_is_chosen_is_in_the_graph_once():
    load = A(I)
    chosen = tirx.Select(prim.EQ(tirx.const(1), tirx.const(1)), load, B(I))
    root, graph = Merged(graph_of([(load * 2.0) * (chosen + 1.0)])).graph()
    numbers = [identity(node) for node, _ in graph]
    assert len(set(numbers)) == len(numbers)
    assert same(root, (load * 2.0) * (load + 1.0))


@pytest.mark.parametrize(
    ("condition", "expected"),
    [(I < 3, True), (prim.LT(tirx.const(1), tirx.const(2)), False)],
    ids=["open", "decided"],
)
def test_conditions_are_found_unless_they_are_decided(condition, expected):
    merged = Merged(graph_of([tirx.if_then_else(condition, A(I), B(I)) + A(I)]))
    assert merged.has_conditions is expected
    assert not Merged(graph_of([tirx.Select(I < 3, A(I), B(I)) + A(I)])).has_conditions
