"""Which tests have programs compiled with LLVM's optimization, as users' programs are.

It takes a quarter of the time that a small program takes to compile. Where tests look at code for
processors and at memory, programs are optimized, and so is what tests run in processes of their
own, such as the examples of the documents. Elsewhere they look at what is there before LLVM.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

OPTIMIZED = ("lower/codegen/", "lower/cpu/", "lower/kernels/", "lower/test_", "memory/")
"""How the paths of tests begin in which programs are optimized."""


@contextmanager
def optimization_of(file: str) -> Iterator[None]:
    """The optimization for the tests of a file, given by its path below ``tests/``."""
    if file.startswith(OPTIMIZED):
        yield
        return
    from graphgrad.lower import target

    with mock.patch.object(target, "_OPT_LEVEL", 0):
        yield
