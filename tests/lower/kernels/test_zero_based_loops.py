import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.script.parser import tirx as T

from graphgrad.ir.visits import nodes_in
from graphgrad.lower.kernels.zero_based_loops import start_loops_at_zero


@T.prim_func(s_tir=True)
def triangle(x: T.Buffer((6, 6), "float64")):
    with T.sblock("root"):
        for j in range(1, 6):
            for i in range(j, 6):
                x[i, j] = T.float64(1) + x[i, j]


@T.prim_func(s_tir=True)
def three_deep(x: T.Buffer((6, 6), "float64")):
    with T.sblock("root"):
        for k in range(5):
            for j in range(k + 1, 6):
                for i in range(j, 6):
                    x[i, j] = x[i, j] + T.Cast("float64", k * 36 + i * 6 + j)


@T.prim_func(s_tir=True)
def constant_beginning(x: T.Buffer((6, 6), "float64")):
    with T.sblock("root"):
        for j in range(1, 5):
            for i in range(1, j + 1):
                x[i, j] = x[i, j] + T.Cast("float64", i)


@T.prim_func(s_tir=True)
def with_steps(x: T.Buffer((6, 6), "float64")):
    with T.sblock("root"):
        for j in range(1, 6, 2):
            for i in range(j, 6, 3):
                x[i, j] = x[i, j] + T.Cast("float64", i * j)


@T.prim_func(s_tir=True)
def of_blocks(x: T.Buffer((6, 6), "float64")):
    for j in range(1, 6):
        for i in range(j, 6):
            with T.sblock("one"):
                vi, vj = T.axis.remap("SS", [i, j])
                x[vi, vj] = x[vi, vj] + T.Cast("float64", vi)


ADDED = {
    triangle: [(i, j, 1) for j in range(1, 6) for i in range(j, 6)],
    three_deep: [
        (i, j, k * 36 + i * 6 + j) for k in range(5) for j in range(k + 1, 6) for i in range(j, 6)
    ],
    constant_beginning: [(i, j, i) for j in range(1, 5) for i in range(1, j + 1)],
    with_steps: [(i, j, i * j) for j in range(1, 6, 2) for i in range(j, 6, 3)],
    of_blocks: [(i, j, i) for j in range(1, 6) for i in range(j, 6)],
}
"""Kernels, and what they add to which element."""


@pytest.mark.parametrize("func", ADDED, ids=lambda func: str(func.attrs["global_symbol"]))
def test_what_loops_do(func):
    expected = np.zeros((6, 6))
    for i, j, value in ADDED[func]:
        expected[i, j] += value
    changed = start_loops_at_zero(func)
    assert all(int(loop.min) == 0 for loop in nodes_in(changed.body, tirx.For))
    result = tvm.runtime.tensor(np.zeros((6, 6)))
    tvm.compile(changed, "llvm")(result)
    np.testing.assert_array_equal(result.numpy(), expected)
    assert start_loops_at_zero(changed).same_as(changed)
