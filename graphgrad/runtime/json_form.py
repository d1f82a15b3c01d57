"""The form that a document of JSON must have, checked as a whole before anything in it is used."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np

Form: TypeAlias = Any
"""A predicate; ``[form]`` for a list of such values; ``{key: form}`` for an object with these keys.

A key that ends with ``?`` may be missing; keys that are not named are ignored.
"""

MOST_AXES = 32  # of numpy 1's arrays
_EXACT = 1 << 53  # below it, float64 holds every whole number


def misfit(value: Any, form: Form) -> str | None:
    """What in a value is not as a form says, in words; None if it fits."""
    return next(_misfits(value, form, ""), None)


def is_text(value: Any) -> bool:
    """Whether a value is a string."""
    return isinstance(value, str)


def is_flag(value: Any) -> bool:
    """Whether a value is true or false."""
    return isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether a value is a number that float64 can hold; not a flag."""
    return isinstance(value, int | float) and not is_flag(value) and -1e308 <= value <= 1e308


def is_natural(value: Any) -> bool:
    """Whether a value is a whole number from 0, which float64 holds exactly."""
    return isinstance(value, int) and not is_flag(value) and 0 <= value < _EXACT


def is_object(value: Any) -> bool:
    """Whether a value is an object, of any form."""
    return isinstance(value, dict)


def is_shape(value: Any) -> bool:
    """Whether a value is the shape of an array that could exist."""
    return (
        isinstance(value, list)
        and len(value) <= MOST_AXES
        and all(map(is_natural, value))
        and math.prod(extent or 1 for extent in value) < _EXACT
    )


def is_dtype(value: Any) -> bool:
    """Whether a value is the name of a dtype of numbers."""
    try:
        return is_text(value) and np.dtype(value).name == value and np.dtype(value).kind in "biufV"
    except (TypeError, ValueError, SyntaxError):  # numpy reads some texts as lists of fields
        return False


def or_none(form: Form) -> Callable[[Any], bool]:
    """Whether a value is null or of a form."""
    return lambda value: value is None or misfit(value, form) is None


def each(form: Form) -> Callable[[Any], bool]:
    """Whether a value is an object whose values, under any keys, are of a form."""
    return lambda value: (
        isinstance(value, dict) and all(misfit(member, form) is None for member in value.values())
    )


def _misfits(value: Any, form: Form, where: str) -> Iterator[str]:
    """Yield what is wrong with a value, which stands at `where` in the document."""
    if isinstance(form, dict):
        if not isinstance(value, dict):
            yield f"{where or 'it'} is no object"
            return
        for key, inner in form.items():
            name = key.removesuffix("?")
            path = f"{where}.{name}" if where else name
            if name in value:
                yield from _misfits(value[name], inner, path)
            elif name == key:
                yield f"{path} is missing"
    elif isinstance(form, list):
        if not isinstance(value, list):
            yield f"{where} is no list"
            return
        for index, member in enumerate(value):
            yield from _misfits(member, form[0], f"{where}[{index}]")
    elif not form(value):
        yield f"{where} is {repr(value)[:80]}"
