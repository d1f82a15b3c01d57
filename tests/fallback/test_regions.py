"""Each node is evaluated where all its users see it, under the condition that one of them is."""

from tvm import te, tirx

from graphgrad.fallback.indices.linear_system import Axis
from graphgrad.fallback.regions import Placement
from graphgrad.fallback.value_numbering import same
from graphgrad.fallback.walk import graph_of, identity

X = te.placeholder((8,), "float64", name="x")
PLACE = tirx.Var("i", "int32")
LOOP = Axis(PLACE, tirx.const(0, "int32"), tirx.const(8, "int32"))
ZERO = tirx.const(0.0, "float64")


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
