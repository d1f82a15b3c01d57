"""The names that kernels were given, which gradient rules go by.

A module gives a kernel a name of its own where another kernel has that name already, as that of
the same function for another shape.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

_NAME = "graphgrad.name"
_LOOP = "graphgrad.loop"


def name_kernel(func: tirx.PrimFunc, name: str, carries: int | None = None) -> tirx.PrimFunc:
    """A kernel that knows the name that it was given; for `carries` see `loop_carries`."""
    named = func.with_attr(_NAME, name)
    return named if carries is None else named.with_attr(_LOOP, carries)


def name_as(func: tirx.PrimFunc, other: tirx.PrimFunc) -> tirx.PrimFunc:
    """A kernel with the name that another one was given, if that was given one."""
    name = given_name(other)
    return func if name is None else name_kernel(func, name, loop_carries(other))


def given_name(func: Any) -> str | None:
    """The name that a kernel was given; None of kernels that were not made by graphgrad."""
    return str(func.attrs[_NAME]) if _has(func, _NAME) else None


def loop_carries(func: Any) -> int | None:
    """How many carries the loop has whose kernel it is, as `gg.scan` made it; None of others."""
    return int(func.attrs[_LOOP]) if _has(func, _LOOP) else None


def _has(func: Any, attribute: str) -> bool:
    return isinstance(func, tirx.PrimFunc) and bool(func.attrs) and attribute in func.attrs
