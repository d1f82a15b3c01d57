"""Functions that the code generator lacks in a dtype or in vectors."""

import math

import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx

import graphgrad as gg

LENGTH = 1 << 15  # enough for a schedule to make vectors

FLOATS = pytest.mark.parametrize(
    "dtype, tolerance", [("float16", 2e-3), ("float32", 1e-6), ("float64", 1e-14)]
)

HALF = {
    "acos": np.arccos,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "erf": np.vectorize(math.erf),
    "log1p": np.log1p,
}


def check(function, reference, dtype, tolerance, count=1):
    def kernel(*tensors):
        return te.compute((LENGTH,), lambda i: function(*(tensor[i] for tensor in tensors)))

    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{i}", relax.TensorType((LENGTH,), dtype)) for i in range(count)]
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(builder.call_te(kernel, *params))
        builder.emit_func_output(result)
    run = relax.VirtualMachine(gg.compile(builder.get()), tvm.cpu())["main"]
    generator = np.random.default_rng(0)
    values = [generator.uniform(0.25, 0.75, LENGTH).astype(dtype) for _ in params]
    found = run(*map(tvm.runtime.tensor, values)).numpy()
    expected = reference(*(value.astype("float64") for value in values))
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance / 4)


@FLOATS
@pytest.mark.parametrize("name", ["cosh", "sinh"])
def test_hyperbolic_functions_of_large_tensors(name, dtype, tolerance):
    check(getattr(tirx, name), getattr(np, name), dtype, tolerance)


@FLOATS
def test_remainders(dtype, tolerance):
    check(tirx.fmod, np.fmod, dtype, tolerance, count=2)


@pytest.mark.parametrize("name", HALF)
def test_half_precision(name):
    check(getattr(tirx, name), HALF[name], "float16", 2e-3)


def test_half_precision_of_two_arguments():
    check(tirx.atan2, np.arctan2, "float16", 2e-3, count=2)
