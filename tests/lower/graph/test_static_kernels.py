"""Kernels of symbolic extents, called on tensors of known shape."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, te, tirx
from tvm.script import tirx as T

import graphgrad as gg
from graphgrad.lower.graph.static_kernels import specialize_kernels
from tests.running import function, run

F32 = "float32"


def doubled():
    n = tirx.Var("n", "int64")
    x = te.placeholder((n, 2), F32, name="x")
    y = te.compute((n, 2), lambda i, j: x[i, j] * 2.0, name="y")
    return gg.fallback.create_prim_func([x, y], index_dtype_override="int64")


def tiled():
    """A kernel that takes an extent and a factor as scalars."""
    n, count, factor = (tirx.Var(name, "int64") for name in ("n", "count", "factor"))
    x = te.placeholder((n,), F32, name="x")
    y = te.compute((count,), lambda i: x[i % n] * factor.astype(F32), name="y")
    return gg.fallback.create_prim_func([x, count, factor, y], index_dtype_override="int64")


def calling(kernel, shapes, scalars=(), result=None):
    """Return a module that calls a kernel on a tensor of each shape."""

    def build(builder, *params):
        variable = builder.add_func(kernel, "kernel")
        calls = [
            relax.call_tir(
                variable,
                relax.Tuple([param, *(tirx.IntImm("int64", scalar) for scalar in scalars)]),
                relax.TensorType(result or param.ty.shape, F32),
            )
            for param in params
        ]
        return builder.emit(relax.Tuple([builder.emit(call) for call in calls]))

    return function(build, *((shape, F32) for shape in shapes))


def between(kernel):
    """Return a module that calls a kernel between ops that TVM would fuse with it."""

    def build(builder, x):
        variable = builder.add_func(kernel, "kernel")
        sum_ = builder.emit(relax.op.add(x, x))
        call = relax.call_tir(variable, relax.Tuple([sum_]), relax.TensorType((3, 2), F32))
        return builder.emit(relax.op.negative(builder.emit(call)))

    return function(build, ((3, 2), F32))


def called(mod):
    """Return the kernels that are called, by name, in order."""
    names = []

    def visit(call):
        if isinstance(call.op, tvm.ir.Op) and call.op.name == "relax.call_tir":
            names.append(call.args[0].name_hint)

    tvm_ffi.structural_walk(mod["main"], (tvm.ir.Call, visit))
    return names


def extents(kernel):
    return [list(getattr(param.ty, "shape", [])) for param in kernel.params]


def test_each_shape_gets_a_kernel_and_equal_calls_share_one():
    mod = specialize_kernels(calling(doubled(), [(3, 2), (5, 2), (3, 2)]))
    first, second, third = called(mod)
    assert first == third != second
    assert extents(mod[first]) == [[3, 2], [3, 2]]
    assert extents(mod[second]) == [[5, 2], [5, 2]]


def test_static_kernels_compute_the_same():
    mod = specialize_kernels(calling(doubled(), [(3, 2), (5, 2)]))
    x, y = np.arange(6.0, dtype=F32).reshape(3, 2), np.ones((5, 2), F32)
    for given, result in zip((x, y), run(mod, "main", x, y), strict=True):
        np.testing.assert_array_equal(result, 2 * given)


def test_scalars_become_numbers_and_stay_parameters():
    mod = specialize_kernels(calling(tiled(), [(2,)], scalars=(6, 3), result=(6,)))
    (name,) = called(mod)
    assert extents(mod[name]) == [[2], [], [], [6]]
    names = []
    tvm_ffi.structural_walk(mod[name].body, (tirx.Var, lambda var: names.append(var.name)))
    assert not {"n", "count", "factor"} & set(names)
    x = np.array([1.0, 2.0], F32)
    (result,) = run(mod, "main", x)
    np.testing.assert_array_equal(result, 3 * np.tile(x, 3))


def test_calls_of_symbolic_shape_are_left_alone():
    mod = calling(doubled(), [(tirx.Var("rows", "int64"), 2)])
    tvm.ir.assert_structural_equal(specialize_kernels(mod), mod)


def test_symbolic_kernel_between_static_ones_is_fused():
    """Stock fusion took what it reads for another tensor than what is written, and aborted."""
    x = np.arange(6.0, dtype=F32).reshape(3, 2)
    (result,) = run(between(doubled()), "main", x)
    np.testing.assert_array_equal(result, -4 * x)


@T.prim_func(s_tir=True)
def bare_loops(x: T.Buffer((3, 2), "float32"), y: T.Buffer((3, 2), "float32")):
    for i in range(3):
        for j in range(2):
            y[i, j] = x[i, j] * T.float32(2)


@T.prim_func
def low_level(x: T.Buffer((3, 2), "float32"), y: T.Buffer((3, 2), "float32")):
    for i in range(3):
        for j in range(2):
            y[i, j] = x[i, j] * T.float32(2)


@T.prim_func(s_tir=True)
def running_sums(x: T.Buffer((3, 2), "float32"), y: T.Buffer((3, 2), "float32")):
    for j in range(2):
        y[0, j] = x[0, j]
    for i in range(2):
        for j in range(2):
            y[i + 1, j] = y[i, j] + x[i + 1, j]


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        (bare_loops, lambda x: 2 * x),
        (low_level, lambda x: 2 * x),
        (running_sums, lambda x: np.cumsum(x, axis=0)),
    ],
    ids=["bare_loops", "low_level", "running_sums"],
)
def test_kernels_without_blocks_stand_between_ops(kernel, expected):
    """Stock fusion looks into the block of each kernel, and aborted."""
    x = np.arange(6.0, dtype=F32).reshape(3, 2)
    (result,) = run(between(kernel), "main", x)
    np.testing.assert_array_equal(result, -expected(2 * x))
