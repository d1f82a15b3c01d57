"""The heap of the process: memory that was freed goes back to the system."""

from __future__ import annotations

import ctypes
import sys


def give_back() -> None:
    """Give freed memory back to the system, where the C library keeps it (glibc).

    It keeps what is freed below something that is still there, and the parts of every thread:
    after a program is compiled or imported, as much as a small network needs for its steps. This
    takes some ten milliseconds then.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
