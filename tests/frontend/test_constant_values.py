import ml_dtypes
import numpy as np
import pytest

from graphgrad.frontend.constant_values import (
    is_encoding,
    is_frequencies,
    is_mask,
    is_table,
    is_unit_vector,
)

from .graphs import random

DTYPES = ["float32", "float64", "float16", ml_dtypes.bfloat16]
ANGLES = np.outer(np.arange(128), 1 / 10000 ** (np.arange(0, 32, 2) / 32))
CELLS = np.stack(np.meshgrid(np.arange(5), np.arange(5)), 0).reshape(2, 25, 1) * ANGLES[1]
TESTS = [is_encoding, is_frequencies, is_mask, is_table, is_unit_vector]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scale", [1e-2, 1.0, 30.0])
def test_no_drawn_weight_looks_computed(dtype, scale):
    for seed in range(40):
        for shape in [(4,), (64,), (3, 5), (2, 7, 4)]:
            array = (scale * random(*shape, seed=seed)).astype(dtype)
            assert not any(test(array) for test in TESTS)
            assert not any(test(array.astype("float32")) for test in TESTS)  # as it is exported


@pytest.mark.parametrize("value", [0, 1, 1e-6, 0.25])
def test_no_filled_weight_looks_computed(value):
    for shape in [(4,), (1, 5, 8), (8, 1, 1)]:
        assert not any(test(np.full(shape, value, "float32")) for test in TESTS)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "table",
    [
        np.cos(ANGLES),
        np.sin(ANGLES)[None, :8, None],
        np.stack([np.sin(ANGLES), np.cos(ANGLES)], -1).reshape(1, 128, 32),
        np.concatenate([np.sin(ANGLES), np.cos(ANGLES)], -1)[:, None],
        np.sin(ANGLES).T,
        np.concatenate([np.sin(CELLS[0]), np.cos(CELLS[0]), np.sin(CELLS[1]), np.cos(CELLS[1])], 1),
    ],
    ids=["cosines", "sines", "pairs", "halves", "positions last", "two axes"],
)
def test_encodings(table, dtype):
    assert is_encoding(table.astype(dtype))
    noisy = table + 0.05 * np.random.default_rng(0).standard_normal(table.shape)
    assert not is_encoding(noisy.astype(dtype))


def test_a_straight_line_is_no_encoding():
    assert not is_encoding(np.linspace(-1, 1, 40)[:, None] * np.ones(2))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "table",
    [
        [10, 13, 16, 30, 33, 23],
        [30, 61, 62, 45, 59, 119],
        [1.25, 1.625, 2, 3.75, 4.125, 2.875],
        np.eye(4),
        np.arange(8),
        [[0, -100, 0], [-100, 0, 0]],
        [8, 16, 32],
    ],
    ids=str,
)
def test_tables(table, dtype):
    assert is_table(np.array(table, dtype))


def test_no_table_has_decimal_fractions_or_infinities():
    assert not is_table(np.array([0.1, 0.2, 0.3], "float32"))
    assert not is_table(np.array([0, -np.inf], "float32"))


def test_masks():
    assert is_mask(np.array([[0, -np.inf], [0, 0]], "float32"))
    assert is_mask(np.array([np.finfo("float32").min, 0], "float32"))
    # Of a random field: transitions that are forbidden beside learned ones.
    assert not is_mask(np.array([[-1e4, 0.3], [0.1, -1e4]], "float32"))
    assert not is_mask(np.zeros((2, 2), "float32"))


def test_frequencies_fall_from_one():
    assert is_frequencies(1 / 10000 ** (np.arange(4, dtype="float32") / 4)[None, :, None])
    assert not is_frequencies(np.array([1.0, 0.5, 0.6]))
    assert not is_frequencies(np.array([0.9, 0.5, 0.1]))
