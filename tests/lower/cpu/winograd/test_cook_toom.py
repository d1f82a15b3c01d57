"""The matrices of minimal filtering: they correlate, exactly."""

from fractions import Fraction

import pytest

from graphgrad.lower.cpu.winograd.cook_toom import filtering
from tests.labels import label

SIZES = [(2, 3), (4, 3), (3, 2), (3, 4)]


def applied(matrix, vector):
    return [sum(c * x for c, x in zip(row, vector, strict=True)) for row in matrix]


@pytest.mark.parametrize("size", SIZES, ids=label)
def test_it_is_a_correlation(size):
    results, taps = size
    found = filtering(results, taps)
    data = [Fraction(3 * i * i - 7 * i + 2) for i in range(results + taps - 1)]
    window = [Fraction(5 - 2 * i * i) for i in range(taps)]
    factors = zip(applied(found.taps, window), applied(found.data, data), strict=True)
    expected = [sum(data[i + k] * window[k] for k in range(taps)) for i in range(results)]
    assert applied(found.results, [a * b for a, b in factors]) == expected


@pytest.mark.parametrize("size", SIZES, ids=label)
def test_as_few_products_as_possible(size):
    results, taps = size
    assert filtering(results, taps).products == results + taps - 1


@pytest.mark.parametrize("results", [2, 4])
def test_data_are_transformed_alike_for_results_and_for_weights(results):
    assert filtering(results, 3).data == filtering(3, results).data
