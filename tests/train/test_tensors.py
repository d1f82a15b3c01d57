"""Tensors as arrays and numbers: all dtypes, copies, and memory that is shared on purpose."""

import ml_dtypes
import numpy as np
import pytest
import tvm

from graphgrad.ir.arrays import to_tensor
from graphgrad.train.tensors import memory_of, read, read_number

DTYPES = ["float32", "float64", "float16", ml_dtypes.bfloat16, "int64", "int8", "uint8", "bool"]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 3, 4)], ids=str)
def test_copies(dtype, shape):
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    tensor = to_tensor(array)
    copy = read(tensor)
    assert copy.dtype == array.dtype and copy.tobytes() == array.tobytes()
    assert copy.shape == shape and copy.flags.owndata
    if copy.size:
        copy[...] = 1
        assert read(tensor).tobytes() == array.tobytes()


@pytest.mark.parametrize("dtype", DTYPES[:5], ids=str)
def test_numbers(dtype):
    assert read_number(to_tensor(np.array(2.5).astype(dtype))) == float(np.array(2.5).astype(dtype))


def test_memory_is_that_of_the_tensor():
    tensor = tvm.runtime.empty((2, 2), "float32")
    memory_of(tensor)[...] = [[1, 2], [3, 4]]
    np.testing.assert_array_equal(tensor.numpy(), [[1, 2], [3, 4]])
