"""Places and positions against numpy, for constant and symbolic shapes."""

import numpy as np
import pytest
from tvm import te, tirx

from graphgrad.fallback.indices.row_major import element_count, raveled, reshaped, unraveled
from tests.fallback.interpreter import evaluate

SHAPES = [(), (5,), (2, 3), (2, 1, 4), (3, 2, 2, 2), (2, 0), (2, 0, 3)]


@pytest.mark.parametrize("symbolic", [False, True], ids=["constant", "symbolic"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_places_are_those_of_numpy(shape, symbolic):
    constants = [tirx.const(extent, "int32") for extent in shape]
    sizes = [te.var(f"n{i}", "int64") for i in range(len(shape))] if symbolic else constants
    known = list(zip(sizes, shape, strict=True)) if symbolic else []
    count = int(np.prod(shape))
    places = te.compute(shape, lambda *at: raveled(at, sizes).astype("int64"), name="places")
    (given,) = evaluate([places], known)
    np.testing.assert_array_equal(given, np.arange(count).reshape(shape))
    there_and_back = te.compute(
        shape, lambda *at: raveled(unraveled(raveled(at, sizes), sizes), sizes).astype("int64")
    )
    np.testing.assert_array_equal(evaluate([there_and_back], known)[0], given)
    (given,) = evaluate([te.compute((), lambda: element_count(sizes).astype("int64"))], known)
    assert given == count


@pytest.mark.parametrize("shape", [(24,), (2, 12), (4, 3, 2), (5, 3)], ids=str)
def test_first_elements_in_another_shape(shape):
    x, values = te.placeholder((2, 3, 4), "float64", name="x"), np.arange(24.0).reshape(2, 3, 4)
    (given,) = evaluate([reshaped(x, shape)], [(x, values)])
    expected = values.ravel()[: int(np.prod(shape))].reshape(shape)
    np.testing.assert_array_equal(given, expected)


def test_a_tensor_of_that_shape_stays_as_it_is():
    x = te.placeholder((2, 3), "float64", name="x")
    assert reshaped(x, [2, 3]) is x
