"""Arrays of bfloat16 that are handed over to functions."""

import numpy as np
import pytest
from tvm import te, tirx, topi

from graphgrad.errors import ArgumentError
from graphgrad.fallback import create_prim_func
from tests.fallback.interpreter import numpy_dtype
from tests.fallback.running import run, unwritten

NARROW = numpy_dtype("bfloat16")
VALUES = np.array([[3, -5, -1, 2, -7, 0.5], [-2, -3, 4, 0, 9, -8]]).astype(NARROW)
X = te.placeholder(VALUES.shape, "bfloat16", name="x")
WIDE = VALUES.astype("float32")


@pytest.mark.parametrize("inner", [False, True], ids=["alone", "between stages"])
@pytest.mark.parametrize("largest_first", [False, True])
def test_sorting(inner, largest_first):
    """TVM's own reads behind the end of the array, and writes there."""
    data = te.compute(X.shape, lambda i, j: X(i, j) * 2, name="doubled") if inner else X
    y = topi.sort(data, 1, not largest_first)
    y = te.compute(X.shape, lambda i, j: y(i, j) / 2, name="halved") if inner else y
    *_, given = run(create_prim_func([X, y]), VALUES, *unwritten(y))
    expected = np.sort(WIDE, 1)[:, ::-1] if largest_first else np.sort(WIDE, 1)
    assert given.dtype == NARROW
    np.testing.assert_array_equal(given, expected)


def test_places():
    order = topi.argsort(X, None, 0, dtype="int32")
    *_, given = run(create_prim_func([X, order]), VALUES, *unwritten(order))
    np.testing.assert_array_equal(given, np.argsort(WIDE, 0, kind="stable"))


def test_the_largest():
    outputs = topi.topk(X, 2, 1, dtype="int32")
    _, values, places = run(create_prim_func([X, *outputs]), VALUES, *unwritten(*outputs))
    np.testing.assert_array_equal(values, [[3, 2], [9, 4]])
    np.testing.assert_array_equal(places, [[0, 3], [4, 2]])


def test_other_dtypes_stay():
    x = te.placeholder((4,), "float16", name="x")
    func = create_prim_func([x, topi.sort(x)])
    assert func.body.block.alloc_buffers == []


def test_a_function_that_may_expect_bfloat16_is_refused():
    def call(inputs, outputs):
        return tirx.call_packed("my.function", inputs[0], outputs[0])

    y = te.extern([X.shape], [X], call, dtype=["bfloat16"], name="y")
    with pytest.raises(ArgumentError, match=r"the stage y hands an array of bfloat16 to my\.func"):
        create_prim_func([X, y])
