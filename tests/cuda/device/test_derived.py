"""Kernels whose gradients are derived give on a CUDA device what they give on the host."""

from functools import cache

import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx, topi

import graphgrad as gg
from tests.cuda.device.running import Program
from tests.derived_nets import CELLS, table_of_windows


def swirl(x):
    return te.compute(x.shape, lambda i, j: te.sin(x[i, j]) * x[i, 4 - j], name="swirl")


def gathered(x, index):
    return te.compute((9, 5), lambda p, q: x[index[p], q], name="gathered")


def histogram(x, index):
    """Sums of rows by a scatter stage; its gradient gathers."""
    return topi.scatter_nd(
        te.compute((8, 5), lambda *_: tirx.const(0, x.dtype), name="empty"),
        topi.expand_dims(index, 0),
        x,
        "add",
    )


def products(x, index):
    """Products at the rows that are chosen; its gradient goes through them backwards."""
    return topi.scatter_nd(
        te.compute((8, 5), lambda *_: tirx.const(2, x.dtype), name="twos"),
        topi.expand_dims(index, 0),
        x,
        "mul",
    )


def scanned(x):
    states = te.placeholder(x.shape, x.dtype, "states")
    half = tirx.const(0.5, x.dtype)
    first = te.compute((1, x.shape[1]), lambda _, j: x[0, j], name="first")
    step = te.compute(x.shape, lambda t, j: te.tanh(states[t - 1, j] * half + x[t, j]), name="step")
    return te.scan(first, step, states)


def max_pool(x):
    return topi.nn.pool2d(x, [3, 3], [2, 2], [1, 1], [1, 1, 1, 1], "max")


INDEX = ("int32", 9)
CASES = {
    "map": (swirl, (6, 5)),
    "gather": (gathered, (6, 5), INDEX),
    "scatter": (histogram, (9, 5), INDEX),
    "scatter-of-products": (products, (9, 5), INDEX),
    "windows-and-table": (table_of_windows, (7, 12), (CELLS, 12)),
    "scan": (scanned, (7, 4)),
    "cumulative-sum": (lambda x: topi.cumsum(x, 1), (6, 5)),
    "sort": (lambda x: topi.sort(x, 1), (6, 5)),
    "top-k": (lambda x: topi.topk(x, 3, 0, "values", False), (6, 5)),
    "product": (lambda x: topi.prod(x, 1), (6, 5)),
    "max-pool": (max_pool, (2, 3, 9, 9)),
    "convolution": (lambda x, w: topi.nn.conv2d_nchw(x, w, 2, 1, 1), (2, 3, 8, 8), (4, 3, 3, 3)),
}
"""Tensor expressions and the shapes that they take; float unless a shape says otherwise."""


def types_of(name, dtype):
    """Return dtype and extents of each parameter."""
    shapes = CASES[name][1:]
    return [(s[0], s[1:]) if isinstance(s[0], str) else (dtype, s) for s in shapes]


@cache
def module(dtype):
    """The gradients of all cases, in one module: compiled one by one, they would take minutes."""
    mod = tvm.IRModule()
    for name, (function, *_) in CASES.items():
        params = [
            relax.Var(f"p{index}", relax.TensorType(list(extents), ty))
            for index, (ty, extents) in enumerate(types_of(name, dtype))
        ]
        builder = relax.BlockBuilder()
        with builder.function(name, params):
            with builder.dataflow():
                called = gg.call_te(function, *params, name=f"kernel_{name.replace('-', '_')}")
                result = builder.emit_output(builder.emit(called))
            builder.emit_func_output(result)
        mod.update(gg.vjp(builder.get(), name))
    return mod


@cache
def program(dtype):
    return Program(module(dtype))


def results_of(name, dtype):
    """Return the extents of what a case computes."""
    return [int(extent) for extent in module(dtype)[name].ret_ty.shape.values]


def drawn(dtype, extents, generator):
    if dtype == "int32":
        return generator.integers(0, 6, extents, "int32")
    return generator.uniform(-1.5, 1.5, extents).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_gradient(name, dtype):
    generator = np.random.default_rng(0)
    given = [*types_of(name, dtype), (dtype, results_of(name, dtype))]
    _, *gradients = program(dtype).check(f"{name}_vjp", *(drawn(*ty, generator) for ty in given))
    assert all(np.any(gradient) for gradient in gradients)
