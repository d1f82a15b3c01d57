"""One thread at a time where TVM keeps state that all threads share."""

import threading

SHARED_STATE = threading.RLock()
"""Held while a `BlockBuilder` is inside a function, and while tensor expressions of operators are
made: TVM keeps all open builders on one stack, and the tag that stages get in one place."""
