"""Bindings of shared subexpressions: same values, small trees, loads as guarded as before."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import te, tirx

from graphgrad.fallback.common_subexpressions import bind_in_regions, shared
from graphgrad.fallback.indices.linear_system import Axis
from graphgrad.fallback.value_numbering import Merged
from graphgrad.fallback.walk import graph_of, postorder
from tests.fallback.interpreter import evaluate

A = te.placeholder((6,), "float64", name="A")
B = te.placeholder((6,), "float64", name="B")
VALUES = np.array([0.5, -1.0, 2.0, -0.25, 1.5, 0.75])


def tree_size(root):
    count = 0

    def visit(_):
        nonlocal count
        count += 1

    tvm_ffi.structural_walk(root, (tvm.ir.Expr, visit))
    return count


def chain(i, depth):
    value = A(i)
    for _ in range(depth):
        value = value * value * 0.5 + A(i)
    return value


def branches(i, depth):
    """What is shared between the two arms of a choice, at every level."""
    value = A(i)
    for level in range(depth):
        value = tirx.if_then_else(value > 0.1 * level, value * 0.5, value + 1.0)
    return value


def different_conditions(i, depth):
    """What is used under two conditions that may both fail, at every level."""
    value = tirx.if_then_else(i > 0, A(i - 1), 1.0)
    for level in range(depth):
        first = tirx.if_then_else(i > level % 3, value * 0.5, 0.25)
        value = first + tirx.if_then_else(i < 5 - level % 2, value * 0.25, 0.5)
    return value


def guarded_twice(i, depth):
    """A load outside its tensor, but for two conditions that each protect it."""
    ahead = tirx.exp(A(i + 1))
    first = tirx.if_then_else(i < 5, ahead, 0.0)
    second = tirx.if_then_else(i < 3, tirx.if_then_else(A(i) > 0, ahead * 2.0, 1.0), 0.0)
    return first + second


def condition_that_reads(i, depth):
    """A guard whose own condition must be guarded."""
    behind = A(i - 1)
    value = tirx.log(behind)
    outer = tirx.if_then_else(i > 0, tirx.if_then_else(behind > 0, value, 0.0), 0.0)
    return outer + tirx.if_then_else(i > 1, tirx.if_then_else(behind > 0, value * value, 0.0), 0.0)


SHAPES = [chain, branches, different_conditions, guarded_twice, condition_that_reads]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda f: f.__name__)
def test_values_are_the_same_interpreted_and_compiled(shape):
    plain = te.compute((6,), lambda i: shape(i, 3), name="plain")
    bound = te.compute((6,), lambda i: shared(shape(i, 3)), name="bound")
    expected, given = evaluate([plain, bound], [(A, VALUES)])
    assert np.isfinite(expected).all()
    np.testing.assert_array_equal(given, expected)
    run = tvm.compile(te.create_prim_func([A, bound]), "llvm")
    out = tvm.runtime.tensor(np.full(6, np.nan))
    run(tvm.runtime.tensor(VALUES), out)
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-12)


def test_loads_that_are_always_inside_need_no_condition():
    """Or two conditions would become a third, of which LLVM makes exponentially many."""

    def choices(i):
        value = tirx.exp(A(i))
        first = tirx.if_then_else(B(i) > 0.0, value, 0.0)
        return tirx.if_then_else(i < 4, first + tirx.if_then_else(B(i) > 1.0, value, 0.0), 0.0)

    i = te.var("i")
    inside, outside = (
        str(shared(choices(i), axes=[Axis(i, tirx.const(0, "int32"), tirx.const(n, "int32"))]))
        for n in (6, 9)
    )
    assert inside.count("if_then_else") == outside.count("if_then_else") == 3
    shifted = str(
        shared(choices(i), axes=[Axis(i, tirx.const(-1, "int32"), tirx.const(6, "int32"))])
    )
    assert shifted.count("if_then_else") > 3


@pytest.mark.parametrize("shape", SHAPES[:3], ids=lambda f: f.__name__)
def test_the_tree_grows_as_the_graph_does(shape):
    i = te.var("i")
    sizes = []
    for depth in (10, 20, 40):
        root = shape(i, depth)
        result = shared(root)
        sizes.append(tree_size(result) / len(postorder(root)))
    assert max(sizes) < 6
    assert sizes[2] < 1.5 * sizes[0]


def comparisons(i, depth):
    """What is compared and chosen from at every level, without a condition around a load."""
    value = A(i)
    for level in range(depth):
        value = tirx.Select(value < B(i) * level, value * value, value + tirx.exp(value))
    return value


@pytest.mark.parametrize("shape", [chain, comparisons], ids=lambda p: p.__name__)
def test_without_conditions_all_is_bound_around(shape):
    root = shape(te.var("i"), 5)
    regions = bind_in_regions(*Merged(graph_of([root])).graph(), {}, None)
    assert tvm_ffi.structural_equal(shared(root), regions, map_free_vars=True)
