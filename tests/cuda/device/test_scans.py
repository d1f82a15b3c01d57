"""Running sums and products along long axes, and their gradients, on a CUDA device."""

from functools import cache

import numpy as np
import pytest
import tvm
from tvm import relax

import graphgrad as gg
from tests.cuda.device.running import Program

op = relax.op

CASES = {
    "parts": (lambda x: op.cumsum(x, 1), "float32", (2, 5003)),
    "one-row": (op.cumsum, "float32", (4099,)),
    "parts-of-parts": (lambda x: op.cumsum(x, 0), "float64", (70001,)),
    "chunks": (lambda x: op.cumsum(x, 1, exclusive=True), "float32", (37, 131)),
    "columns": (lambda x: op.cumsum(x, 1), "float32", (3, 70, 5)),
    "halves": (lambda x: op.cumsum(x, 1), "bfloat16", (3, 2100)),
    "products": (lambda x: op.cumprod(x, 1), "float32", (5, 300)),
    "products-before": (lambda x: op.cumprod(x, 0, exclusive=True), "float64", (2060, 2)),
}


@cache
def program():
    mod = tvm.IRModule()
    for name, (function, dtype, shape) in CASES.items():
        x = relax.Var("x", relax.TensorType(list(shape), dtype))
        builder = relax.BlockBuilder()
        with builder.function(name, [x]):
            with builder.dataflow():
                result = builder.emit_output(function(x))
            builder.emit_func_output(result)
        both = gg.vjp(builder.get(), name)
        del both[name]  # its gradient gives its value, too
        mod.update(both)
    return Program(mod)


@pytest.mark.parametrize("name", CASES)
def test_scans(name):
    _, dtype, shape = CASES[name]
    generator = np.random.default_rng(0)
    near_one = "products" in name
    x = generator.uniform(0.9, 1.1, shape) if near_one else generator.uniform(-1.5, 1.5, shape)
    ct = generator.uniform(-1.5, 1.5, shape)
    program().check(f"{name}_vjp", x.astype(dtype), ct.astype(dtype))


def test_integers_are_exact():
    x = relax.Var("x", relax.TensorType([2, 3001], "int64"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(op.cumsum(x, 1)))
    numbers = np.random.default_rng(0).integers(-(2**40), 2**40, (2, 3001))
    (result,) = Program(builder.get()).check("main", numbers)
    np.testing.assert_array_equal(result, numbers.cumsum(1))
