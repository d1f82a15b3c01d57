"""CUDA's runtime library: found where PyTorch or the toolkit has put it, and asked for memory."""

from __future__ import annotations

import ctypes
import site
import sys
from functools import cache
from pathlib import Path

NAME = "libcudart.so.13"


@cache
def library() -> ctypes.CDLL | None:
    """Load CUDA's runtime for all that is loaded later; None where this machine has none.

    PyTorch's own copy, in site-packages, comes first: whoever asks by the bare name gets what is
    loaded already, and PyTorch must not get an older one.
    """
    for path in [*_of_packages(), NAME, *_of_toolkits()]:
        try:
            return ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
        except OSError:
            continue
    return None


class MemoryMeter:
    """Measures the device memory that this process holds, while all others stand still.

    Only differences within a turn count: between its turns the others take and give memory too.
    """

    def __init__(self) -> None:
        self._held = 0
        self._start = _in_use()

    def begin(self) -> None:
        """Note what is in use at the start of a turn."""
        self._start = _in_use()

    def now(self) -> dict[str, float] | None:
        """Return by how many MB this process has grown since the meter was made; None if unknown.

        What libraries have kept for the next step counts, so this is the most that was used.
        """
        now = _in_use()
        if now is None or self._start is None:
            return None
        return {"growth_mb": (self._held + now - self._start) / 1e6}

    def end(self) -> None:
        """Note what is still held at the end of a turn, after what can be given back was."""
        now = _in_use()
        if now is not None and self._start is not None:
            self._held += now - self._start


def _in_use() -> int | None:
    """Return the bytes of device memory that are in use, by anybody; None without a GPU."""
    cudart = library()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    if cudart is None or cudart.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total)):
        return None
    return total.value - free.value


def _of_packages() -> list[str]:
    folders = [*map(Path, site.getsitepackages()), Path(site.getusersitepackages())]
    folders += [Path(entry) for entry in sys.path if entry]
    found = [path for folder in folders for path in sorted(folder.glob(f"nvidia/*/lib/{NAME}"))]
    return [str(path) for path in found]


def _of_toolkits() -> list[str]:
    return [str(path) for path in sorted(Path("/usr/local").glob(f"cuda*/lib64/{NAME}"))]
