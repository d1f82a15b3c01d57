"""Copies in another order of axes, square by square."""

import itertools

import numpy as np
import pytest
from tvm import te, topi

from graphgrad.lower.cpu import permutation
from tests.lower.kernel_programs import run, tensor


def permuted(shape, axes, dtype="float32"):
    x = tensor(*shape, dtype=dtype)
    return [x], [topi.transpose(x, axes)]


def in_squares(result):
    return "square" in result.text


@pytest.mark.parametrize("axes", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("shape", [(16, 32, 48), (17, 33, 35), (1, 130, 131), (5, 4, 900)])
def test_every_order_of_axes(shape, axes):
    result = run(*permuted(shape, axes))
    result.agree()
    assert not in_squares(result) or axes[-1] != 2


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
@pytest.mark.parametrize("shape", [(128, 128), (129, 143), (4, 5000), (5000, 7)])
def test_matrices(shape, dtype):
    result = run(*permuted(shape, (1, 0), dtype))
    result.agree()
    assert in_squares(result)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(128, 128), (129, 143), (5000, 7)])
def test_matrices_of_half_precision(shape, dtype):
    result = run(*permuted(shape, (1, 0), dtype))
    result.agree()
    assert in_squares(result)


@pytest.mark.parametrize(
    "source, result",
    [
        ("float32", "bfloat16"),
        ("bfloat16", "float32"),
        ("float32", "float16"),
        ("float16", "float32"),
        ("float64", "float32"),
        ("uint32", "float16"),
        ("int32", "float32"),
    ],
)
def test_copies_of_another_dtype(source, result):
    x = tensor(130, 144, dtype=source)
    y = te.compute((144, 130), lambda i, j: x[j, i].astype(result))
    values = 100 * np.random.default_rng(0).random((130, 144))
    if source.startswith("float"):
        values[0, :6] = [np.nan, np.inf, -np.inf, 1e-40, -0.0, 6e4]
    measured = run([x], [y], values=[values.astype(source)])
    stock, scheduled = (r[0].astype("float64") for r in (measured.stock, measured.scheduled))
    np.testing.assert_array_equal(scheduled, stock)
    assert in_squares(measured)


@pytest.mark.parametrize("dtype", ["bool", "int8"])
def test_other_dtypes_are_copied_element_by_element(dtype):
    result = run(*permuted((128, 144), (1, 0), dtype))
    result.agree()
    assert not in_squares(result)


@pytest.mark.parametrize("shape", [(128, 3), (3, 5000), (8, 8)])
def test_squares_need_room(shape):
    result = run(*permuted(shape, (1, 0)))
    result.agree()
    assert not in_squares(result)


def test_what_is_more_than_a_permutation_is_scheduled_as_a_map():
    x = tensor(144, 160)
    for output in (
        te.compute((160, 144), lambda i, j: x[j, i] * 2),
        te.compute((160, 144), lambda i, j: x[143 - j, i]),
        te.compute((80, 144), lambda i, j: x[j, 2 * i]),
        te.compute((144, 144), lambda i, j: x[i, i]),
    ):
        result = run([x], [output])
        result.agree()
        assert not in_squares(result)


def test_a_part_of_a_tensor():
    x, y = tensor(144, 160), tensor(2, 3, 144, 160)
    for source, output in (
        (x, te.compute((130, 144), lambda i, j: x[j, i])),
        (x, te.compute((130, 131), lambda i, j: x[j + 5, i + 17])),
        (y, te.compute((160, 144), lambda i, j: y[1, 2, j, i])),
        (y, te.compute((1, 160, 3, 144), lambda n, i, k, j: y[n + 1, k, j, i])),
    ):
        result = run([source], [output])
        result.agree()
        assert in_squares(result)


def test_symbolic_extents_are_left_alone():
    n = te.var("n", "int64")
    x = te.placeholder((n, 256), "float32", "x")
    result = run([x], [topi.transpose(x, (1, 0))], shapes=[(70, 256), (256, 70)])
    result.agree()
    assert not in_squares(result)


@pytest.mark.parametrize("lanes", [2, 4, 8])
def test_squares_are_no_wider_than_vectors(lanes, monkeypatch):
    monkeypatch.setattr(permutation.Processor, "lanes", lambda self, dtype: lanes)
    result = run(*permuted((130, 140), (1, 0)))
    result.agree()
    assert in_squares(result) == (lanes >= 4)
