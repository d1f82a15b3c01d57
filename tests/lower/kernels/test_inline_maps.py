"""Computing maps inside their readers: when, how often, and what is left."""

import pytest
import tvm
from tvm import te, tirx, topi
from tvm.s_tir import Schedule

from graphgrad.ir.kernel_structure import stages
from graphgrad.lower.kernels.inline_maps import (
    MAX_CONDITION_DEPTH,
    condition_depth,
    inline_maps,
)
from tests.lower.kernel_programs import tensor


def left(inputs, outputs, may_repeat=lambda *_: False, **options):
    """Return the stages that are left, and the number of exponentials in each."""
    sch = Schedule(te.create_prim_func([*inputs, *outputs]))
    found = inline_maps(sch, may_repeat, **options)
    assert len(found) == len(list(sch.get_child_blocks(sch.get_sblock("root"))))
    return [sum(str(v).count("exp(") for v in stage.values) for stage in found]


def test_a_chain_becomes_one_stage():
    x = tensor(8, 16)
    assert left([x], [topi.exp(topi.add(topi.exp(x), x))]) == [2]


def test_results_stay():
    x = tensor(8)
    y = topi.exp(x)
    assert left([x], [y, topi.add(y, x)]) == [1, 0]


@pytest.mark.parametrize("may", [True, False])
def test_repetition_is_asked_for(may):
    v, x = tensor(16, name="v"), tensor(8, 16)
    asked = []

    def may_repeat(stage, operations):
        asked.append((stage.name, operations))
        return may

    assert left([v, x], [topi.add(topi.exp(v), x)], may_repeat) == ([1] if may else [1, 0])
    assert asked == [("compute", 2)]


@pytest.mark.parametrize(("most", "expected"), [(1, [1, 0, 0]), (2, [1, 1])])
def test_several_readers(most, expected):
    x = tensor(8)
    y = topi.exp(x)
    results = [topi.add(y, x), topi.multiply(y, x)]
    assert left([x], results, lambda *_: True, most_readers=most) == expected


def test_a_reader_of_a_reader_is_one():
    """The exponential is read by two maps until the first of them goes into the second."""
    x = tensor(8)
    y = topi.exp(x)
    assert left([x], [topi.multiply(topi.add(y, x), y)]) == [2]


def test_operands_of_contractions_stay():
    a, b = tensor(8, 4), tensor(16, 4, name="b")
    assert left([a, b], [topi.nn.dense(topi.exp(a), b)], lambda *_: True) == [1, 0]


def test_expressions_do_not_grow_without_end():
    x = tensor(8)
    y = x
    for _ in range(150):
        y = topi.add(topi.exp(y), x)
    assert 1 < len(left([x], [y])) < 10


def test_zeros_stay_where_they_are_divided_by():
    """TVM has no way to write 1 / 0."""
    x = tensor(8)
    zeros = topi.full((8,), "float32", 0.0)
    assert len(left([x], [topi.divide(x, zeros)])) == 2
    assert len(left([x], [topi.add(x, zeros)])) == 1


def zigzag(x, level):
    """Return a map whose value is chosen by what it maps."""
    return te.compute(x.shape, lambda i: tirx.Select(x[i] < level, x[i] + 1.0, x[i]))


def test_choices_do_not_nest_in_conditions_without_end():
    """TVM's simplifier takes time exponential in their depth."""
    x = tensor(8)
    y = x
    for level in range(9):
        y = zigzag(y, float(level))
    sch = Schedule(te.create_prim_func([x, y]))
    found = inline_maps(sch, lambda *_: True)
    depths = [condition_depth(stage.values) for stage in stages(sch.mod["main"])]
    assert len(found) == len(depths) == 3
    assert depths == [MAX_CONDITION_DEPTH] * 3


@pytest.mark.parametrize("choose", [tirx.Select, tirx.if_then_else])
def test_depth_of_conditions(choose):
    x, y = tirx.Var("x", "float32"), tirx.Var("y", "float32")
    buffer = tirx.decl_buffer((8,), "float32")
    choice = choose(x < 0.0, y, y + 1.0)
    assert condition_depth([x + y]) == 0
    assert condition_depth([x + choice, y]) == 1
    assert condition_depth([choose(x < 1.0, choice, choice)]) == 1
    assert condition_depth([choose(choice < 1.0, x, y)]) == 2
    load = tvm.tirx.BufferLoad(buffer, [0])
    assert condition_depth([choose(load < 1.0, x, load)], buffer, 2) == 3
    assert condition_depth([choose(x < 1.0, x, load)], buffer, 2) == 2
