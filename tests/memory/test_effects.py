"""Declarations of what packed functions do to memory."""

import pytest

import graphgrad as gg
from graphgrad.memory.effects import NOTHING, Effects, effects_of


def test_what_is_not_declared_is_unknown():
    assert effects_of("tests.effects.never") is None


def test_a_declaration_without_positions_says_that_nothing_happens():
    gg.declare_effects("tests.effects.nothing")
    assert effects_of("tests.effects.nothing") == NOTHING


def test_positions():
    gg.declare_effects("tests.effects.some", mutates=[0, 2], keeps=range(1), returns_alias_of=(1,))
    expected = Effects(frozenset([0, 2]), frozenset([0]), frozenset([1]))
    assert effects_of("tests.effects.some") == expected


def test_functions_of_tvm_are_known():
    assert effects_of("vm.builtin.copy") == Effects(returns_alias_of=frozenset([0]))
    assert effects_of("relax.run.nonzero") == NOTHING
    assert effects_of("tvm.contrib.random.uniform") is None


def test_the_same_may_be_said_twice_but_not_otherwise():
    gg.declare_effects("tests.effects.twice", mutates=[1])
    gg.declare_effects("tests.effects.twice", mutates=(1,))
    with pytest.raises(
        gg.ArgumentError, match=r"before with mutates=\(1,\), now with keeps=\(1,\)"
    ):
        gg.declare_effects("tests.effects.twice", keeps=[1])
    with pytest.raises(gg.ArgumentError, match="now with no effects"):
        gg.declare_effects("vm.builtin.copy")
    assert effects_of("tests.effects.twice") == Effects(mutates=frozenset([1]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mutates": [-1]}, "none is negative"),
        ({"keeps": ["x"]}, "as integers"),
        ({"returns_alias_of": 0}, "as integers"),
        ({"mutates": [1.0]}, "as integers"),
    ],
)
def test_bad_positions_are_refused(arguments, message):
    with pytest.raises(gg.ArgumentError, match=message):
        gg.declare_effects("tests.effects.bad", **arguments)
    assert effects_of("tests.effects.bad") is None


@pytest.mark.parametrize("name", ["", None, 3])
def test_bad_names_are_refused(name):
    with pytest.raises(gg.ArgumentError, match="name of a function"):
        gg.declare_effects(name)
