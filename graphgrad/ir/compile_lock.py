"""The lock around the parts of TVM whose state all threads share."""

import os
import threading

COMPILE_LOCK = threading.RLock()
"""Held while a `BlockBuilder` is inside a function, and while a program is lowered.

All threads share TVM's stack of open builders, and the tag that stages of operators get."""

# A child that is forked while another thread holds the lock would find it held for ever, and the
# state that it guards half changed. So a fork waits for the lock.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=COMPILE_LOCK.acquire,
        after_in_parent=COMPILE_LOCK.release,
        after_in_child=COMPILE_LOCK.release,
    )
