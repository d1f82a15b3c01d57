"""Bindings of shared subexpressions: same values, small trees, loads as guarded as before."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import te, tirx

from graphgrad.fallback.bindings import (
    Placement,
    bind_in_regions,
    fragile,
    order_conditions_first,
    shared,
)
from graphgrad.fallback.indices.linear_system import Axis
from graphgrad.fallback.value_numbering import Merged, same
from graphgrad.fallback.walk import children, graph_of, identity, postorder
from tests.fallback.interpreter import evaluate
from tests.running import compile_library

A = te.placeholder((6,), "float64", name="A")
B = te.placeholder((6,), "float64", name="B")
X = te.placeholder((8,), "float64", name="x")
PLACE = tirx.Var("i", "int32")
LOOP = Axis(PLACE, tirx.const(0, "int32"), tirx.const(8, "int32"))
ZERO = tirx.const(0.0, "float64")
PHASE = PLACE % 4
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
    run = compile_library(te.create_prim_func([A, bound]))
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


# --- where each part is evaluated ---


def placed(root):
    return Placement([root], graph_of([root]), axes=[LOOP])


def test_what_one_arm_uses_is_evaluated_there():
    inner = tirx.exp(X(PLACE + 1))
    choice = tirx.if_then_else(PLACE < 7, inner, ZERO)
    placement = placed(choice * 2.0)
    assert placement.regions[identity(inner)] is placement.arms[identity(choice), True]
    assert placement.regions[identity(choice)] is placement.top


def test_what_both_arms_use_is_evaluated_around_them():
    inner = tirx.exp(X(PLACE))
    choice = tirx.if_then_else(X(PLACE) > 0.5, inner * 2.0, inner * 3.0)
    placement = placed(choice)
    assert placement.regions[identity(inner)] is placement.top
    assert identity(inner) in placement.shared
    assert identity(inner) not in placement.guards


def test_a_fragile_node_keeps_the_condition_that_one_of_its_uses_happens():
    inner = tirx.exp(X(PLACE + 1))
    conditions = [X(PLACE) > limit for limit in (0.25, 0.5)]
    first, second = (tirx.if_then_else(c, inner, ZERO) for c in conditions)
    placement = placed(first + second)
    key = identity(inner)
    assert key in placement.fragile
    assert placement.regions[key] is placement.top
    guard = placement.guards[key]
    assert any(same(guard, tirx.Or(*order)) for order in (conditions, conditions[::-1]))
    assert placement.guarded[key].condition is not None


def test_a_condition_inside_itself_is_decided():
    condition = X(PLACE) > 0.5
    inner = tirx.if_then_else(condition, tirx.exp(X(PLACE)), tirx.log(X(PLACE)))
    placement = placed(tirx.if_then_else(condition, inner, ZERO))
    assert identity(inner) in placement.decided


# --- conditions before what they protect ---


def test_a_shared_part_comes_behind_all_conditions_around_it():
    part = tirx.exp(X(PLACE))
    conditions = [X(PLACE + k) > 0.5 for k in (1, 2)]
    root = sum(tirx.if_then_else(c, part, ZERO) for c in conditions)
    graph = graph_of([root])
    ordered = order_conditions_first(graph, {identity(part)})
    places = {identity(node): place for place, (node, _) in enumerate(ordered)}
    assert len(ordered) == len(graph)
    assert all(places[identity(c)] < places[identity(part)] for c in conditions)
    assert all(places[identity(p)] < places[identity(n)] for n, parts in ordered for p in parts)


def test_a_condition_that_a_variable_holds_needs_no_place():
    part = tirx.exp(X(PLACE))
    both = tirx.if_then_else(X(PLACE + 1) > 0.5, X(PLACE + 2) > 0.5, tirx.const(False))
    root = tirx.if_then_else(both, part * part, ZERO)
    graph = graph_of([root], lambda node: [] if node.same_as(both) else children(node))
    assert order_conditions_first(graph, {identity(part)}) is graph


def test_without_protected_parts_the_order_stays():
    graph = graph_of([tirx.exp(X(PLACE)) * tirx.if_then_else(X(PLACE) > 0.5, X(PLACE), 0.0)])
    assert order_conditions_first(graph, set()) is graph


# --- what must not be evaluated elsewhere ---


def is_fragile(root, node, axes=(LOOP,)):
    graph = graph_of([root])
    parts = {identity(each): below for each, below in graph}
    return identity(node) in fragile([root], [each for each, _ in graph], parts, axes)


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        (PLACE, False),
        (PLACE + 1, True),
        (tirx.Select(PHASE < 3, PHASE, 4 - PHASE), False),
        (tirx.Select(PHASE < 3, PHASE, 9 - PHASE), False),
        (tirx.Select(PHASE < 3, PHASE, 12 - PHASE), True),
    ],
    ids=["inside", "outside", "mirrored", "mirrored to 6", "mirrored outside"],
)
def test_a_load_is_fragile_unless_it_is_always_inside(index, expected):
    load = X(index)
    root = load + tirx.if_then_else(X(PLACE) > 0.5, tirx.exp(load), ZERO)
    assert is_fragile(root, load) == expected


def test_what_a_condition_proves_is_harmless_there():
    load = X(PLACE + 1)
    protected = tirx.if_then_else(PLACE < 7, load, ZERO)
    root = X(PLACE) * protected
    assert is_fragile(root, load)
    assert not is_fragile(root, protected)


def test_divisions_by_what_may_be_zero_are_fragile():
    divisor = tirx.Var("n", "int32")
    for quotient, expected in ((PLACE // divisor, True), (PLACE // 3, False)):
        root = tirx.if_then_else(divisor > 0, quotient.astype("float64"), ZERO)
        assert is_fragile(root, quotient) == expected


def test_nothing_is_fragile_where_nothing_is_conditional():
    load = X(PLACE + 1)
    assert not is_fragile(tirx.exp(load), load)
    assert not is_fragile(tirx.exp(load), load, axes=None)
