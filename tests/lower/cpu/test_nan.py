"""Tests for NaN in vectors, by the bits of a float."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import te, tirx

from graphgrad.lower.cpu.nan import vectorize_nan_tests
from tests.lower.kernel_programs import run, tensor


def is_nan(dtype, length):
    x = tensor(length, dtype=dtype)
    return x, te.compute(
        (length,), lambda i: tirx.Select(tirx.isnan(x[i]), 1.0, 0.0), name="is_nan"
    )


def calls_of_isnan(func):
    found = []
    tvm_ffi.structural_walk(func.body, (tvm.ir.Call, found.append))
    return [call for call in found if call.op.same_as(tvm.ir.Op.get("tirx.isnan"))]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_every_kind_of_float(dtype):
    limits = np.finfo(dtype)
    kinds = [0, 1, np.inf, np.nan, limits.max, limits.tiny, limits.smallest_subnormal]
    values = np.array([sign * value for value in kinds for sign in (1, -1)], dtype)
    values = np.tile(values, 4096)
    payloads = values.view(f"uint{8 * values.itemsize}").copy()
    payloads[::7] |= 1  # a NaN of another payload is one still; infinity becomes one
    values = payloads.view(dtype)
    x, y = is_nan(dtype, len(values))
    result = run([x], [y], values=[values], then=vectorize_nan_tests)
    assert "T.vectorized" in result.text
    assert not calls_of_isnan(result.func)
    np.testing.assert_array_equal(result.scheduled[0], np.isnan(values))
    assert result.scheduled[0].any()


def test_loops_that_are_no_vectors_keep_the_test():
    x, y = is_nan("float32", 7)
    result = run([x], [y], then=vectorize_nan_tests)
    assert calls_of_isnan(result.func)


def test_kernels_without_the_test_are_left_as_they_are():
    x = te.placeholder((64,), "float32", "x")
    func = te.create_prim_func([x, te.compute((64,), lambda i: x[i] + 1.0)])
    assert vectorize_nan_tests(func).same_as(func)
