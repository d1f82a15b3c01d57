"""Ops that move elements."""

import numpy as np
import pytest
import tvm
from tvm import relax

import graphgrad as gg
from graphgrad.errors import GraphGradError
from tests.running import F64, function, run

DTYPES = ["float64", "float32", "float16", "int64"]


def call(op, shape, dtype, *arguments, **attributes):
    return function(lambda b, x: b.emit(op(x, *arguments, **attributes)), (shape, dtype))


def counted(*shape, dtype=F64):
    return np.arange(1, 1 + np.prod(shape, dtype=int)).reshape(shape).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 8, 2, 3), (4, 1, 2), (0, 4, 2, 2)], ids=str)
def test_pixel_shuffle(dtype, shape):
    x = counted(*shape, dtype=dtype)
    *lead, channels, height, width = shape
    blocks = x.reshape(-1, channels // 4, 2, 2, height, width).transpose(0, 1, 4, 2, 5, 3)
    (y,) = run(call(relax.op.nn.pixel_shuffle, shape, dtype, 2), "main", x)
    np.testing.assert_array_equal(y, blocks.reshape(*lead, channels // 4, 2 * height, 2 * width))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "repeats", "axis"),
    [((2, 3), 3, 0), ((2, 3), 2, -1), ((2, 3), 2, None), ((), 3, None), ((2, 3), 0, 1)],
    ids=str,
)
def test_repeat(dtype, shape, repeats, axis):
    x = counted(*shape, dtype=dtype)
    (y,) = run(call(relax.op.repeat, shape, dtype, repeats, axis), "main", x)
    np.testing.assert_array_equal(y, np.repeat(x, repeats, axis))


def symbolic_slice_scatter():
    n = tvm.tirx.Var("n", "int64")
    return function(
        lambda b, x, y: b.emit(relax.op.slice_scatter(x, y, n - 2, n, 1, axis=0)),
        ((n, 2), F64),
        ((2, 2), F64),
    )


@pytest.mark.parametrize("extent", [4, "n"])
@pytest.mark.parametrize("strides", [None, [2]])
def test_slice_along_a_negative_axis(extent, strides):
    rows = tvm.tirx.Var(extent, "int64") if extent == "n" else extent
    mod = call(relax.op.strided_slice, (rows, 5), F64, [-1], [1], [4], strides)
    x = counted(4, 5)
    (y,) = run(mod, "main", x)
    np.testing.assert_array_equal(y, x[:, 1 : 4 : strides[0] if strides else 1])


def test_slice_scatter_of_a_symbolic_axis():
    x, y, ct = counted(5, 2), -counted(2, 2), 10 * counted(5, 2)
    z, x_bar, y_bar = run(gg.vjp(symbolic_slice_scatter()), "main_vjp", x, y, ct)
    np.testing.assert_array_equal(z, np.concatenate([x[:3], y]))
    np.testing.assert_array_equal(x_bar, np.concatenate([ct[:3], np.zeros((2, 2))]))
    np.testing.assert_array_equal(y_bar, ct[3:])


@pytest.mark.parametrize(("start", "end", "step"), [(1, 3, 1), (0, 5, 2), (1, 6, 3)])
@pytest.mark.parametrize("dtype", ["float64", "int64"])
def test_slice_scatter(start, end, step, dtype):
    x = counted(3, 6, dtype=dtype)
    expected = x.copy()
    expected[:, start:end:step] = source = -counted(*x[:, start:end:step].shape, dtype=dtype)
    mod = function(
        lambda b, x, y: b.emit(relax.op.slice_scatter(x, y, start, end, step, axis=-1)),
        (x.shape, dtype),
        (source.shape, dtype),
    )
    (y,) = run(mod, "main", x, source)
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("k", [0, -1, 2, 2**31, -(2**40)])
@pytest.mark.parametrize("name", ["tril", "triu"])
def test_triangle(name, k):
    x = counted(2, 3, 4)
    x[0, 0, 3] = x[0, 2, 0] = np.nan
    (y,) = run(call(getattr(relax.op, name), (2, 3, 4), F64, k), "main", x)
    np.testing.assert_array_equal(y, getattr(np, name)(x, k))


def test_collapse_sum_like_adds_half_precision_in_float32():
    ones = np.ones((4096, 1), "float16")
    mod = function(
        lambda b, x, y: b.emit(relax.op.collapse_sum_like(x, y)),
        ((4096, 1), "float16"),
        ((1,), "float16"),
    )
    (total,) = run(mod, "main", ones, ones[0])
    np.testing.assert_array_equal(total, [4096])
    machine = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    stuck = machine["main"](tvm.runtime.tensor(ones), tvm.runtime.tensor(ones[0])).numpy()
    np.testing.assert_array_equal(stuck, [2048])


def test_stock_meshgrid_types_xy_as_ij():
    """The type of the grids is wrong where lengths differ: their gradient is refused."""
    mod = function(
        lambda b, x, y: b.emit(relax.op.meshgrid([x, y], indexing="xy")), ((2,), F64), ((3,), F64)
    )
    grids = run(mod, "main", counted(2), counted(3))
    assert [grid.shape for grid in grids] == [(3, 2), (3, 2)]
    assert [int(extent) for extent in mod["main"].ret_ty.fields[0].shape] == [2, 3]
    with pytest.raises(GraphGradError, match="meshgrid"):
        gg.vjp(mod)
