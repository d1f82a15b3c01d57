"""The last rule: statements without parallel loops run in a single thread, as on the host."""

from __future__ import annotations

import tvm
from tvm import tirx

from .parallel import launch_each, launch_points


def launch_statements(func: tirx.PrimFunc, _: tvm.target.Target) -> tirx.PrimFunc:
    """The PrimFunc with each statement launched: in one thread if nothing is parallel."""
    return launch_each(func, launch_points)
