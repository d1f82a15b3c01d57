"""Contractions of ours on tensor cores: values and gradients are those of float64 on the host."""

from functools import cache

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx

import graphgrad as gg
from graphgrad.check import flat
from graphgrad.ir.arrays import to_tensor
from graphgrad.lower.cuda.compiler import executable_sources
from tests.cuda.device.running import gpu, twice
from tests.running import function

nn, permute = relax.op.nn, relax.op.permute_dims

TOLERANCE = {"bfloat16": 1e-2, "float16": 1.5e-3, "tf32": 1.5e-3}
"""Of results that are rounded once or twice, relative to the largest number of a tensor."""


def product(x, y, dtype="float32"):
    """Return Σ x·y over the last axes of both, with sums in a dtype, rounded to that of x."""
    k = te.reduce_axis((0, x.shape[1]), "k")
    summed = te.compute(
        (x.shape[0], y.shape[0]),
        lambda i, j: te.sum(x[i, k].astype(dtype) * y[j, k].astype(dtype), axis=k),
        name="product",
    )
    return te.compute(summed.shape, lambda i, j: summed[i, j].astype(x.dtype), name="rounded")


def from_above(x, y):
    """A tensor expression with a map of each operand, one of them over a border of zeros."""
    length = x.shape[1] - 2

    def shifted(i, j):
        inside = tirx.all(j >= 1, j < length)
        return tirx.if_then_else(inside, x[i, j - 1], tirx.const(0, x.dtype))

    left = te.compute((x.shape[0], length), shifted, name="shifted")
    right = te.compute((y.shape[0], length), lambda i, j: te.exp(y[i, j]), name="exponentials")
    return product(left, right, "float64" if str(x.dtype) == "float64" else "float32")


def te_call(function):
    return lambda b, *tensors: b.emit(gg.call_te(function, *tensors, name=function.__name__))


def biased(b, x, w, bias, residual):
    """A layer whose epilogue computes a function, and reads two more tensors."""
    y = b.emit(relax.op.add(b.emit(relax.op.matmul(x, w)), bias))
    return b.emit(relax.op.add(b.emit(nn.silu(y)), residual))


def conv(**options):
    return lambda b, x, w: b.emit(nn.conv2d(x, w, **options))


LAST = {"data_layout": "NHWC", "kernel_layout": "OHWI"}

CASES = {
    "odd": (lambda b, x, y: b.emit(relax.op.matmul(x, y)), (37, 19), (19, 53)),
    "turned": (
        lambda b, x, y: b.emit(relax.op.matmul(b.emit(permute(x)), b.emit(permute(y)))),
        (64, 40),
        (72, 64),
    ),
    "batched": (lambda b, x, y: b.emit(relax.op.matmul(x, y)), (3, 17, 40), (3, 40, 24)),
    "long": (lambda b, x, y: b.emit(relax.op.matmul(x, y)), (9, 1536), (1536, 12)),
    "epilogue": (biased, (24, 32), (32, 40), (40,), (24, 40)),
    "first": (conv(strides=1, padding=1), (2, 8, 9, 7), (12, 8, 3, 3)),
    "last": (conv(strides=2, padding=1, **LAST), (2, 10, 10, 16), (24, 3, 3, 16)),
    "groups first": (conv(padding=1, groups=2), (2, 20, 5, 6), (18, 10, 3, 3)),
    "groups last": (conv(strides=2, padding=1, groups=3, **LAST), (2, 9, 9, 27), (48, 3, 3, 9)),
    "expression": (te_call(from_above), (18, 26), (20, 24)),
}
"""Functions of tensors, and their shapes: extents that fill tiles and words, and that do not."""


HALF = ("odd", "epilogue")
"""Those that are computed in float16, too: only a dtype is another one than in bfloat16."""


@cache
def gradients(dtype):
    """The values and the gradients of all cases, in one module."""
    mod = tvm.IRModule()
    for name in HALF if dtype == "float16" else CASES:
        build, *shapes = CASES[name]
        params = [
            relax.Var(f"p{i}", relax.TensorType(list(shape), dtype))
            for i, shape in enumerate(shapes)
        ]
        builder = relax.BlockBuilder()
        with builder.function(name, params):
            with builder.dataflow():
                result = builder.emit_output(build(builder, *params))
            builder.emit_func_output(result)
        mod.update(gg.vjp(builder.get(), name))
    return mod


@cache
def exact():
    return relax.VirtualMachine(gg.compile(gradients("float64")), tvm.cpu())


def on_device(mod, number):
    compiled = gg.compile(mod, gpu(), libraries=False, tf32=number == "tf32")
    assert all("mma.sync" in source for source in executable_sources(compiled))
    return relax.VirtualMachine(compiled, tvm.cuda())


@cache
def device(number):
    return on_device(gradients("float32" if number == "tf32" else number), number)


def rounded(array, number):
    """Return numbers that the tensor cores take as they are."""
    if number == "tf32":
        return (array.astype("float32").view("uint32") & np.uint32(0xFFFFE000)).view("float32")
    return array.astype(number if number == "float16" else ml_dtypes.bfloat16)


def check(vm, reference, name, shapes, number):
    generator = np.random.default_rng(0)
    arrays = [rounded(generator.uniform(-1, 1, shape), number) for shape in shapes]
    given = [to_tensor(array, tvm.cuda()) for array in arrays]
    results = twice(lambda: flat(vm[name](*given)))
    expected = flat(reference[name](*(to_tensor(array.astype("float64")) for array in arrays)))
    for result, value in zip(results, expected, strict=True):
        largest = np.abs(value).max()
        assert largest > 0
        np.testing.assert_allclose(
            result.astype("float64"), value, rtol=0, atol=TOLERANCE[number] * largest
        )


@pytest.mark.parametrize(
    ("number", "name"),
    [(n, c) for n in TOLERANCE for c in CASES if n != "float16" or c in HALF],
)
def test_values_and_gradients(number, name):
    result = gradients("float64")[name].ret_ty.shape.values
    shapes = [*CASES[name][1:], [int(extent) for extent in result]]
    check(device(number), exact(), f"{name}_vjp", shapes, number)


def test_sums_in_halves_are_rounded_once():
    """A user's kernel that adds up in float16: its terms would lose all but three digits."""

    shapes = [(8, 2048), (16, 2048)]

    def module(dtype):
        def build(b, x, y):
            return b.emit_te(product, x, y, dtype)

        return function(build, *((shape, dtype) for shape in shapes))

    reference = relax.VirtualMachine(gg.compile(module("float64")), tvm.cpu())
    check(on_device(module("float16"), "float16"), reference, "main", shapes, "float16")
