"""One thread at a time where TVM keeps state that all threads share."""

import os
import threading

COMPILE_LOCK = threading.RLock()
"""Held while a `BlockBuilder` is inside a function, and while a program is lowered: TVM keeps all
open builders on one stack, and in one place the tag that stages of operators get."""

# A process that is forked meanwhile would find the lock held for ever, what it guards half done.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=COMPILE_LOCK.acquire,
        after_in_parent=COMPILE_LOCK.release,
        after_in_child=COMPILE_LOCK.release,
    )
