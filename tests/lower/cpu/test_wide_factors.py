"""Tests that contractions of half precision multiply float32, and compute the same."""

import ml_dtypes
import numpy as np
import pytest
from tvm import te

from graphgrad.ir.kernel_structure import stages
from graphgrad.lower.cpu.tuning import AVX2
from graphgrad.lower.cpu.wide_factors import widen_factors
from tests.lower.kernel_programs import run, tensor


def product(m, k, n, dtype):
    a, b = tensor(m, k, dtype=dtype, name="a"), tensor(k, n, dtype=dtype, name="b")
    r = te.reduce_axis((0, k), name="r")
    sums = te.compute(
        (m, n),
        lambda i, j: te.sum(a[i, r].astype("float32") * b[r, j].astype("float32"), axis=r),
        name="sums",
    )
    return [a, b], [te.compute((m, n), lambda i, j: sums[i, j].astype(dtype), name="rounded")]


def names(func):
    return [stage.name for stage in stages(func)]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_products(dtype):
    inputs, outputs = product(40, 24, 56, dtype)
    func = te.create_prim_func([*inputs, *outputs])
    assert names(widen_factors(func, AVX2)) == ["a_wide", "b_wide", "sums", "rounded"]
    generator = np.random.default_rng(0)
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16
    a, b = (generator.standard_normal(shape).astype(kind) for shape in ((40, 24), (24, 56)))
    results = run(
        inputs,
        outputs,
        values=[a, b],
        make=lambda tensors: widen_factors(te.create_prim_func(tensors), AVX2),
    )
    expected = (a.astype("float32") @ b.astype("float32")).astype(kind).astype("float32")
    unit = float(ml_dtypes.finfo(kind).eps)
    for result in (results.stock[0], results.scheduled[0]):
        # A sum in another order may be rounded to the neighbor.
        np.testing.assert_allclose(result.astype("float32"), expected, rtol=2 * unit, atol=unit)


def test_a_factor_that_is_read_a_few_times_stays():
    inputs, outputs = product(4, 64, 64, "float16")
    func = te.create_prim_func([*inputs, *outputs])
    # Each element of b is multiplied by the four rows of a, each of a by 64 columns.
    assert names(widen_factors(func, AVX2)) == ["a_wide", "sums", "rounded"]


def test_one_tensor_that_is_both_factors_is_converted_once():
    x = tensor(32, 32, dtype="float16")
    r = te.reduce_axis((0, 32), name="r")
    square = te.compute(
        (32, 32),
        lambda i, j: te.sum(x[i, r].astype("float32") * x[r, j].astype("float32"), axis=r),
        name="square",
    )
    assert names(widen_factors(te.create_prim_func([x, square]), AVX2)) == ["x_wide", "square"]
    run([x], [square], make=lambda ts: widen_factors(te.create_prim_func(ts), AVX2)).agree()


@pytest.mark.parametrize(
    "dtype, extent", [("float32", 32), ("float16", te.var("n", "int64"))], ids=str
)
def test_float32_and_symbolic_shapes_are_left_alone(dtype, extent):
    x = te.placeholder((extent, 32), dtype, "x")
    w = tensor(32, 32, dtype=dtype, name="w")
    r = te.reduce_axis((0, 32), name="r")
    sums = te.compute(
        (extent, 32),
        lambda i, j: te.sum(x[i, r].astype("float32") * w[r, j].astype("float32"), axis=r),
        name="sums",
    )
    assert "x_wide" not in names(widen_factors(te.create_prim_func([x, w, sums]), AVX2))
