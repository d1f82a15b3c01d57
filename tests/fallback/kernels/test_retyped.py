"""Kernels in other dtypes compute what the same expressions in these dtypes do."""

import numpy as np
import pytest
import tvm
from tvm import te, tirx, topi

from graphgrad.fallback.kernels.expressions import expressions_of, kernel_of, retype_kernel
from tests.labels import label
from tests.running import compile_library


def wide(dtype):
    return "float64" if dtype == "float32" else dtype


def recurrence(x):
    state = te.placeholder(x.shape, str(x.dtype), name="S")
    update = te.compute(
        x.shape, lambda t, i: te.sin(state(t - 1, i) + tirx.const(0.1, str(x.dtype)) * x(t, i))
    )
    return te.scan(te.compute((1, x.shape[1]), lambda _, i: x(0, i)), update, state)


def chosen(x):
    """With a cast, an integer result of a reduction, and a value that is bound."""
    place = topi.argmax(x, 1)

    def body(i, j):
        bound = tirx.Var("b", str(x.dtype))
        return tirx.Let(bound, x(i, j) * x(i, j), te.if_then_else(place(i) == j, bound, -bound))

    y = te.compute(x.shape, body, name="y")
    return topi.cast(topi.cast(y, "int32"), str(x.dtype))


def products(x):
    return topi.prod(x, 1)


def computed(func, x, shape):
    result = tvm.runtime.tensor(np.full(shape, np.nan))
    compile_library(func.with_attr("global_symbol", "f"))(tvm.runtime.tensor(x), result)
    return result.numpy()


@pytest.mark.parametrize("build", [recurrence, chosen, products, topi.nn.softmax], ids=label)
def test_it_computes_the_same_in_the_other_dtype(build):
    kernels = []
    for dtype in ("float32", "float64"):
        x = te.placeholder((4, 3), dtype, name="x")
        kernels.append(kernel_of([x], [build(x)]))
    retyped = retype_kernel(kernels[0], wide)
    values = np.random.default_rng(0).uniform(-3, 3, (4, 3))
    shape = [int(extent) for extent in kernels[1].params[-1].shape]
    expected = computed(kernels[1], values, shape)
    np.testing.assert_allclose(computed(retyped, values, shape), expected, rtol=1e-14)
    # It knows of what it was made, too.
    (output,) = expressions_of(retyped, 1).outputs
    assert str(output.dtype) == "float64"


def test_what_was_not_made_of_expressions_here_stays_unknown():
    x = te.placeholder((3,), "float32", name="x")
    assert retype_kernel(te.create_prim_func([x, topi.exp(x)]), wide) is None


def test_dtypes_that_are_built_in():
    x = te.placeholder((3, 4), "float32", name="x")
    assert retype_kernel(kernel_of([x], [topi.sort(x)]), wide) is None
