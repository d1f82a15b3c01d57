"""The larger and the smaller of two elements, of which NaN wins."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from .tensor import is_float


def larger(a: Any, b: Any) -> Any:
    """Return the larger of two elements, or NaN if one is: the stock form may drop it."""
    return tirx.Select(a > b, a, tirx.Select(b >= a, b, a + b)) if _is_float(a) else tirx.max(a, b)


def smaller(a: Any, b: Any) -> Any:
    """Return the smaller of two elements, or NaN if one is: the stock form may drop it."""
    return tirx.Select(a < b, a, tirx.Select(b <= a, b, a + b)) if _is_float(a) else tirx.min(a, b)


def _is_float(value: Any) -> bool:
    return is_float(str(value.ty).removeprefix("T."))
