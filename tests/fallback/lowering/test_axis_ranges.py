"""Axes have the ranges of the loops around them, whatever the dtype of indices."""

import pytest
from tvm import te, tirx
from tvm.s_tir import SBlockRealize

from graphgrad.fallback import create_prim_func
from graphgrad.ir.visits import nodes_in


def recurrence():
    """Rows 2 to 5 of a state, from the two rows before."""
    x = te.placeholder((2, 4), "float64", name="x")
    state = te.placeholder((6, 4), "float64", name="S")
    update = te.compute((6, 4), lambda t, i: state(t - 1, i) + state(t - 2, i), name="update")
    first = te.compute((2, 4), x, name="first")
    return x, te.scan(first, update, state)


@pytest.mark.parametrize("override", [None, "int64"])
def test_the_time_of_a_scan(override):
    func = create_prim_func(recurrence(), index_dtype_override=override)
    loops = {loop.loop_var: loop for loop in nodes_in(func.body, tirx.For)}
    checked = 0
    for realize in nodes_in(func.body, SBlockRealize):
        for axis, value in zip(realize.block.iter_vars, realize.iter_values, strict=True):
            if value in loops:
                assert int(axis.dom.min) == int(loops[value].min)
                assert int(axis.dom.extent) == int(loops[value].extent)
                checked += int(axis.dom.min) == 2
    assert checked == 1
