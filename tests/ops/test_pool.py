"""Pooling's own ops: which element a window's maximum is, and windows that read nothing."""

import numpy as np
import pytest
from tvm import relax

import graphgrad as gg
from graphgrad.ir.tensor import Emitter
from graphgrad.ops.pool import max_pool, max_pool_index, max_pool_position
from graphgrad.ops.pool_windows import Pool
from tests.running import F64, function, run

NAN, INF = np.nan, np.inf


def index_of(x, pool, position=False, **options):
    """Return the taps of the maxima of x, or their positions."""

    def build(builder, variable):
        data = Emitter(builder).lift(variable)
        index = max_pool_index(data, max_pool(data, pool), pool)
        if position:
            index = max_pool_position(index, data.shape, pool, **options)
        return index.expr

    return run(function(build, (x.shape, str(x.dtype))), "main", x)[0]


def gradient(x, **windows):
    """Return the gradient of the sum of a two-dimensional max pooling."""
    pool = relax.op.nn.max_pool2d
    mod = function(lambda b, v: b.emit(pool(v, **windows)), (x.shape, F64))
    outputs = run(mod, "main", x)[0]
    return run(gg.vjp(mod), "main_vjp", x, np.ones_like(outputs))[1]


ROW = Pool((3,), (3,), (0, 0), (1,))


@pytest.mark.parametrize(
    ("values", "tap"),
    [
        ([1.0, 2.0, 3.0], 2),
        ([2.0, 2.0, 1.0], 0),
        ([NAN, 5.0, NAN], 0),
        ([1.0, NAN, 5.0], 1),
        ([-INF, -INF, -INF], 0),
        ([-0.0, 0.0, -1.0], 0),
    ],
    ids=str,
)
def test_the_first_maximum_is_meant(values, tap):
    assert index_of(np.array([[values]]), ROW) == tap


def test_of_integers():
    assert index_of(np.array([[[1, 7, 7]]], "int32"), ROW) == 1


def test_a_window_in_the_padding_has_no_maximum():
    pool = Pool((2,), (2,), (2, 2), (1,))
    assert index_of(np.ones((1, 1, 2)), pool).tolist() == [[[2, 0, 2]]]


@pytest.mark.parametrize("column_major", [False, True])
def test_positions_count_over_all_axes(column_major):
    x = np.arange(24.0).reshape(1, 2, 3, 4)
    pool = Pool((2, 2), (1, 2), (0, 0, 0, 0), (1, 1))
    flat = index_of(x, pool, position=True, column_major=column_major)
    channel, row, column = np.indices((2, 2, 2))
    h, v = row + 1, 2 * column + 1  # values grow: the last element of each window
    expected = 12 * channel + (3 * v + h if column_major else 4 * h + v)
    np.testing.assert_array_equal(flat[0], expected)


def test_elements_that_no_window_covers_get_zero():
    """TVM's own gradient is garbage there."""
    x = np.arange(25.0).reshape(1, 1, 5, 5)
    expected = np.zeros((5, 5))
    expected[1:4:2, 1:4:2] = 1
    np.testing.assert_array_equal(gradient(x, pool_size=2, strides=2)[0, 0], expected)


def test_windows_in_the_padding_send_nothing():
    x = np.arange(9.0).reshape(1, 1, 3, 3)
    ones = gradient(x, pool_size=2, strides=2, padding=3)
    inner = gradient(x, pool_size=2, strides=2, padding=1)
    np.testing.assert_array_equal(ones, inner)


def test_an_element_of_several_windows_gets_the_sum():
    x = np.zeros((1, 1, 3, 3))
    x[0, 0, 1, 1] = 1
    expected = np.zeros_like(x)
    expected[0, 0, 1, 1] = 4
    np.testing.assert_array_equal(gradient(x, pool_size=2, strides=1), expected)


def test_the_gradient_goes_to_nan():
    x = np.array([[[[1.0, NAN], [3.0, 4.0]]]])
    np.testing.assert_array_equal(gradient(x, pool_size=2), [[[[0, 1], [0, 0]]]])


def test_no_windows_send_nothing():
    """Along an axis shorter than the window there are none."""
    x = np.ones((1, 1, 2, 3))
    np.testing.assert_array_equal(gradient(x, pool_size=(3, 1)), np.zeros_like(x))
