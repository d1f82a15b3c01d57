"""Pools of threads whose stacks are large enough for TVM and LLVM."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_STACK_BYTES = 64 << 20
"""Stack of a thread: TVM and LLVM recurse into expressions, and some systems give threads little.

Only what is used of it takes memory.
"""

_stack_size_lock = threading.Lock()


def map_in_threads(
    work: Callable[[_Item], _Result], items: Sequence[_Item], most: int | None = None
) -> list[_Result]:
    """The results for all items, computed by a thread each; raise the first error.

    With `most`, there are no more threads than that, which take the items in order. An error, or
    Ctrl-C, waits for no other thread: what has not begun is canceled, what has begun ends unseen.
    """
    if not items:
        return []
    threads = ThreadPoolExecutor(min(len(items), most or len(items)))
    try:
        with stack_for_llvm():  # threads are started by `submit`
            pending = [threads.submit(work, item) for item in items]
        return [task.result() for task in pending]
    finally:
        # LLVM cannot be stopped. Where all has gone well, nothing is left to cancel.
        threads.shutdown(wait=False, cancel_futures=True)


@contextmanager
def stack_for_llvm() -> Iterator[None]:
    """Let threads that are started in the ``with`` block have a stack that is large enough."""
    with _stack_size_lock:
        before = threading.stack_size(_STACK_BYTES)
        try:
            yield
        finally:
            threading.stack_size(before)
