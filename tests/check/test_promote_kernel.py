"""Kernels in float64: which become so, what they compute, and which do not."""

import numpy as np
import pytest
import tvm
from tvm import te, tirx, topi

from graphgrad.check.promote_kernel import promote_kernel
from graphgrad.fallback.gradient import te_gradient
from graphgrad.fallback.lowering.prim_func import lowered
from tests.labels import label
from tests.running import compile_library


def kernel(function, dtype, shape=(3, 4)):
    x = te.placeholder(shape, dtype, name="x")
    y = function(x)
    return lowered([x, y, *te_gradient(y, x)], rounded=False)


def rational(x):
    """Shared parts, choices and constants that low floats round."""

    def body(*at):
        square = x(*at) * x(*at)
        quotient = (square - 0.1) / (square + 1.7)
        return te.if_then_else(quotient > 0.01, quotient * quotient, te.exp(quotient))

    return te.compute(x.shape, body, name="y")


def narrowed(x):
    """By way of a lower float, which is not rounded to."""
    return topi.cast(topi.cast(topi.tanh(x), "float16"), str(x.dtype))


def computed(func, values):
    results = [tvm.runtime.tensor(np.full(values.shape, np.nan)) for _ in range(2)]
    compile_library(func)(tvm.runtime.tensor(values), *results)
    return [result.numpy() for result in results]


@pytest.mark.parametrize(
    ("function", "dtype"),
    [
        (rational, "float32"), (rational, "bfloat16"), (narrowed, "float32"),
        (topi.nn.softmax, "float16"), (topi.sort, "float32"),
    ],
    ids=label,
)  # fmt: skip
def test_it_computes_what_a_kernel_in_float64_does(function, dtype):
    promoted, obstacles = promote_kernel(kernel(function, dtype))
    assert not obstacles
    values = np.random.default_rng(0).standard_normal((3, 4))
    wide = {narrowed: topi.tanh}.get(function, function)
    for given, expected in zip(
        computed(promoted, values), computed(kernel(wide, "float64"), values), strict=True
    ):
        np.testing.assert_allclose(given, expected, rtol=1e-14, atol=1e-14)


def test_symbolic_extents_and_integers_stay():
    x = te.placeholder((te.var("n", "int64"),), "float32", name="x")
    places = te.placeholder((3,), "int64", name="places")
    func = lowered([x, places, te.compute((3,), lambda i: x(places(i)), name="y")])
    promoted, _ = promote_kernel(func)
    assert [str(param.ty.dtype) for param in promoted.params] == ["float64", "int64", "float64"]
    result = tvm.runtime.tensor(np.zeros(3))
    compile_library(promoted)(
        tvm.runtime.tensor(np.array([2.0, 3.0])), tvm.runtime.tensor(np.array([1, 0, 1])), result
    )
    assert result.numpy().tolist() == [3.0, 2.0, 3.0]


def test_what_has_no_low_float_is_the_same_function():
    func = kernel(rational, "float64")
    promoted, obstacles = promote_kernel(func)
    assert promoted.same_as(func)
    assert not obstacles


def library(x):
    return te.compute(x.shape, lambda *at: tirx.call_pure_extern(x.dtype, "fabsf", x(*at)))


def packed(x):
    def body(inputs, outputs):
        return tirx.call_packed("my.kernel", inputs[0], outputs[0])

    return te.extern([x.shape], [x], body, dtype=[x.dtype])


@pytest.mark.parametrize(
    ("function", "name"),
    [(library, "fabsf"), (packed, "my.kernel"), (topi.fast_exp, "tirx.reinterpret")],
    ids=label,
)
def test_calls_with_built_in_dtypes_are_obstacles(function, name):
    x = te.placeholder((3,), "float32", name="x")
    func = lowered([x, function(x)])
    promoted, obstacles = promote_kernel(func)
    assert promoted.same_as(func)
    assert f"the call of {name} has its dtypes built in" in obstacles


@pytest.mark.parametrize(
    ("value", "is_rounded"),
    [(0.1, False), (float(np.float32(1 / 12)), True), (-0.375, False), (3.0, False)],
    ids=["not yet rounded", "rounded", "a fraction", "an integer"],
)
def test_constants_that_were_rounded_are_obstacles(value, is_rounded):
    x = te.placeholder((3,), "float32", name="x")
    y = te.compute((3,), lambda i: x[i] * tirx.FloatImm("float32", value), name="y")
    _, obstacles = promote_kernel(lowered([x, y]))
    assert any("rounded to float32" in text for text in obstacles) == is_rounded


def test_bits_that_order_numbers_stay_those_of_float32():
    """As in the gradient of a maximum, whose place is found by integers."""
    x = te.placeholder((5,), "float32", name="x")
    y = te.compute((5,), lambda i: tirx.reinterpret("int32", x[i]), name="y")
    promoted, obstacles = promote_kernel(te.create_prim_func([x, y]))
    assert not obstacles
    values = np.array([1.0, -2.5, 1e-30, np.inf, -0.0])
    found = tvm.runtime.tensor(np.zeros(5, "int32"))
    compile_library(promoted)(tvm.runtime.tensor(values), found)
    np.testing.assert_array_equal(found.numpy(), values.astype("float32").view("int32"))
