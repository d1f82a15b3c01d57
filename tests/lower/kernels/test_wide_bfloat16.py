"""Tests that what bfloat16 numbers are compared with is what would be stored."""

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx

import graphgrad as gg
from graphgrad.ir.arrays import to_tensor
from graphgrad.lower.cpu.nan import vectorize_nan_tests
from graphgrad.lower.kernels.wide_bfloat16 import widen_arithmetic
from tests.lower.kernel_programs import run, tensor

LENGTH = 1 << 16


def numbers(seed):
    return np.random.default_rng(seed).standard_normal(LENGTH).astype(ml_dtypes.bfloat16)


def compared(compare, dtype="bfloat16"):
    """Return a kernel that says where a product compares with what another has stored."""
    x, y, stored = (tensor(LENGTH, dtype=dtype, name=name) for name in ("x", "y", "stored"))
    result = te.compute(
        (LENGTH,),
        lambda i: tirx.Select(compare(x[i] * y[i], stored[i]), 1.0, 0.0),
        name="result",
    )
    return [x, y, stored], [result]


def as_lowered(func):
    return vectorize_nan_tests(widen_arithmetic(func))


def test_a_value_is_equal_to_itself_as_it_was_stored():
    x, y = numbers(0), numbers(1)
    stored = (x.astype("float32") * y.astype("float32")).astype(ml_dtypes.bfloat16)
    results = run(*compared(lambda a, b: a.equal(b)), values=[x, y, stored], then=as_lowered)
    assert results.scheduled[0].all()
    assert results.stock[0].mean() < 0.1  # what TVM says


@pytest.mark.parametrize(
    "compare, of_numpy",
    [
        (lambda a, b: a < b, np.less),
        (lambda a, b: b <= a, lambda a, b: np.less_equal(b, a)),
    ],
)
def test_other_comparisons(compare, of_numpy):
    x, y, stored = numbers(0), numbers(1), numbers(2)
    kinds = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0]
    x[: len(kinds)] = kinds
    y[:12] = stored[12:24] = 1
    stored[:12] = np.array([*kinds, *kinds[::-1]])
    product = (x.astype("float32") * y.astype("float32")).astype(ml_dtypes.bfloat16)
    results = run(*compared(compare), values=[x, y, stored], then=as_lowered)
    expected = of_numpy(product.astype("float32"), stored.astype("float32"))
    np.testing.assert_array_equal(results.scheduled[0], expected)


def test_stored_numbers_and_other_floats_are_compared_as_they_are():
    x, y = tensor(LENGTH, dtype="bfloat16"), tensor(LENGTH, dtype="bfloat16", name="y")
    larger = te.compute((LENGTH,), lambda i: tirx.Select(x[i] > y[i], 1.0, 0.0))
    inputs, outputs = compared(lambda a, b: a < b, "float32")
    for tensors in ([x, y, larger], [*inputs, *outputs]):
        func = te.create_prim_func(tensors)
        assert widen_arithmetic(func).same_as(func)


def test_what_is_chosen_by_a_comparison_is_stored():
    x, y, stored = (tensor(LENGTH, dtype="bfloat16", name=name) for name in ("x", "y", "stored"))
    result = te.compute(
        (LENGTH,),
        lambda i: tirx.Select(x[i] * y[i] < stored[i], x[i] + y[i], stored[i] * x[i]),
        name="result",
    )
    values = numbers(0), numbers(1), numbers(2)
    results = run([x, y, stored], [result], values=values, then=as_lowered)
    assert "T.vectorized" in results.text
    x, y, stored = (a.astype("float32") for a in values)
    product = (x * y).astype(ml_dtypes.bfloat16).astype("float32")
    expected = np.where(product < stored, x + y, stored * x).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(results.scheduled[0], expected)


@pytest.mark.parametrize("is_cast", [False, True], ids=["in bfloat16", "after a cast"])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_places_of_extrema(name, is_cast):
    """Their kernels bind what they read to variables."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((40, 33), "bfloat16"))
    with builder.function("main", [x]):
        with builder.dataflow():
            read = builder.emit(relax.op.astype(x, "float32")) if is_cast else x
            result = builder.emit_output(getattr(relax.op, name)(read, 1))
        builder.emit_func_output(result)
    values = numbers(0)[: 40 * 33].reshape(40, 33)
    compiled = relax.VirtualMachine(gg.compile(builder.get()), tvm.cpu())
    places = compiled["main"](to_tensor(values)).numpy()
    np.testing.assert_array_equal(places, getattr(np, name)(values.astype("float32"), 1))
