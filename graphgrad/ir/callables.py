"""Where a function of the user's is written."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def location_of(function: Callable[..., Any]) -> str:
    """``file:line`` of a function, or its ``repr`` where it has no Python source.

    Decorated functions count where they are written, partial functions and objects with a
    ``__call__`` by what they call.
    """
    inner = inspect.unwrap(getattr(function, "func", function))
    if not hasattr(inner, "__code__"):
        inner = type(inner).__call__
    code = getattr(inner, "__code__", None)
    return repr(function) if code is None else f"{code.co_filename}:{code.co_firstlineno}"
