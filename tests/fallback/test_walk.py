"""Expressions as graphs: walked once per node, variables put in."""

import pytest
from tvm import te, tirx
from tvm.ir import prim

from graphgrad.fallback.walk import (
    UnknownNodeError,
    contain,
    dtype_name,
    graph_of,
    has_more,
    inline_lets,
    is_load,
    is_tree,
    postorder,
)

A = te.placeholder((6,), "float32", name="A")
B = te.placeholder((6,), "float32", name="B")
I = te.var("i")  # noqa: E741
LOAD = A(I)


@pytest.mark.parametrize(
    ("root", "expected"),
    [
        (A(I) * A(I), True),
        (LOAD * LOAD, False),
        (tirx.exp(LOAD) + tirx.log(LOAD), False),
    ],
    ids=["equal", "used twice", "used twice below"],
)
def test_a_tree_uses_each_node_once(root, expected):
    assert is_tree(graph_of([root])) is expected


def test_variables_become_shared_nodes():
    v = tirx.Var("v", "float32")
    root = inline_lets(prim.Let(v, tirx.exp(A(I)), v * v))
    assert root.a.same_as(root.b)
    assert not any(isinstance(node, prim.Let) for node in postorder(root))


def test_a_variable_with_two_values_is_refused():
    v = tirx.Var("v", "float32")
    root = prim.Let(v, A(I), v * 2.0) + prim.Let(v, B(I), v * 3.0)
    with pytest.raises(UnknownNodeError, match="the variable v is bound twice"):
        inline_lets(root)


def test_a_search_ends_where_it_finds():
    visited = []

    def test(node):
        visited.append(type(node))
        return is_load(node)

    assert contain([tirx.exp(A(I + 1))], test)
    assert prim.Add not in visited
    assert not contain([I + 1, I * 2], is_load)


def test_nodes_are_counted_once():
    value = LOAD
    for _ in range(40):
        value = value * value
    assert not has_more([value, LOAD], 42)  # with the index
    assert has_more([value, LOAD], 41)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool"])
def test_names_of_dtypes(dtype):
    for _ in range(2):
        assert dtype_name(te.var("v", dtype).ty) == dtype
    assert dtype_name(dtype) == dtype
