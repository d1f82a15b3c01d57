"""Expressions as graphs: equal nodes, merged ones, variables put in."""

import pytest
from tvm import te, tirx
from tvm.ir import prim

from graphgrad.fallback.walk import (
    UnknownNodeError,
    is_tree,
    merged,
    postorder,
    same,
    with_parts,
    without_lets,
)

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
    root, graph = merged(with_parts([tirx.exp(A(I) * 2.0) + tirx.exp(A(I) * 2.0)]))
    assert root.a.same_as(root.b)
    assert [(node.__chandle__(), len(parts)) for node, parts in graph] == [
        (node.__chandle__(), len(parts)) for node, parts in with_parts([root])
    ]


def test_merging_renames():
    j = te.var("j")
    root, _ = merged(with_parts([A(I) * tirx.exp(A(I))]), [(I, j)])
    assert same(root, A(j) * tirx.exp(A(j)))


@pytest.mark.parametrize(
    ("root", "expected"),
    [
        (A(I) * A(I), True),
        ((lambda load: load * load)(A(I)), False),
        ((lambda load: tirx.exp(load) + tirx.log(load))(A(I)), False),
    ],
    ids=["equal", "used twice", "used twice below"],
)
def test_a_tree_uses_each_node_once(root, expected):
    assert is_tree(with_parts([root])) is expected


def test_choices_by_constants_are_made():
    never = prim.GT(tirx.const(1), tirx.const(2))
    root, graph = merged(with_parts([tirx.if_then_else(never, A(I + 100), B(I)) + A(I)]))
    assert same(root, B(I) + A(I))
    assert {node.__chandle__() for node in postorder(root)} <= {n.__chandle__() for n, _ in graph}


def test_variables_become_shared_nodes():
    v = tirx.Var("v", "float32")
    root = without_lets(prim.Let(v, tirx.exp(A(I)), v * v))
    assert root.a.same_as(root.b)
    assert not any(isinstance(node, prim.Let) for node in postorder(root))


def test_a_variable_with_two_values_is_refused():
    v = tirx.Var("v", "float32")
    root = prim.Let(v, A(I), v * 2.0) + prim.Let(v, B(I), v * 3.0)
    with pytest.raises(UnknownNodeError, match="the variable v is bound twice"):
        without_lets(root)
