"""Sorting against NumPy: stable, in any dtype, and with NaN after every number."""

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.running import function, run

op = relax.op
DTYPES = ["float16", "float32", "float64", "int8", "uint8", "int32", "int64"]


def results(build, x):
    mod = function(lambda builder, x: builder.emit(build(x)), (x.shape, str(x.dtype)))
    return run(mod, "main", x)


def numbers(shape, dtype):
    """Numbers with many ties, and with NaN where there is one."""
    x = np.random.default_rng(0).integers(0, 9, shape).astype(dtype)
    if dtype.startswith("float"):
        x[np.random.default_rng(1).random(shape) < 0.2] = np.nan
    return x


def stable_order(x, axis, descending):
    if not descending:
        return np.argsort(x, axis, kind="stable")
    # Turned round twice, equal elements keep their order.
    backwards = np.flip(np.argsort(np.flip(x, axis), axis, kind="stable"), axis)
    return x.shape[axis] - 1 - backwards


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("descending", [False, True])
def test_every_dtype(dtype, descending):
    x = numbers((3, 37, 2), dtype)
    order = stable_order(x, 1, descending)
    mod = function(
        lambda b, x: b.emit(
            relax.Tuple(
                [
                    b.emit(op.argsort(x, 1, descending, "int64")),
                    b.emit(op.sort(x, -2, descending)),
                ]
            )
        ),
        (x.shape, dtype),
    )
    found, values = run(mod, "main", x)
    np.testing.assert_array_equal(found, order)
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, 1))
    assert values.dtype == x.dtype


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("axis", [0, -1])
def test_topk_takes_the_first_of_ties(axis, largest):
    x = numbers((17, 19), "float32")
    values, index = results(lambda x: op.topk(x, 5, axis, "both", largest, "int64"), x)
    order = np.take(stable_order(x, axis, largest), np.arange(5), axis)
    np.testing.assert_array_equal(index, order)
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, axis))


def test_topk_of_more_elements_than_there_are():
    n = tvm.tirx.Var("n", "int64")
    mod = function(lambda b, x: b.emit(op.topk(x, 3, 0)), ([n], "float64"))
    values, index = run(mod, "main", np.array([1.0, 2.0]))
    np.testing.assert_array_equal(values, [2, 1, np.nan])
    assert index.tolist() == [1, 0, -1]


@pytest.mark.parametrize("length", [0, 1, 2, 3, 64, 65, 1000])
def test_every_length(length):
    x = numbers((2, length), "float64")
    np.testing.assert_array_equal(results(lambda x: op.sort(x, 1), x)[0], np.sort(x, 1))


@pytest.mark.parametrize("length", [0, 1, 1000])
def test_symbolic_length(length):
    n = tvm.tirx.Var("n", "int64")
    mod = function(lambda b, x: b.emit(op.sort(x, 0)), ([n, 2], "float64"))
    x = numbers((length, 2), "float64")
    np.testing.assert_array_equal(run(mod, "main", x)[0], np.sort(x, 0))


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "float64", "int32"])
def test_bucketize(dtype, right):
    x, boundaries = numbers((4, 5), dtype), np.arange(0, 9, 2).astype(dtype)
    types = [(x.shape, dtype), (boundaries.shape, dtype)]
    mod = function(lambda b, *xs: b.emit(op.bucketize(*xs, right=right)), *types)
    expected = np.searchsorted(boundaries, x, "right" if right else "left")
    np.testing.assert_array_equal(run(mod, "main", x, boundaries)[0], expected)
