"""Memory of the differential suite: what reads beside a tensor there ends its process."""

import numpy as np
import pytest
import tvm

from tests.guarded_memory import guarded, guarded_copy

READ = """
import ctypes
from tests.guarded_memory import guarded

ends, begins = guarded((1024,), "float32"), guarded((1024,), "float32")
beside = {"behind": ends.data_ptr() + 4096, "before": begins.data_ptr() - 1}["%s"]
print("reads", flush=True)
ctypes.c_byte.from_address(beside).value
print("has read")
"""


@pytest.mark.parametrize("where", ["before", "behind"])
def test_a_guard_ends_the_process(where, python):
    done = python.run(READ % where)
    assert done.stdout == "reads\n"
    assert done.returncode


@pytest.mark.parametrize("dtype", ["float32", "int8", "bfloat16", "bool", "int64"])
@pytest.mark.parametrize("shape", [(), (0, 3), (5, 7), (4096,)])
def test_tensors_of_any_kind(shape, dtype):
    for _ in range(2):
        tensor = guarded(shape, dtype)
        assert tuple(tensor.shape) == shape
        assert str(tensor.dtype) == dtype
        assert tensor.data_ptr() % 64 == 0


def test_a_copy_has_the_same_elements():
    array = np.arange(35.0).reshape(5, 7)
    copy = guarded_copy(tvm.runtime.tensor(array))
    np.testing.assert_array_equal(copy.numpy(), array)
