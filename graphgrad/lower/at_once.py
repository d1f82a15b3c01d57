"""Threads that TVM and LLVM can work in."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_STACK_BYTES = 64 << 20
"""Stack of a thread: TVM and LLVM descend into expressions, and some systems give threads little.

Only what is used of it takes memory.
"""

_stack_size_lock = threading.Lock()


def at_once(work: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
    """Return the results for all items, computed by a thread each; raise the first error."""
    with ThreadPoolExecutor(len(items)) as threads:
        with _stack_size_lock:
            before = threading.stack_size(_STACK_BYTES)
            try:
                pending = [threads.submit(work, item) for item in items]
            finally:
                threading.stack_size(before)
        return [task.result() for task in pending]
