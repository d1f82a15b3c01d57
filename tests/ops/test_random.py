"""Masks of dropout: their share, their independence, and what decides them. Classes by chance."""

import numpy as np
import pytest
import tvm
from tvm import relax

import graphgrad as gg
from graphgrad.check import sample_module
from graphgrad.ir.arrays import to_tensor
from graphgrad.registry.sample import sample, tensor
from tests.running import function, run

SHAPE = (300, 400)
SEED = tensor((), 0, 9, dtype="int64")


def machine(rate, stream=0, shape=SHAPE, op="dropout", dtype="float32"):
    """Return a function of data and seed."""
    call = sample(shape, SEED, rate=rate, stream=stream)
    mod = sample_module(f"graphgrad.{op}", call, "main", dtype)
    vm = relax.VirtualMachine(gg.compile(mod), tvm.cpu())
    return lambda x, seed: vm["main"](to_tensor(x), to_tensor(np.int64(seed))).numpy()


ONES = np.ones(SHAPE, "float32")


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_share_and_scale(rate):
    y = machine(rate)(ONES, 7)
    assert set(np.unique(y)) == {np.float32(0), np.float32(1 / (1 - rate))}
    deviation = np.sqrt(rate * (1 - rate) / y.size)
    assert abs((y == 0).mean() - rate) < 4 * deviation


def test_neighbors_are_independent():
    dropped = machine(0.5)(ONES, 7) == 0
    for shifted in (dropped[:, 1:] & dropped[:, :-1], dropped[1:] & dropped[:-1]):
        assert abs(shifted.mean() - 0.25) < 4 * np.sqrt(0.25 * 0.75 / shifted.size)


@pytest.mark.parametrize("other", [1, 1 << 32, (1 << 62) + 7], ids=["low", "high", "both"])
def test_another_seed_is_another_independent_mask(other):
    drop = machine(0.5)
    both = (drop(ONES, 0) == 0) & (drop(ONES, other) == 0)
    assert abs(both.mean() - 0.25) < 4 * np.sqrt(0.25 * 0.75 / both.size)


def test_another_stream_is_another_independent_mask():
    both = (machine(0.5, 0)(ONES, 3) == 0) & (machine(0.5, 1)(ONES, 3) == 0)
    assert abs(both.mean() - 0.25) < 4 * np.sqrt(0.25 * 0.75 / both.size)


def test_the_mask_is_where_dropout_keeps():
    mask = machine(0.3, 2, op="dropout_mask")(ONES, 11)
    assert mask.dtype == bool
    np.testing.assert_array_equal(mask, machine(0.3, 2)(ONES, 11) != 0)


def lowbias32(value):
    """The finalizer in numpy's own arithmetic of 32 bits."""
    value = value.astype("uint32")
    value ^= value >> np.uint32(16)
    value *= np.uint32(0x7FEB352D)
    value ^= value >> np.uint32(15)
    value *= np.uint32(0x846CA68B)
    return value ^ (value >> np.uint32(16))


@pytest.mark.parametrize("shape", [(12, 50), ("n", 50)], ids=str)
def test_the_mask_is_that_of_the_published_hash(shape):
    """A change of the hash would change runs that people go on with."""
    seed, stream, rate = 1234567890123, 3, 0.3
    words = np.array([seed & 0xFFFFFFFF, seed >> 32, stream * 0x9E3779B9 & 0xFFFFFFFF], "uint32")
    key = lowbias32(lowbias32(words[:1] ^ words[2:]) ^ words[1:2])
    hashed = lowbias32(lowbias32(np.arange(600, dtype="uint32") ^ key) ^ lowbias32(key))
    kept = (hashed >= rate * 2**32).reshape(12, 50)
    y = machine(rate, stream, shape)(np.ones((12, 50), "float32"), seed)
    np.testing.assert_array_equal(y != 0, kept)


def test_dropped_elements_do_not_matter():
    x = ONES.copy()
    drop = machine(0.5)
    dropped = drop(x, 5) == 0
    x[dropped] = np.nan
    assert np.isfinite(drop(x, 5)).all()


@pytest.mark.parametrize("rate, expected", [(0.0, 1.0), (1.0, 0.0)])
def test_extreme_rates(rate, expected):
    assert (machine(rate)(ONES, 5) == expected).all()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_multinomial_from_uniform(dtype):
    p = np.array([[0.25, 0.25, 0.5], [0.0, 1.0, 0.0]], dtype)
    uniform = np.array([[0.0], [0.3], [0.5], [1.0], [0.0], [0.9]], "float32")
    rows = np.array([[0], [0], [0], [0], [1], [9]])
    types = [(a.shape, str(a.dtype)) for a in (p, uniform, rows)]
    mod = function(lambda b, *xs: b.emit(relax.op.multinomial_from_uniform(*xs)), *types)
    chosen = run(mod, "main", p, uniform, rows)[0]
    assert chosen.ravel().tolist() == [0, 1, 2, 2, 1, 1]
