"""Freed memory goes back to the system, where the C library keeps it."""

import sys

import pytest

from graphgrad.memory import heap

PROGRAM = """
import ctypes
from pathlib import Path
from graphgrad.memory.heap import give_back

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
blocks = [libc.malloc(60_000) for _ in range(2_000)]
for block in blocks:
    ctypes.memset(block, 1, 60_000)
for block in blocks[:-1]:  # the last one keeps the C library from giving back the rest
    libc.free(block)
before = resident()
give_back()
print(before - resident())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_what_was_freed_is_no_longer_resident(python):
    assert int(python.run(PROGRAM).stdout) > 60_000_000


def test_other_systems_are_left_alone(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    heap.give_back()
