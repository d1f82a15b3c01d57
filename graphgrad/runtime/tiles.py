"""Tile registers of the processor (AMX), which Linux lets a process use once it has asked."""

from __future__ import annotations

import ctypes
import os
import platform

_ARCH_PRCTL = 158
"""The number of the system call on x86-64."""

_REQUEST_PERMISSION, _TILE_DATA = 0x1023, 18
"""``ARCH_REQ_XCOMP_PERM`` and ``XFEATURE_XTILEDATA`` (Linux, Documentation/arch/x86/xstate.rst)."""


def request_tiles() -> str:
    """Ask for the use of tile registers, by all threads of this process.

    Without it, the first instruction that uses one ends the process. To ask again does no harm.

    Returns
    -------
    str
        Why the system does not give them; empty if it does.
    """
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return f"graphgrad asks Linux on x86_64 alone for them, not {platform.system()}"
    system = ctypes.CDLL(None, use_errno=True)
    request = map(ctypes.c_long, (_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA))
    if system.syscall(*request) == 0:
        return ""
    return f"Linux {platform.release()} refuses: {os.strerror(ctypes.get_errno())}"
