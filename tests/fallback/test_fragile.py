"""What a condition protects is found, and what is harmless anyway is not."""

import pytest
from tvm import te, tirx

from graphgrad.fallback.fragile import fragile
from graphgrad.fallback.indices.linear_system import Axis
from graphgrad.fallback.walk import graph_of, identity

X = te.placeholder((8,), "float64", name="x")
PLACE = tirx.Var("i", "int32")
LOOP = Axis(PLACE, tirx.const(0, "int32"), tirx.const(8, "int32"))
ZERO = tirx.const(0.0, "float64")
PHASE = PLACE % 4


def found(root, node, axes=(LOOP,)):
    graph = graph_of([root])
    parts = {identity(each): below for each, below in graph}
    return identity(node) in fragile([root], [each for each, _ in graph], parts, axes)


@pytest.mark.parametrize(
    ("index", "is_fragile"),
    [
        (PLACE, False),
        (PLACE + 1, True),
        (tirx.Select(PHASE < 3, PHASE, 4 - PHASE), False),
        (tirx.Select(PHASE < 3, PHASE, 9 - PHASE), False),
        (tirx.Select(PHASE < 3, PHASE, 12 - PHASE), True),
    ],
    ids=["inside", "outside", "mirrored", "mirrored to 6", "mirrored outside"],
)
def test_a_load_is_fragile_unless_it_is_always_inside(index, is_fragile):
    load = X(index)
    root = load + tirx.if_then_else(X(PLACE) > 0.5, tirx.exp(load), ZERO)
    assert found(root, load) == is_fragile


def test_what_a_condition_proves_is_harmless_there():
    load = X(PLACE + 1)
    protected = tirx.if_then_else(PLACE < 7, load, ZERO)
    root = X(PLACE) * protected
    assert found(root, load)
    assert not found(root, protected)


def test_divisions_by_what_may_be_zero_are_fragile():
    divisor = tirx.Var("n", "int32")
    for quotient, is_fragile in ((PLACE // divisor, True), (PLACE // 3, False)):
        root = tirx.if_then_else(divisor > 0, quotient.astype("float64"), ZERO)
        assert found(root, quotient) == is_fragile


def test_nothing_is_fragile_where_nothing_is_conditional():
    load = X(PLACE + 1)
    assert not found(tirx.exp(load), load)
    assert not found(tirx.exp(load), load, axes=None)
