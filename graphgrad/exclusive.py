"""One thread at a time where TVM keeps state that all threads share."""

import threading

BLOCK_BUILDER = threading.RLock()
"""Held while a `BlockBuilder` is inside a function: TVM keeps all open builders on one stack."""
