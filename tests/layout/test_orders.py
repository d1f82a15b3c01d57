import itertools

import numpy as np
import pytest
import tvm

from graphgrad.layout import orders

N = tvm.tirx.Var("n", "int64")


def stored(array, order):
    return np.transpose(array, order)


def test_names():
    assert orders.letters("NCHW", orders.channels_last(4)) == "NHWC"
    assert orders.letters("OIDHW", orders.filters_last(5)) == "DHWIO"
    assert orders.letters("IOW", orders.filters_last(3)) == "WOI"


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_inverse_and_steps(order):
    array = np.arange(24).reshape(2, 3, 4)
    memory = stored(array, order)
    np.testing.assert_array_equal(np.transpose(memory, orders.inverse(order)), array)
    for other in itertools.permutations(range(3)):
        moved = np.transpose(memory, orders.steps(order, other))
        np.testing.assert_array_equal(moved, stored(array, other))


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
@pytest.mark.parametrize("axes", [(0, 2, 3, 1), (3, 1, 0, 2)])
def test_relabeled(order, axes):
    array = np.arange(120).reshape(2, 3, 4, 5)
    permuted = np.transpose(array, axes)
    new_order = orders.relabeled(order, axes)
    np.testing.assert_array_equal(stored(permuted, new_order), stored(array, order))


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
@pytest.mark.parametrize("axes", [(1,), (0, 3), (2, 1, 0), (0, 1, 2, 3)])
def test_without(order, axes):
    array = np.arange(120).reshape(2, 3, 4, 5)
    reduced = stored(array, order).sum(axis=tuple(order.index(axis) for axis in axes))
    np.testing.assert_array_equal(
        reduced, stored(array.sum(axis=axes), orders.without(order, axes))
    )


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("axis", range(4))
def test_with_axis(order, axis):
    array = np.arange(24).reshape(2, 3, 4)
    joined = np.stack([stored(array, order), stored(-array, order)])
    expected = np.stack([array, -array], axis)
    np.testing.assert_array_equal(joined, stored(expected, orders.insert_axis(order, axis)))


RESHAPES = [
    ((2, 3, 4, 5), (2, 3, 20)),
    ((2, 3, 20), (2, 3, 4, 5)),
    ((2, 3, 4, 5), (6, 20)),
    ((2, 6, 4, 5), (2, 2, 3, 4, 5)),
    ((2, 2, 3, 4, 5), (2, 6, 4, 5)),
    ((2, 3, 1, 1), (2, 3)),
    ((2, 3), (2, 3, 1, 1)),
    ((1, 3, 4, 1), (3, 1, 2, 2)),
    ((2, 3, 4, 5), (120,)),
    ((2, 4, 3), (4, 2, 3)),
    ((1, 1), (1,)),
    ((4,), (1, 4, 1, 1)),
]


@pytest.mark.parametrize("shape, new_shape", RESHAPES)
def test_through_reshape(shape, new_shape):
    """Whatever order is found describes the memory; the model's own is always found."""
    array = np.arange(np.prod(shape)).reshape(shape)
    expected = array.reshape(new_shape)
    for order in itertools.permutations(range(len(shape))):
        found = orders.through_reshape(order, shape, new_shape)
        if found is None:
            assert order != orders.own(len(shape))
            continue
        memory = stored(array, order).reshape(orders.extents(new_shape, found))
        np.testing.assert_array_equal(memory, stored(expected, found))


@pytest.mark.parametrize("shape, new_shape, order, found", [
    ((2, 3, 4, 5), (2, 3, 20), (0, 2, 3, 1), (0, 2, 1)),
    ((2, 3, 4, 5), (2, 60), (0, 2, 3, 1), None),
    ((2, 3, 1, 1), (2, 3), (0, 2, 3, 1), (0, 1)),
    ((2, 3, 1, 5), (2, 15), (0, 2, 3, 1), None),
    ((2, 6, 4, 5), (2, 2, 3, 4, 5), (0, 2, 3, 1), (0, 3, 4, 1, 2)),
    ((N, 3, 4, 5), (N, 3, 20), (0, 2, 3, 1), (0, 2, 1)),
    ((2, 3, N, 5), (2, 3, N * 5), (0, 2, 3, 1), None),
    ((2, 0, 4), (2, 0), (0, 2, 1), None),
    ((0, 3, 4), (0, 5), (0, 2, 1), None),
])  # fmt: skip
def test_which_order_a_reshape_leaves(shape, new_shape, order, found):
    assert orders.through_reshape(order, shape, new_shape) == found


def test_axes_of_extent_one_do_not_count():
    assert orders.is_same_memory((0, 1, 2, 3), (0, 2, 3, 1), (2, 3, 1, 1))
    assert orders.is_same_memory((0, 1, 2, 3), (0, 2, 3, 1), (2, 1, 4, 5))
    assert not orders.is_same_memory((0, 1, 2, 3), (0, 2, 3, 1), (2, 3, 1, 5))
    assert not orders.is_same_memory((0, 1), (1, 0), (N, 3))
