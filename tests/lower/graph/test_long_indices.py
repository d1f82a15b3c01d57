"""Kernels that count in 32 bits, beside TVM's own, which count in 64."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, te, tirx, topi
from tvm.script import tirx as T

from graphgrad.lower.graph.long_indices import lengthen_indices
from tests.running import function, run

F32 = "float32"


def elementwise(x, n):
    return te.compute((n, 4), lambda i, j: x[i, j] * 2.0, name="doubled")


def window_sums(x, n):
    r = te.reduce_axis((0, 3), name="r")
    at = topi.nn.pad(x, [1, 0], name="padded")
    return te.compute((n, 4), lambda i, j: te.sum(at[i + r, j], axis=r), name="sums")


def reversed_rows(x, n):
    return te.compute((n, 4), lambda i, j: x[n - 1 - i, (j + 1) % 4], name="reversed")


def choices(x, n):
    def body(i, j):
        inside = tirx.all(i + 1 < n, j * 2 >= 1)
        return tirx.if_then_else(inside, x[i + 1, j - 1], tirx.const(0.5, F32))

    return te.compute((n, 4), body, name="choices")


def numbers(x, n):
    """Computes with the loop variables, not only indices."""

    def body(i, j):
        bits = tirx.bitwise_and(i, 1) + tirx.shift_right(j, 1) - tirx.floordiv(i * 7 - j, 3)
        return x[i, j] + tirx.Select(i > j, bits, tirx.max(i, j) - n).astype(F32)

    return te.compute((n, 4), body, name="numbers")


KERNELS = [elementwise, window_sums, reversed_rows, choices, numbers]


def between(kernel, rows=5):
    """Return a module that calls a kernel between ops that TVM fuses with it."""

    def build(builder, x):
        shape = x.ty.shape
        variable = builder.add_func(kernel, "kernel")
        sum_ = builder.emit(relax.op.add(x, x))
        call = relax.call_tir(variable, relax.Tuple([sum_]), relax.TensorType(shape, F32))
        return builder.emit(relax.op.negative(builder.emit(call)))

    return function(build, ((rows, 4), F32))


def kernel_of(expressions, extent, **options):
    x = te.placeholder((extent, 4), F32, name="x")
    return te.create_prim_func([x, expressions(x, extent)], **options)


X = np.arange(20.0, dtype=F32).reshape(5, 4)


@pytest.mark.parametrize("expressions", KERNELS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("extent", ["static", "known", "symbolic"])
def test_short_kernels_compute_the_same_between_ops(expressions, extent):
    long = kernel_of(expressions, tirx.IntImm("int64", 5))
    (expected,) = run(between(long), "main", X)
    short = kernel_of(expressions, 5 if extent == "static" else te.var("n", "int32"))
    rows = tirx.Var("rows", "int64") if extent == "symbolic" else 5
    (result,) = run(between(short, rows), "main", X)
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize(
    "expressions", [elementwise, window_sums, reversed_rows], ids=lambda f: f.__name__
)
def test_short_kernels_become_what_tvm_makes_with_long_indices(expressions):
    short = kernel_of(expressions, 5)
    expected = kernel_of(expressions, 5, index_dtype_override="int64")
    tvm.ir.assert_structural_equal(lengthen_indices(short), expected)


def test_long_kernels_are_left_alone():
    kernel = kernel_of(elementwise, 5, index_dtype_override="int64")
    assert lengthen_indices(kernel).same_as(kernel)


def test_numbers_that_loops_make_keep_their_dtype():
    kernel = te.create_prim_func([te.compute((5,), lambda i: i * 3, name="numbers")])
    stores = []
    tvm_ffi.structural_walk(lengthen_indices(kernel), (tirx.BufferStore, stores.append))
    (store,) = stores
    assert (str(store.value.ty), str(store.indices[0].ty)) == ("int32", "int64")


@T.prim_func(s_tir=True)
def scheduled(x: T.Buffer((5, 4), "float32"), y: T.Buffer((5, 4), "float32")):
    for i in range(5):
        for j in T.vectorized(4):
            with T.sblock("doubled"):
                row, column = T.axis.remap("SS", [i, j])
                T.where(i * 4 + j < 20)
                y[row, column] = x[row, column] * T.float32(2)


@T.prim_func(s_tir=True)
def indirect(x: T.Buffer((5, 4), "float32"), y: T.Buffer((5, 4), "float32")):
    at = T.sblock_alloc_buffer((5,), "int32")
    for i in range(5):
        with T.sblock("at"):
            row = T.axis.spatial(5, i)
            at[row] = 4 - row
    for i, j in T.grid(5, 4):
        with T.sblock("taken"):
            row, column = T.axis.remap("SS", [i, j])
            y[row, column] = x[at[row], column]


@T.prim_func(s_tir=True)
def matched(x: T.Buffer((5, 4), "float32"), y: T.Buffer((5, 4), "float32")):
    for i in range(5):
        with T.sblock("doubled"):
            at = T.axis.spatial(5, i)
            T.reads(x[at, 0:4])
            T.writes(y[at, 0:4])
            row = T.match_buffer(x[at, 0:4], (1, 4), "float32", offset_factor=1)
            for j in range(4):
                y[at, j] = row[0, j] * T.float32(2)


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [(scheduled, -4 * X), (indirect, -2 * X[::-1]), (matched, -4 * X)],
    ids=["scheduled", "indirect", "matched"],
)
def test_kernels_of_tvmscript(kernel, expected):
    (result,) = run(between(kernel), "main", X)
    np.testing.assert_array_equal(result, expected)
