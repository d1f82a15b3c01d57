"""The source location of a user's function, for messages."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def location_of(function: Callable[..., Any]) -> str:
    """``file:line`` of a function, or its ``repr`` where it has no Python source.

    The location of a decorated function is that of the function inside; of a partial function, or
    an object with a ``__call__``, that of the function which it calls.
    """
    inner = inspect.unwrap(getattr(function, "func", function))
    if not hasattr(inner, "__code__"):
        inner = type(inner).__call__
    code = getattr(inner, "__code__", None)
    return repr(function) if code is None else f"{code.co_filename}:{code.co_firstlineno}"
