import pytest
import tvm

from graphgrad.train.shapes import bind_dimensions, fits, shape_text

N, M = tvm.tirx.Var("N", "int64"), tvm.tirx.Var("M", "int64")


def test_the_first_extent_is_recorded():
    extents = {M: 5}
    bind_dimensions([N, 3, N, M, N + 1], [2, 3, 4, 6, 7], extents)
    assert extents == {N: 2, M: 5}


@pytest.mark.parametrize("expected, shape, ok", [
    ([2, 3], (2, 3), True), ([2, 3], (3, 2), False), ([], (), True), ([1], (), False),
    ([N, 3], (4, 3), True), ([N, 3], (5, 3), False), ([N * 2 + 1], (9,), True),
    ([N * 2 + 1], (8,), False), ([M], (4,), False), ([M + 1], (4,), False),
])  # fmt: skip
def test_fits(expected, shape, ok):
    """With N = 4; nothing is known of M."""
    assert fits(expected, shape, {N: 4}) == ok


@pytest.mark.parametrize("shape, text", [
    ([], "()"), ([3], "(3,)"), ([3, 4], "(3, 4)"), ([N, 4], "(N, 4) with N = 2"), ([M], "(M,)"),
    ([N, M, N], "(N, M, N) with N = 2"), ([N * 3], "(N * 3,)"),
])  # fmt: skip
def test_shapes_for_people(shape, text):
    assert shape_text(shape, {N: 2}) == text
