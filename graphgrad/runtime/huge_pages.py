"""Huge pages for large tensors, where the system gives them to those who ask.

A processor finds the places of some thousand pages without looking them up in memory: a few MB in
pages of 4 kB, which a pass over one tensor exceeds, and all of a step in pages of 2 MB. Linux gives
these by itself or on advice, as it is set up, and most distributions wait for advice
(Documentation/admin-guide/mm/transhuge.rst). So numpy advises for its arrays, and this for tensors.
"""

from __future__ import annotations

import ctypes
import mmap
import sys

_LEAST_BYTES = 1 << 22
"""Memory below which it is not worth the call: too little of it lies in whole pages of 2 MB."""

_madvise = getattr(ctypes.CDLL(None), "madvise", None) if sys.platform == "linux" else None


def advise_huge_pages(address: int, size: int) -> None:
    """Ask for huge pages in a range of memory, best before it is first written.

    Where the system knows none, or gives none, nothing changes.

    Parameters
    ----------
    address : int
    size : int
        In bytes.
    """
    if _madvise is None or size < _LEAST_BYTES:
        return
    # Advice is given for whole pages, the ordinary ones; those at the ends may be of others too.
    page = mmap.PAGESIZE
    first, end = -(-address // page) * page, (address + size) // page * page
    _madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), mmap.MADV_HUGEPAGE)
