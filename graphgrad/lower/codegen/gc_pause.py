"""Python's search for cycles of dead objects, put off while a program is lowered."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _GcPauses:
    """Those that are under way in the process: the collector is one of all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._was_enabled = False

    def begin(self) -> None:
        with self._lock:
            if not self._count:
                self._was_enabled = gc.isenabled()
                gc.disable()
            self._count += 1

    def end(self) -> None:
        with self._lock:
            self._count -= 1
            if not self._count and self._was_enabled:
                gc.enable()


_gc_pauses = _GcPauses()


@contextmanager
def pause_gc() -> Iterator[None]:
    """Have Python look for no cycles inside the ``with`` block, as it did or did not before.

    Lowering makes objects by the hundred thousand and hardly a cycle. Each time a quarter more of
    them are alive, Python would look through all there are, also those of large libraries that the
    process has imported: a tenth of a second and more each time. What is in no cycle is freed as
    ever.
    """
    _gc_pauses.begin()
    try:
        yield
    finally:
        _gc_pauses.end()
