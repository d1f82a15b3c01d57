"""Extrema of few rows and of long ones, in parts: NaN, extents that no part divides, epilogues."""

import numpy as np
import pytest

from graphgrad.ops.elementwise import larger, smaller
from tests.labels import label
from tests.lower.extrema import extremum, with_nan_in_some
from tests.lower.kernel_programs import run, tensor

FEW_RESULTS = [
    ((20011,), (0,)),
    ((128, 160), (0, 1)),
    ((2, 10007), (1,)),
    ((2, 10007), (0, 1)),
    ((3, 5, 1999), (0, 2)),
    ((10007, 3), (0,)),
    ((5003, 16), (0,)),
    ((7, 31, 127), (0, 1, 2)),
]
LONG_ROWS = [((17, 140001), (1,)), ((17, 5, 30011), (1, 2))]


def same(found, expected):
    np.testing.assert_array_equal(found, expected)  # NaN equals NaN here


@pytest.mark.parametrize("choose", [larger, smaller], ids=["max", "min"])
@pytest.mark.parametrize(("shape", "axes"), [*FEW_RESULTS, *LONG_ROWS], ids=label)
def test_extents_and_axes(shape, axes, choose):
    x = tensor(*shape)
    values = with_nan_in_some(shape, axes)
    result = run([x], [extremum(choose, x, axes)], values=[values])
    assert "of_parts" in result.text
    reference = np.max if choose is larger else np.min
    same(result.scheduled[0], reference(values, axis=axes))


@pytest.mark.parametrize("place", [0, 1, 9999, 20000, 20010])
def test_one_nan_anywhere_wins(place):
    x = tensor(20011)
    values = np.ones(20011, "float32")
    values[place] = np.nan
    assert np.isnan(run([x], [extremum(larger, x, (0,))], values=[values]).scheduled[0])


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_dtypes(dtype):
    x = tensor(3, 10007, dtype=dtype)
    values = with_nan_in_some((3, 10007), (1,), dtype)
    result = run([x], [extremum(larger, x, (1,))], values=[values])
    same(result.scheduled[0], values.max(axis=1))
    assert "T.vectorized" in result.text
