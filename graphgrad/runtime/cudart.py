"""CUDA's runtime library, which TVM's CUDA runtime has loaded."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

NAME = "libcudart.so.13"


@functools.cache
def library() -> Any:
    """The library, loaded.

    Raises
    ------
    OSError
        It is not there.
    """
    loaded = ctypes.CDLL(NAME)
    loaded.cudaGetErrorName.restype = ctypes.c_char_p
    return loaded


def set_device(index: int) -> None:
    """Have those calls of this thread mean a device that name none; others may have changed it."""
    library().cudaSetDevice(index)
