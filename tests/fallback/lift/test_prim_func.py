"""Kernels raised to tensor expressions: the expressions compute what the kernels do."""

import numpy as np
import pytest
import tvm
from tvm import te, topi
from tvm.script.parser import tirx as T

from graphgrad.errors import MissingGradientError
from graphgrad.fallback.graph import operations
from graphgrad.fallback.lift.prim_func import lifted
from tests.fallback.interpreter import evaluate
from tests.fallback.lift.agreement import agrees
from tests.fallback.lift.plain_kernels import (
    PLAIN,
    added_by_threads,
    compressed_rows,
    unrolled_steps,
)
from tests.fallback.lift.recurrent_kernels import RECURRENT
from tests.fallback.lift.refused_kernels import REFUSED
from tests.fallback.lift.thread_kernels import THREADED
from tests.labels import label
from tests.running import compile_library


def _placeholder(name, *shape, dtype="float32"):
    return te.placeholder(shape, dtype, name=name)


A = _placeholder("A", 4, 6)
B = _placeholder("B", 6, 3)
X = _placeholder("X", 1, 3, 6, 6)
W = _placeholder("W", 2, 3, 3, 3)

EXPRESSIONS = {
    "matmul": ([A, B], topi.matmul(A, B)),
    "softmax": ([A], topi.nn.softmax(A, 1)),
    "argmax": ([A], topi.argmax(A, axis=1)),
    "max": ([A], topi.max(A, axis=0)),
    "product": ([A], topi.prod(A, 1)),
    "sum to a scalar": ([A], topi.sum(A)),
    "convolution": ([X, W], topi.nn.conv2d_nchw(X, W, 2, 1, 1)),
    "pool": ([X], topi.nn.pool2d(X, [3, 3], [2, 2], [1, 1], [1, 1, 1, 1], "max")),
    "reshape": ([A], topi.reshape(A, (3, 8))),
    "concatenate": ([A], topi.concatenate([A, A], 1)),
    "transpose": ([X], topi.transpose(X, [0, 2, 3, 1])),
}


@T.prim_func(s_tir=True)
def triangle(A: T.Buffer((4, 5), "float32"), B: T.Buffer((4,), "float32")):
    for i in range(4):
        B[i] = T.float32(0)
        for k in range(5):
            if k <= i:
                B[i] = B[i] + A[i, k] * T.float32(2)


@T.prim_func(s_tir=True)
def interleaved(A: T.Buffer((8,), "float32"), B: T.Buffer((16,), "float32")):
    for i in range(8):
        with T.sblock("even"):
            v = T.axis.spatial(8, i)
            B[2 * v] = A[v]
    for i in range(8):
        with T.sblock("odd"):
            v = T.axis.spatial(8, i)
            B[2 * v + 1] = A[7 - v] * B[2 * v]


@T.prim_func(s_tir=True)
def split_loops(A: T.Buffer((8, 10), "float32"), B: T.Buffer((8,), "float32")):
    for i0, k0, i1, k1 in T.grid(2, 4, 4, 3):
        with T.sblock("sums"):
            T.where(k0 * 3 + k1 < 10)
            v = T.axis.spatial(8, i0 * 4 + i1)
            k = T.axis.reduce(10, k0 * 3 + k1)
            with T.init():
                B[v] = T.float32(1)
            B[v] = B[v] + A[v, k]


@T.prim_func(s_tir=True)
def accumulated(A: T.Buffer((4, 5), "float32"), B: T.Buffer((4, 5), "float32")):
    for i, j in T.grid(4, 5):
        with T.sblock("accumulate"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = B[vi, vj] + A[vi, vj] * A[vi, vj]


@T.prim_func(s_tir=True)
def both_ways(A: T.Buffer((6,), "float32"), B: T.Buffer((6,), "float32")):
    for i in range(6):
        if A[i] > T.float32(0):
            B[i] = A[i] * T.float32(3)
        else:
            B[i] = A[i] * A[i]


@T.prim_func(s_tir=True)
def decayed_in_place(A: T.Buffer((4, 5), "float64"), B: T.Buffer((4,), "float64")):
    for i, k in T.grid(4, 5):
        B[i] = B[i] * T.float64(0.5) + A[i, k] * B[i] * B[i]


@T.prim_func(s_tir=True)
def symbolic(a: T.handle, k: T.int64, b: T.handle):
    n = T.int64()
    A = T.match_buffer(a, (n, n * 2), "float64")
    B = T.match_buffer(b, (n,), "float64")
    for i in range(n):
        B[i] = A[i, i + k]


@T.prim_func(s_tir=True)
def halved(A: T.Buffer((4,), "float16"), B: T.Buffer((4,), "float16")):
    for i in range(4):
        B[i] = A[i] * T.float16(0.5)


def _agrees(func, inputs, inplace=()):
    generator = np.random.default_rng(0)
    arrays = [
        generator.standard_normal([int(e) for e in param.shape]).astype(str(param.dtype))
        for param in func.params
    ]
    program = lifted(func, range(inputs, len(func.params)), inplace)
    known = [
        (placeholder, array.copy())
        for placeholder, array in zip(program.parameters, arrays, strict=True)
        if placeholder is not None
    ]
    values = evaluate(program.outputs, known)
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    compile_library(func)(*tensors)
    for value, tensor in zip(values, tensors[inputs:], strict=True):
        np.testing.assert_allclose(value, tensor.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", EXPRESSIONS, ids=label)
def test_kernels_of_tensor_expressions(name):
    inputs, output = EXPRESSIONS[name]
    _agrees(te.create_prim_func([*inputs, output]), len(inputs))


@pytest.mark.parametrize("func", [triangle, interleaved, split_loops, both_ways], ids=label)
def test_kernels_written_by_hand(func):
    _agrees(func, 1)


def test_a_buffer_that_is_added_to_is_read_too():
    _agrees(accumulated, 1, inplace=(1,))


def test_steps_that_are_unrolled_are_no_recurrence():
    program = lifted(unrolled_steps, [2])
    kinds = {type(op) for op in operations(*program.outputs)}
    assert te.ScanOp not in kinds and te.ComputeOp in kinds


@pytest.mark.parametrize("func", PLAIN, ids=label)
def test_kernels_of_other_forms(func):
    agrees(func, PLAIN[func])


@pytest.mark.parametrize("func", RECURRENT, ids=label)
def test_kernels_whose_iterations_go_on_from_those_before(func):
    agrees(func, RECURRENT[func])


@pytest.mark.parametrize("name", THREADED)
def test_kernels_of_threads_and_vectors(name):
    func, inputs, reference = THREADED[name]
    agrees(func, inputs, reference=reference)


def test_a_row_of_as_many_terms_as_data_say():
    generator = np.random.default_rng(0)
    rows = np.array([0, 2, 2, 6], "int32")
    columns = generator.integers(0, 4, 6).astype("int32")
    agrees(compressed_rows, 4, [rows, columns, generator.random(6), generator.random(4)])


def test_atomic_additions():
    def reference(values, places):
        return [np.array([2 * values[places == k].sum() for k in range(4)])]

    agrees(added_by_threads, 2, reference=reference)


def test_what_an_argument_held_before_counts():
    agrees(decayed_in_place, 1, inplace=(1,))


@pytest.mark.parametrize("size", [1, 5])
def test_symbolic_extents_and_scalars(size):
    generator = np.random.default_rng(0)
    arrays = [generator.random((size, 2 * size)), 1]
    agrees(symbolic, 2, arrays, lambda a, k: [np.array([a[i, i + k] for i in range(size)])])


@pytest.mark.parametrize(("func", "inputs", "reason"), REFUSED, ids=label)
def test_refusals_name_the_function_the_block_and_the_reason(func, inputs, reason):
    name = str(func.attrs["global_symbol"])
    with pytest.raises(MissingGradientError, match=f"block search of {name} .*{reason}"):
        lifted(func, range(inputs, len(func.params)))


def test_float16_is_raised_as_it_is():
    program = lifted(halved, [1])
    assert str(program.outputs[0].dtype) == "float16"
    (value,) = evaluate(program.outputs, [(program.parameters[0], np.ones(4, "float16"))])
    np.testing.assert_array_equal(value, np.full(4, 0.5, "float16"))
