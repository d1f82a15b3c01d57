"""Cumulative sums and products against NumPy."""

import numpy as np
import pytest
from tvm import relax

import graphgrad as gg
from tests.running import function, run

op = relax.op
OPS = {"cumsum": (op.cumsum, np.cumsum, 0), "cumprod": (op.cumprod, np.cumprod, 1)}


def program(build, x):
    return function(lambda builder, x: builder.emit(build(x)), (x.shape, str(x.dtype)))


def numbers(shape, dtype):
    return np.random.default_rng(0).integers(0, 3, shape).astype(dtype)


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("axis", [0, 1, -1, None])
def test_every_axis(name, axis):
    ours, reference, identity = OPS[name]
    x = np.random.default_rng(0).uniform(0.5, 1.5, (3, 4, 5))
    mod = program(lambda x: relax.Tuple([ours(x, axis), ours(x, axis, exclusive=True)]), x)
    whole, exclusive = run(mod, "main", x)
    expected = reference(x, axis)
    np.testing.assert_allclose(whole, expected, rtol=1e-14)
    shifted = np.roll(expected, 1, axis or 0)
    shifted[(slice(None),) * ((axis or 0) % expected.ndim) + (0,)] = identity
    np.testing.assert_allclose(exclusive, shifted, rtol=1e-14)


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("dtype", ["float16", "float32", "int8", "int32", "int64", "bool"])
def test_every_dtype(name, dtype):
    ours, reference, _ = OPS[name]
    x = numbers((3, 6), dtype)
    wide = "int32" if dtype == "bool" else dtype
    (given,) = run(program(lambda x: ours(x, 1, wide), x), "main", x)
    np.testing.assert_array_equal(given, reference(x, 1, dtype=wide))
    assert given.dtype == wide


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((40, 9, 70), 1),
        ((40, 900), 1),
        ((2, 300, 200), 1),
        ((2, 9, 30, 50), 1),
        ((70_000,), 0),
        ((0, 3), 0),
        ((3, 0), 1),
    ],
)
def test_every_schedule(shape, axis):
    x = numbers(shape, "int64")
    (given,) = run(program(lambda x: op.cumsum(x, axis), x), "main", x)
    np.testing.assert_array_equal(given, np.cumsum(x, axis))


def test_half_precision_adds_up_in_float32():
    x = np.ones(5000, "float16")
    mod = program(lambda x: op.cumsum(x, 0), x)
    assert run(mod, "main", x)[0][-1] == 5000


@pytest.mark.parametrize("shape, axis", [((1_000_000,), 0), ((20_000, 50), 0), ((50, 20_000), 1)])
def test_long_sums_keep_their_digits(shape, axis):
    """Equal terms, whose roundings all go in one direction, forwards and backwards."""
    x = np.full(shape, 0.1, "float32")
    mod = gg.vjp(program(lambda x: op.cumsum(x, axis), x))
    forwards, backwards = run(mod, "main_vjp", x, x)
    expected = np.cumsum(x, axis, "float64")
    np.testing.assert_allclose(forwards, expected, rtol=1e-7)
    np.testing.assert_allclose(backwards, np.flip(expected, axis), rtol=1e-7)
