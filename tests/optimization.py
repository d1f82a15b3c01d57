"""Which tests have programs compiled with LLVM's optimization, as users' programs are.

It takes a quarter of the time that a small program takes to compile. Where tests look at code for
processors, at memory, at what is exported, or at whole models, programs are optimized, and so is
what tests run in processes of their own. Elsewhere they look at what programs compute, before LLVM.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest

TESTS = Path(__file__).parent

OPTIMIZED = ("lower", "memory", "models", "runtime")
"""The rooms of tests in which programs are optimized; elsewhere it is tests marked `optimized`."""


@contextmanager
def optimization_of(item: pytest.Item) -> Iterator[None]:
    """The optimization that a test needs."""
    room = item.path.relative_to(TESTS).parts[0]
    if room in OPTIMIZED or item.get_closest_marker("optimized"):
        yield
        return
    from graphgrad.lower import target

    with mock.patch.object(target, "_OPT_LEVEL", 0):
        yield
