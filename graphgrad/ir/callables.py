"""The source location of a user's function, for messages."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from types import CodeType
from typing import Any


def location_of(function: Callable[..., Any]) -> str:
    """``file:line`` of a function, or its ``repr`` where it has no Python source.

    The location of a decorated function is that of the function inside; of a partial function, or
    an object with a ``__call__``, that of the function which it calls.
    """
    code = _code_of(function)
    return repr(function) if code is None else f"{code.co_filename}:{code.co_firstlineno}"


def failing_line(function: Callable[..., Any], error: BaseException) -> int | None:
    """The line of a function's file in which an error was raised; None if it was raised elsewhere.

    Of several calls in that file, the innermost is meant.
    """
    code = _code_of(function)
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if code is not None and frame.filename == code.co_filename
    ]
    return lines[-1] if lines else None


def _code_of(function: Callable[..., Any]) -> CodeType | None:
    """The code of the function inside a function; None where there is no Python source."""
    inner = inspect.unwrap(getattr(function, "func", function))
    if not hasattr(inner, "__code__"):
        inner = inspect.unwrap(type(inner).__call__)
    return getattr(inner, "__code__", None)
