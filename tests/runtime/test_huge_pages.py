"""Advice for huge pages, as Linux notes it beside the memory that it is for."""

import sys
from pathlib import Path

import numpy as np
import pytest
import tvm

from graphgrad.runtime import huge_pages
from graphgrad.runtime.arrays import empty

PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")

linux = pytest.mark.skipif(
    sys.platform != "linux" or not PAGES.exists(), reason="only Linux notes advice"
)


def advised(address):
    """Return whether the mapping that an address lies in has been advised to be in huge pages."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *fields = line.split()
        if "-" in first:
            start, end = (int(bound, 16) for bound in first.split("-"))
            inside = start <= address < end
        elif inside and first == "VmFlags:":
            return "hg" in fields
    raise AssertionError("the address lies in no mapping")


@linux
def test_memory_of_a_large_tensor_is_advised():
    tensor = empty((3 << 20,), "float32", tvm.cpu())
    assert advised(tensor.data_ptr() + tensor.numpy().nbytes // 2)
    ones = np.ones(3 << 20, np.float32)
    np.testing.assert_array_equal(tensor.copyfrom(ones).numpy(), ones)


@linux
def test_advice_stays_inside_the_memory():
    import mmap

    page = mmap.PAGESIZE
    size = huge_pages._LEAST_BYTES + 2 * page
    with mmap.mmap(-1, 4 * size) as memory:
        address = np.frombuffer(memory, np.uint8).ctypes.data
        huge_pages.advise_huge_pages(address + size + 1, size)
        assert advised(address + size + page)
        assert not advised(address + size)
        assert not advised(address + 2 * size + page)


@pytest.mark.parametrize("dtype", ["bool", "bfloat16", "int4"])
def test_tensors_of_any_dtype_can_be_made(dtype):
    assert empty((1 << 12,), dtype, tvm.cpu()).shape == (1 << 12,)


def test_a_system_without_advice_gives_memory_all_the_same(monkeypatch):
    monkeypatch.setattr(huge_pages, "_madvise", None)
    assert empty((3 << 20,), "float32", tvm.cpu()).shape == (3 << 20,)
