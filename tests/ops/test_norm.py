"""Normalizations in every float dtype."""

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax

import graphgrad as gg
from tests.running import function, run

nn = relax.op.nn

HALF = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
TOLERANCE = {"float64": 1e-12, "float32": 2e-5, "float16": 2e-3, "bfloat16": 2e-2}

NORMS = {
    "layer_norm": lambda x, g, b: nn.layer_norm(x, g, b, axes=[-1]),
    "rms_norm": lambda x, g, b: nn.rms_norm(x, g, axes=[-1]),
    "instance_norm": lambda x, g, b: nn.instance_norm(x, g, b, channel_axis=-1, axes=[0]),
    "group_norm": lambda x, g, b: nn.group_norm(x, g, b, 2, channel_axis=-1, axes=[]),
}


def program(norm, shape, dtype):
    vector = ((shape[-1],), dtype)
    return function(lambda builder, *x: builder.emit(norm(*x)), (shape, dtype), vector, vector)


def reference(name, x, gamma, beta, epsilon=1e-5):
    axis = 0 if name == "instance_norm" else -1
    x = x.reshape(len(x), 2, -1) if name == "group_norm" else x
    centered = x if name == "rms_norm" else x - x.mean(axis, keepdims=True)
    y = centered / np.sqrt((centered**2).mean(axis, keepdims=True) + epsilon)
    return y.reshape(len(x), -1) * gamma + (0 if name == "rms_norm" else beta)


def drawn(shape, dtype, mean=0.0):
    generator = np.random.default_rng(0)
    x = generator.uniform(-1, 1, shape) + mean
    vectors = generator.uniform(0.5, 1.5, (2, shape[-1]))
    return [a.astype(HALF.get(dtype, dtype)) for a in (x, *vectors)]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", NORMS)
def test_every_float_dtype(name, dtype):
    if (name, dtype) == ("group_norm", "bfloat16"):
        with pytest.raises(TypeError, match="data must be float"):  # the op's own type inference
            program(NORMS[name], (5, 8), dtype)
        return
    arrays = drawn((5, 8), dtype)
    expected = reference(name, *(a.astype("float64") for a in arrays))
    y = run(program(NORMS[name], (5, 8), dtype), "main", *arrays)[0]
    assert y.dtype == arrays[0].dtype
    np.testing.assert_allclose(y.astype("float64"), expected, rtol=0, atol=2 * TOLERANCE[dtype])


@pytest.mark.parametrize("name", ["layer_norm", "instance_norm", "group_norm"])
def test_large_means_lose_no_digits(name):
    arrays = drawn((6, 8), "float32", mean=1e4)
    expected = reference(name, *(a.astype("float64") for a in arrays))
    y = run(program(NORMS[name], (6, 8), "float32"), "main", *arrays)[0]
    np.testing.assert_allclose(y, expected, rtol=0, atol=5e-3)  # of x̄ itself: 1e4 · 2⁻²⁴ · 8


def test_long_sums_shift_no_mean():
    arrays = drawn((2, 100_003), "float32", mean=1e4)
    expected = reference("layer_norm", *(a.astype("float64") for a in arrays))
    y = run(program(NORMS["layer_norm"], (2, 100_003), "float32"), "main", *arrays)[0]
    np.testing.assert_allclose(y, expected, rtol=0, atol=5e-3)


@pytest.mark.parametrize("flag", ["scale", "center"])
def test_flags_are_read(flag):
    def norm(x, g, b):
        return nn.layer_norm(x, g, b, axes=[-1], **{flag: False})

    x, gamma, beta = drawn((5, 8), "float32")
    mod = program(norm, (5, 8), "float32")
    absent = {"scale": (x, np.ones_like(gamma), beta), "center": (x, gamma, np.zeros_like(beta))}
    y = run(mod, "main", x, gamma, beta)[0]
    np.testing.assert_allclose(y, reference("layer_norm", *absent[flag]), atol=1e-5)


def test_parameters_follow_the_order_of_the_axes():
    def norm(x, g, b):
        return nn.layer_norm(x, g, b, axes=[2, 1])

    generator = np.random.default_rng(0)
    x, gamma, beta = (generator.uniform(-1, 1, s) for s in ((2, 3, 4), (4, 3), (4, 3)))
    mod = function(
        lambda builder, *x: builder.emit(norm(*x)),
        *((a.shape, "float64") for a in (x, gamma, beta)),
    )
    centered = x - x.mean((1, 2), keepdims=True)
    expected = centered / np.sqrt((centered**2).mean((1, 2), keepdims=True) + 1e-5)
    y = run(mod, "main", x, gamma, beta)[0]
    np.testing.assert_allclose(y, expected * gamma.T + beta.T, atol=1e-12)


def batch_norm(shape, dtype, **attributes):
    channels = ((shape[attributes["axis"]],), dtype)
    return function(
        lambda builder, *x: builder.emit(nn.batch_norm(*x, training=True, **attributes)),
        (shape, dtype),
        *[channels] * 4,
    )


@pytest.mark.parametrize("dtype", HALF)
def test_batch_norm_adds_up_half_precision_in_float32(dtype):
    arrays = [np.ones((4096, 1), HALF[dtype]), *np.ones((4, 1), HALF[dtype])]
    mod = batch_norm((4096, 1), dtype, axis=1, momentum=1.0)
    y, mean, variance = run(mod, "main", *arrays)
    assert (y.dtype, mean.dtype, variance.dtype) == (HALF[dtype],) * 3
    assert (float(mean[0]), float(variance[0])) == (1.0, 0.0)


def test_batch_norm_on_a_negative_axis():
    generator = np.random.default_rng(0)
    arrays = [generator.uniform(0.5, 1.5, s) for s in ((4, 3), (3,), (3,), (3,), (3,))]
    negative, positive = (
        run(batch_norm((4, 3), "float64", axis=axis), "main", *arrays) for axis in (-1, 1)
    )
    for ours, theirs in zip(negative, positive, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    with pytest.raises(ValueError, match="not in list"):
        tvm.compile(batch_norm((4, 3), "float64", axis=-1), gg.target("llvm"))
