"""The larger and the smaller of two elements: every pair of kinds, against numpy."""

import itertools

import numpy as np
import pytest
from tvm import te

from graphgrad.ir.arrays import to_tensor
from graphgrad.ops.elementwise import larger, smaller
from tests.running import compile_library

KINDS = [0.0, 1.0, np.inf, np.nan, np.finfo("float32").smallest_subnormal]
FLOATS = np.array([sign * kind for kind in KINDS for sign in (1, -1)], "float32")
INTEGERS = np.array([-(2**31), -1, 0, 1, 2**31 - 1], "int32")


@pytest.mark.parametrize(
    ("choose", "reference"), [(larger, np.maximum), (smaller, np.minimum)], ids=["max", "min"]
)
@pytest.mark.parametrize("values", [FLOATS, INTEGERS], ids=["float32", "int32"])
def test_every_pair(choose, reference, values):
    a, b = (np.array(side) for side in zip(*itertools.product(values, values), strict=True))
    x, y = (te.placeholder(a.shape, str(a.dtype), name) for name in "xy")
    z = te.compute(a.shape, lambda i: choose(x(i), y(i)), name="z")
    library = compile_library(te.create_prim_func([x, y, z]))
    result = to_tensor(np.zeros_like(a))
    library(to_tensor(a), to_tensor(b), result)
    np.testing.assert_array_equal(result.numpy(), reference(a, b))
