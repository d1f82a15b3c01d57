"""Which kernels may write an output over an input, judged one by one."""

import pytest
import tvm
import tvm_ffi
from tvm import te, topi
from tvm.script import tirx as T

from graphgrad.lower.cpu import schedule_function
from graphgrad.lower.overwrite import may_overwrite, overwriting
from tests.lower.kernels import UNIT, tensor


def kernel(*outputs, inputs):
    return te.create_prim_func([*inputs, *outputs])


X, Y = tensor(64, 512), tensor(64, 512, name="y")
COARSE = te.compute(X.shape, lambda i, j: X[i, j // 2])


@pytest.mark.parametrize(
    ("output", "safe"),
    [
        (topi.add(X, Y), True),
        (topi.nn.relu(topi.multiply(X, X)), True),
        (topi.add(topi.exp(X), topi.sum(Y, 1, keepdims=True)), True),
        (topi.add(X, topi.sum(X, 1, keepdims=True)), True),  # the sum is complete before
        (COARSE, False),
        (topi.add(X, topi.flip(X, 1)), False),
        (topi.nn.softmax(X), True),
    ],
    ids=["add", "square", "other sum", "own sum", "half index", "mirror", "softmax"],
)
def test_scheduled_kernels(output, safe):
    func = schedule_function(kernel(output, inputs=[X, Y]), UNIT)
    x, _, out = func.params
    assert may_overwrite(func, x, out) == safe


def test_a_whole_stage_may_read_anywhere_before_the_output_is_written():
    func = kernel(topi.add(X, topi.flip(X, 1)), inputs=[X, Y])
    assert may_overwrite(func, func.params[0], func.params[2])


def test_a_reduction_into_its_own_input_is_refused():
    x, y = tensor(16), tensor(16, 16, name="y")
    k = te.reduce_axis((0, 16), "k")
    func = kernel(te.compute((16,), lambda i: te.sum(x[i] * y[i, k], axis=k)), inputs=[x, y])
    assert not may_overwrite(func, func.params[0], func.params[2])


@T.prim_func(private=True, s_tir=True)
def repeated(x: T.Buffer((8,), "float32"), out: T.Buffer((8,), "float32")):
    for _ in range(3):
        for i in range(8):
            with T.sblock("b"):
                v = T.axis.spatial(8, i)
                out[v] = x[v] * T.float32(2)


def test_a_block_that_runs_several_times_is_refused():
    assert not may_overwrite(repeated, *repeated.params)


def test_the_rewritten_kernel_has_one_parameter_less():
    func = kernel(topi.add(X, Y), inputs=[X, Y])
    x, y, out = func.params
    rewritten = overwriting(func, {out: x})
    assert list(rewritten.params) == [x, y]
    assert not any(var.same_as(out) for var in _variables(rewritten))


def _variables(func):
    found = []
    tvm_ffi.structural_walk(func.body, (tvm.ir.Var, found.append))
    return found
