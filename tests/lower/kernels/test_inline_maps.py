"""Computing maps inside their readers: when, how often, and what is left."""

import pytest
from tvm import te, topi
from tvm.s_tir import Schedule

from graphgrad.lower.kernels.inline_maps import inline_maps
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
