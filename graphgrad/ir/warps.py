"""Warps: threads of a GPU that execute together, and can read each other's registers."""

from __future__ import annotations

from typing import Any

from tvm import tirx

WARP = 32
"""Threads of a warp."""

SHUFFLE = "__shfl_xor_sync"
"""CUDA's function by which a thread reads the register of the thread whose number differs in some
bits."""

_ALL_THREADS = tirx.const(-1, "int32")
"""The mask of a whole warp."""


def shuffled(value: Any, distance: int) -> Any:
    """The value that the thread at a distance has."""
    dtype = str(value.ty.dtype)
    # Narrow integers travel as wide ones.
    travels = dtype if dtype.startswith(("float", "bfloat", "int32", "int64")) else "int32"
    moved = tirx.call_extern(
        travels, SHUFFLE, _ALL_THREADS, value.astype(travels), tirx.const(distance, "int32")
    )
    return moved.astype(dtype)
