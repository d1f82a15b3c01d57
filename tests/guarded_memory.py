"""Tensors beside pages that nobody may touch: reading or writing there ends the process."""

import ctypes
import mmap
from itertools import count

import numpy as np
import tvm
import tvm_ffi

from graphgrad.ir.arrays import to_tensor

_PAGE = mmap.PAGESIZE
_ALIGNMENT = 64
_NOBODY = 0
_protect = ctypes.CDLL(None, use_errno=True).mprotect
_protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_next = count()


def guarded(shape, dtype):
    """Return a tensor of ones, bit by bit (floats are NaN), with a guard at one of its ends.

    One tensor ends where a guard begins, as nearly as its alignment lets it; the next one begins
    where a guard ends.
    """
    bits = tvm_ffi.dtype(str(dtype)).bits
    size = int(np.prod([int(extent) for extent in shape], dtype=int)) * -(-bits // 8)
    usable = -(-max(size, 1) // _PAGE) * _PAGE
    memory = np.frombuffer(mmap.mmap(-1, usable + 2 * _PAGE), np.uint8)
    start = memory.ctypes.data
    for guard in (start, start + _PAGE + usable):
        if _protect(guard, _PAGE, _NOBODY):
            raise OSError(ctypes.get_errno(), "mprotect")
    at_end = next(_next) % 2 == 0
    offset = _PAGE + ((usable - size) // _ALIGNMENT * _ALIGNMENT if at_end else 0)
    memory[offset : offset + size] = 0xFF
    whole = tvm.runtime.from_dlpack(memory[offset : offset + max(size, 1)])
    return whole._create_view([int(extent) for extent in shape], str(dtype))


def guarded_copy(tensor):
    """Return a copy of a tensor that lies beside a guard."""
    return guarded(tensor.shape, tensor.dtype).copyfrom(tensor)


def guarded_tensor(array):
    """Return an array of numpy as a tensor that lies beside a guard."""
    return guarded_copy(to_tensor(array))
