"""Gradients of norms by channels, where groups, images or channels are of a special size."""

import numpy as np
import pytest
from tvm import relax, tirx

import graphgrad as gg
from tests.running import F64, function, run

op = relax.op


def group_norm(b, x, gamma, beta):
    return b.emit(op.nn.group_norm(x, gamma, beta, 3, -1, [1]))


def instance_norm(b, x, gamma, beta):
    return b.emit(op.nn.instance_norm(x, gamma, beta, -1, [1]))


def gradients(norm, shape, *arrays, dtype=F64, channels=12):
    types = (shape, dtype), ((channels,), dtype), ((channels,), dtype)
    return run(gg.vjp(function(norm, *types)), "main_vjp", *arrays)


def random_arrays(*shapes, dtype=F64):
    generator = np.random.default_rng(0)
    return [generator.standard_normal(shape).astype(dtype) for shape in shapes]


@pytest.mark.parametrize("norm", [group_norm, instance_norm])
def test_symbolic_channels(norm):
    n, c = (tirx.Var(name, "int64") for name in "nc")
    arrays = random_arrays((2, 7, 12), (12,), (12,), (2, 7, 12))
    expected = gradients(norm, (2, 7, 12), *arrays)
    for found, value in zip(gradients(norm, (n, 7, c), *arrays, channels=c), expected, strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("norm", [group_norm, instance_norm])
def test_images_without_positions(norm):
    w = tirx.Var("w", "int64")
    arrays = random_arrays((2, 0, 12), (12,), (12,), (2, 0, 12))
    _, x_bar, gamma_bar, beta_bar = gradients(norm, (2, w, 12), *arrays)
    assert x_bar.shape == (2, 0, 12)
    np.testing.assert_array_equal(gamma_bar, np.zeros(12))
    np.testing.assert_array_equal(beta_bar, np.zeros(12))


@pytest.mark.parametrize("norm", [group_norm, instance_norm])
def test_small_cotangents_of_large_values_do_not_vanish(norm):
    arrays = random_arrays((2, 64, 12), (12,), (12,), (2, 64, 12))
    arrays[0] *= 1e12
    arrays[3] *= 1e-20
    exact = gradients(norm, (2, 64, 12), *arrays)[1]
    narrow = [array.astype("float32") for array in arrays]
    found = gradients(norm, (2, 64, 12), *narrow, dtype="float32")[1]
    np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-5 * np.abs(exact).max())


def emitted(call, *items):
    """A norm of a tensor of images, channels and positions whose parameters are all the same."""

    def build(builder, x, g):
        y = builder.emit(call(x, g))
        return builder.emit(relax.TupleGetItem(y, items[0])) if items else y

    return build


def channels_last(x):
    return op.permute_dims(x, [0, 2, 1])


NORMS = {
    "batch_norm": emitted(lambda x, g: op.nn.batch_norm(x, g, g, g, g, axis=1), 0),
    "group_norm": emitted(lambda x, g: op.nn.group_norm(x, g, g, 2, 1, [2])),
    "instance_norm": emitted(lambda x, g: op.nn.instance_norm(x, g, g, 1, [2])),
    "layer_norm": emitted(lambda x, g: op.nn.layer_norm(channels_last(x), g, g, [-1])),
    "rms_norm": emitted(lambda x, g: op.nn.rms_norm(channels_last(x), g, [-1])),
}


@pytest.mark.parametrize("rules", ["auto", "derived"])
@pytest.mark.parametrize("name", NORMS)
def test_variance_beyond_float32_is_not_silent(name, rules):
    """It gives NaN, in the value and in the gradients, so that a training step refuses it."""
    shape = (2, 4, 3)
    mod = gg.vjp(function(NORMS[name], (shape, "float32"), ((4,), "float32")), rules=rules)
    (x,) = random_arrays(shape, dtype="float32")
    ones = np.ones(4, "float32")
    ct = np.ones(shape if "norm" in name and name[0] in "bgi" else (2, 3, 4), "float32")
    for size, is_lost in ((1e15, False), (1e22, True)):
        y, x_bar, scale_bar = run(mod, "main_vjp", x * np.float32(size), ones, ct)
        for array in (y, x_bar, scale_bar):
            assert np.isnan(array).all() if is_lost else np.isfinite(array).all()
