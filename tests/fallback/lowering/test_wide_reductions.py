"""Reductions of narrow floats: summed in float32, rounded once, otherwise what they were."""

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from graphgrad.fallback import create_prim_func
from tests.fallback.interpreter import numpy_dtype
from tests.fallback.running import run, unwritten

NARROW = ["float16", "bfloat16"]
COUNT = 4096
"""A sum of as many ones ends at 2,048 in float16, at 256 in bfloat16."""


def reduced(combine, dtype, values, **options):
    """Return the reduction of a vector by a kernel."""
    x = te.placeholder(values.shape, dtype, name="x")
    k = te.reduce_axis((0, values.shape[0]), "k")
    y = te.compute((), lambda: combine(x(k), axis=k, **options), name="y")
    *_, given = run(create_prim_func([x, y]), values.astype(numpy_dtype(dtype)), *unwritten(y))
    return given.astype("float64")


def combiner(combine, start):
    return te.comm_reducer(combine, lambda dtype: tirx.const(start, dtype))


@pytest.mark.parametrize("dtype", NARROW)
def test_sums(dtype):
    assert reduced(te.sum, dtype, np.ones(COUNT)) == COUNT
    some = reduced(te.sum, dtype, np.ones(COUNT), init=tirx.const(8, dtype))
    assert some == COUNT + (0 if dtype == "bfloat16" else 8)  # which is half of a last place


@pytest.mark.parametrize("dtype", NARROW)
def test_sums_under_a_condition(dtype):
    x = te.placeholder((COUNT,), dtype, name="x")
    k = te.reduce_axis((0, COUNT), "k")
    y = te.compute((2,), lambda i: te.sum(x(k), axis=k, where=k % 2 >= i), name="y")
    *_, given = run(create_prim_func([x, y]), np.ones(COUNT, numpy_dtype(dtype)), *unwritten(y))
    np.testing.assert_array_equal(given.astype("float64"), [COUNT, COUNT / 2])


@pytest.mark.parametrize("dtype", NARROW)
def test_other_combiners(dtype):
    unit = float(np.finfo(numpy_dtype(dtype)).eps) if dtype == "float16" else 2.0**-7
    factors = np.full(1024, 1 + unit)
    product = reduced(combiner(lambda a, b: a * b, 1.0), dtype, factors)
    np.testing.assert_allclose(product, (1 + unit) ** 1024, rtol=unit)
    mean = combiner(lambda a, b: a + b * tirx.const(1 / COUNT, b.ty), 0.0)
    np.testing.assert_allclose(reduced(mean, dtype, np.ones(COUNT)), 1.0)


@pytest.mark.parametrize("dtype", NARROW)
def test_a_combiner_of_bits(dtype):
    """It drops the last bits of each sum as the narrow dtype has it."""

    def cut(a, b):
        bits = tirx.reinterpret("uint16", a + b)
        return tirx.reinterpret(dtype, bits & tirx.const(0xFFFC, "uint16"))

    narrow = numpy_dtype(dtype)
    values = np.random.default_rng(0).uniform(0.5, 1.5, 20).astype(narrow)
    total = np.float32(0)
    for value in values:
        total = np.float32(total + np.float32(value)).astype(narrow)
        total = (total.view("uint16") & np.uint16(0xFFFC)).view(narrow).astype("float32")
    assert reduced(combiner(cut, 0.0), dtype, values.astype("float64")) == total


@pytest.mark.parametrize("dtype", NARROW)
def test_products_that_are_summed(dtype):
    """Neither the product leaves the range, nor does a condition around it hide it."""
    x, y = (te.placeholder((4,), dtype, name=name) for name in "xy")
    k = te.reduce_axis((0, 4), "k")
    zero = tirx.const(0, dtype)

    def body(i):
        return te.sum(tirx.if_then_else(k >= i, x(k) * y(k) - y(k), zero), axis=k)

    dot = te.compute((2,), body, name="dot")
    a, b = np.array([3, 512, -512, 2]), np.array([2, 512, 512, 1024])
    arrays = [v.astype(numpy_dtype(dtype)) for v in (a, b)]
    *_, given = run(create_prim_func([x, y, dot]), *arrays, *unwritten(dot))
    np.testing.assert_array_equal(given.astype("float64"), [4, 0])


@pytest.mark.parametrize("dtype", NARROW)
def test_some_components_in_another_order(dtype):
    """Each has its own dtype; what is not narrow needs no rounding."""
    x, k = te.placeholder((COUNT,), dtype, name="x"), te.reduce_axis((0, COUNT), "k")
    sums = te.comm_reducer(
        lambda a, b: tuple(m + n for m, n in zip(a, b, strict=True)),
        lambda *dtypes: tuple(tirx.const(0, t) for t in dtypes),
    )
    one = tirx.const(1, "int32")
    _, count, total = te.compute((), lambda: sums((-x(k), one, x(k)), axis=k), name="sums")
    func = create_prim_func([x, total, count])
    _, whole, number = run(func, np.ones(COUNT, numpy_dtype(dtype)), *unwritten(total, count))
    assert whole == COUNT and whole.dtype == numpy_dtype(dtype)
    assert number == COUNT and number.dtype == "int32"


@pytest.mark.parametrize("dtype", NARROW)
def test_over_nothing(dtype):
    values = np.zeros(0)
    assert reduced(te.sum, dtype, values) == 0
    assert reduced(te.sum, dtype, values, init=tirx.const(3, dtype)) == 3


def test_extremes_are_left_to_tvm():
    """The largest of some numbers is one of them."""
    x, k = te.placeholder((3, 4), "float16", name="x"), te.reduce_axis((0, 4), "k")
    y = te.compute((3,), lambda i: te.max(x(i, k), axis=k), name="y")
    tvm.ir.assert_structural_equal(create_prim_func([x, y]), te.create_prim_func([x, y]))


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("combine", [te.max, te.min])
def test_extremes(combine, dtype):
    values = np.array([-3.0, -1.0, -7.0, -1.0])
    expected = values.max() if combine is te.max else values.min()
    assert reduced(combine, dtype, values) == expected
