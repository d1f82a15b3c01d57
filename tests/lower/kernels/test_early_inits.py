"""Reductions whose loops may have no trips: their results are set before these."""

import numpy as np
import pytest
import tvm
from tvm.script import tirx as T
from tvm.tirx import For, const

from graphgrad.ir.arrays import to_tensor
from graphgrad.ir.kernel_structure import substitute_values
from graphgrad.ir.visits import nodes_in
from graphgrad.lower.cpu.schedule import schedule_loops
from graphgrad.lower.kernels.early_inits import initialize_before_loops
from tests.lower.kernel_programs import HOST, UNIT


@T.prim_func(s_tir=True)
def weighted_sums(x_: T.handle, y_: T.handle):
    n = T.int64()
    m = T.int64()
    x = T.match_buffer(x_, (n, m, 3), "float64")
    y = T.match_buffer(y_, (n, 4), "float64")
    for i in T.parallel(n):
        for q, j, r in T.grid(3, 4, m):
            with T.sblock("sums"):
                vi, vj, vr, vq = T.axis.remap("SSRR", [i, j, r, q])
                with T.init():
                    y[vi, vj] = 0.0
                y[vi, vj] = y[vi, vj] + x[vi, vr, vq] * T.Cast("float64", vj)
        y[i, 0] = y[i, 0] + 1.0


@pytest.mark.parametrize("terms", [0, 1, 3])
def test_a_kernel_that_stays_as_it_was_built_sets_its_results(terms):
    run = tvm.compile(schedule_loops(weighted_sums, UNIT), HOST)
    x = np.random.default_rng(0).standard_normal((5, terms, 3))
    expected = x.sum((1, 2))[:, None] * np.arange(4) + [1, 0, 0, 0]
    result = to_tensor(np.full((5, 4), np.nan), tvm.cpu())
    run(to_tensor(x, tvm.cpu()), result)
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-12, atol=1e-12)


def test_loops_whose_extents_are_known_stay_as_they_are():
    (inner,) = (each for each in nodes_in(weighted_sums.body, For) if each.loop_var.name == "r")
    static = substitute_values(weighted_sums.body, {inner.extent: const(2, "int64")})
    assert initialize_before_loops(static).same_as(static)
    assert not initialize_before_loops(weighted_sums.body).same_as(weighted_sums.body)
