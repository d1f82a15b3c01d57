"""Pooling on special values, in half precision and in all layouts, against numpy."""

import ml_dtypes
import numpy as np
import pytest
from tvm import relax

import graphgrad as gg
from tests.differential import differential
from tests.running import F64, function, run

nn = relax.op.nn
INF, NAN = np.inf, np.nan


def program(name, shape, dtype=F64, **attributes):
    call = getattr(nn, name)
    return function(lambda builder, x: builder.emit(call(x, **attributes)), (shape, dtype))


@pytest.mark.parametrize("position", range(3))
def test_a_maximum_keeps_nan(position):
    x = np.array([[[1.0, 3.0, 2.0]]])
    x[0, 0, position] = NAN
    mod = program("max_pool1d", x.shape, pool_size=3, strides=1)
    assert np.isnan(run(mod, "main", x)[0])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_window_without_finite_numbers_gives_minus_infinity(dtype):
    x = np.array([[[-INF, -INF]]], dtype)
    windows = {"pool_size": 2, "strides": 2, "padding": 2}
    mod = program("max_pool1d", x.shape, dtype, **windows)
    np.testing.assert_array_equal(run(mod, "main", x)[0], [[[-INF, -INF, -INF]]])


@pytest.mark.parametrize("dtype", ["float16", ml_dtypes.bfloat16])
def test_max_pooling_in_half_precision(dtype):
    x = np.array([[[1.0, 3.0, NAN, 2.0]]]).astype(dtype)
    mod = program("max_pool1d", x.shape, str(x.dtype), pool_size=2, strides=2)
    y, gradient = run(gg.vjp(mod), "main_vjp", x, np.ones((1, 1, 2)).astype(dtype))
    np.testing.assert_array_equal(y.astype(F64), [[[3.0, NAN]]])
    np.testing.assert_array_equal(gradient.astype(F64), [[[0.0, 1.0, 1.0, 0.0]]])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
def test_a_maximum_of_integers(dtype):
    low = np.iinfo(dtype).min
    x = np.array([[[low, 3, low, low]]], dtype)
    mod = program("max_pool1d", x.shape, dtype, pool_size=2, strides=2)
    assert run(mod, "main", x)[0].tolist() == [[[3, low]]]


def test_an_average_in_half_precision_adds_up_in_float32():
    x = np.full((1, 1, 4096), 0.1, "float16")
    mod = program("avg_pool1d", x.shape, "float16", pool_size=4096, strides=1)
    assert run(mod, "main", x)[0] == x[0, 0, 0]


@pytest.mark.parametrize(
    ("name", "layout", "out_layout"),
    [
        ("max_pool1d", "NWC", "NCW"),
        ("avg_pool2d", "NHWC", "NCHW"),
        ("max_pool2d", "NCHW", "NHWC"),
        ("avg_pool3d", "NDHWC", "NCDHW"),
        ("adaptive_avg_pool2d", "NCHW", "NHWC"),
    ],
)
def test_another_layout_of_the_output(name, layout, out_layout):
    canonical = {3: "NCW", 4: "NCHW", 5: "NCDHW"}[len(layout)]
    x = np.random.default_rng(0).uniform(-1, 1, (2, 3, 4, 5, 6)[: len(layout)])
    adaptive = name.startswith("adaptive")
    windows = {"output_size": 2} if adaptive else {"pool_size": 2, "strides": 1, "padding": 1}
    (expected,) = run(program(name, x.shape, layout=canonical, **windows), "main", x)
    moved = x.transpose([canonical.index(axis) for axis in layout])
    mod = program(name, moved.shape, layout=layout, out_layout=out_layout, **windows)
    (y,) = run(mod, "main", np.ascontiguousarray(moved))
    np.testing.assert_allclose(
        y, expected.transpose([canonical.index(axis) for axis in out_layout]), rtol=1e-12
    )


def test_adaptive_pooling_without_a_size_is_the_identity():
    x = np.arange(6.0).reshape(1, 2, 3)
    mod = program("adaptive_avg_pool1d", x.shape)
    np.testing.assert_array_equal(run(mod, "main", x)[0], x)


def test_an_adaptive_average_in_half_precision_adds_up_in_float32():
    x = np.full((1, 1, 64, 64), 0.1, "float16")
    mod = program("adaptive_avg_pool2d", x.shape, "float16", output_size=1)
    assert run(mod, "main", x)[0] == x[0, 0, 0, 0]


WINDOWS = [
    {"pool_size": (3, 3), "strides": (2, 2), "padding": (1, 1, 1, 1)},
    {"pool_size": (3, 2), "strides": (2, 1), "padding": (1, 0, 0, 1)},
    {"pool_size": (3, 3), "strides": (2, 2), "ceil_mode": True, "count_include_pad": True},
    {"pool_size": (2, 2), "padding": (1, 1, 1, 1), "layout": "NHWC"},
    {"pool_size": (2, 2), "strides": (2, 2), "padding": (1, 1, 1, 1), "out_layout": "NHWC"},
]


@pytest.mark.parametrize("name", ["max_pool2d", "avg_pool2d"])
@pytest.mark.parametrize("windows", WINDOWS, ids=str)
def test_gradients_of_tvm_are_ours(name, windows):
    """Those that TVM's own transform writes; its lowering reads behind the last window."""
    mod = program(name, (2, 5, 7, 6), **windows)
    outputs = [int(extent) for extent in mod["main"].ret_ty.shape]
    generator = np.random.default_rng(0)
    x, ct = generator.standard_normal((2, 5, 7, 6)), generator.standard_normal(outputs)
    backward = getattr(relax.op.grad, f"{name}_backward")
    theirs = function(
        lambda b, ct, x: b.emit(backward(ct, x, **windows)), (outputs, F64), (x.shape, F64)
    )
    _, expected = run(gg.vjp(mod), "main_vjp", x, ct)
    with differential():
        for _ in range(2):  # with guards at the other ends
            found = run(theirs, "main", ct, x)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
