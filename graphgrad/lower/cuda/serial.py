"""The last resort: statements without parallel loops run in one thread, as the host would do."""

from __future__ import annotations

import tvm
from tvm import tirx

from .parallel import launch_each, on_own_threads


def one_thread(func: tirx.PrimFunc, _: tvm.target.Target) -> tirx.PrimFunc:
    """Return the PrimFunc with each statement launched: in one thread if nothing is parallel."""
    return launch_each(func, on_own_threads)
