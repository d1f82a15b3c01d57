"""Maximum and minimum of two elements of tensor expressions, where NaN wins over any number."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from ..ir.tensor import is_float


def larger(a: Any, b: Any) -> Any:
    """The larger of two elements, or NaN if one of them is: ``tirx.max`` may drop it."""
    if not is_float_element(a):
        return tirx.max(a, b)
    # Both comparisons fail only where one is NaN, and then the sum is NaN.
    return tirx.Select(a > b, a, tirx.Select(b >= a, b, a + b))


def smaller(a: Any, b: Any) -> Any:
    """The smaller of two elements, or NaN if one of them is: ``tirx.min`` may drop it."""
    if not is_float_element(a):
        return tirx.min(a, b)
    return tirx.Select(a < b, a, tirx.Select(b <= a, b, a + b))


def is_float_element(value: Any) -> bool:
    """Whether an element of a tensor expression is a float."""
    return is_float(str(value.ty).removeprefix("T."))
