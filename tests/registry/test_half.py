"""Half precision: sums and contractions are taken in float32, gradients have the primal's dtype."""

import ml_dtypes
import numpy as np
import pytest
from tvm import relax

import graphgrad as gg
from tests.running import function, run

DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
op = relax.op


@pytest.mark.parametrize("dtype", DTYPES)
def test_matmul_adds_up_in_float32(dtype):
    n = 8192
    mod = function(lambda b, x, w: b.emit(op.matmul(x, w)), ((n, 1), dtype), ((1, 1), dtype))
    x = np.ones((n, 1), DTYPES[dtype])
    gradient = run(gg.vjp(mod), "main_vjp", x, x[:1], x)[2]
    assert gradient.dtype == DTYPES[dtype]
    assert float(gradient[0, 0]) == n


@pytest.mark.parametrize(
    ("build", "shapes"),
    [
        (lambda x, w: op.matmul(x, w, out_dtype="float32"), ((4, 3), (3, 2))),
        (lambda x, w: op.matmul(x, w, out_dtype="float32"), ((3,), (3, 2))),
        (lambda x, w: op.nn.conv2d(x, w, out_dtype="float32"), ((1, 2, 4, 4), (2, 2, 3, 3))),
    ],
    ids=["matmul", "vector", "conv2d"],
)
def test_wider_output_dtype(build, shapes):
    generator = np.random.default_rng(0)
    x, w = (generator.uniform(-1, 1, shape).astype("float16") for shape in shapes)

    def gradients(dtype):
        types = [(shape, dtype) for shape in shapes]
        mod = function(lambda b, x, w: b.emit(build(x, w)), *types)
        y = run(mod, "main", x.astype(dtype), w.astype(dtype))[0]
        return run(gg.vjp(mod), "main_vjp", x.astype(dtype), w.astype(dtype), np.ones_like(y))[1:]

    for half, single in zip(gradients("float16"), gradients("float32"), strict=True):
        assert half.dtype == np.float16
        np.testing.assert_allclose(half, single, rtol=1e-2, atol=1e-2)


def test_mean_over_more_elements_than_float16_can_count():
    mod = gg.vjp(function(lambda b, x: b.emit(op.mean(x)), ((100_000,), "float16")))
    bindings = mod["main_vjp"].body.blocks[0].bindings
    divisions = [b.var for b in bindings if str(b.value).startswith("R.divide")]
    assert [str(var.ty.dtype) for var in divisions] == ["float32"]
