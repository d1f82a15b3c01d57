"""Constants among expressions."""

from __future__ import annotations

from typing import Any

from tvm.ir import prim

from .walk import Expr


def integer_value(expr: Any) -> int | None:
    """The value of a constant integer, None if it is symbolic."""
    if type(expr) is prim.IntImm:
        return int(expr.value)
    return int(expr) if isinstance(expr, int) else None


def is_true(condition: Expr) -> bool:
    """Whether a condition is the constant true."""
    return is_constant(condition, True)


def is_false(condition: Expr) -> bool:
    """Whether a condition is the constant false."""
    return is_constant(condition, False)


def is_constant(condition: Expr, value: bool) -> bool:
    """Whether a condition is a constant of some value."""
    return type(condition) is prim.IntImm and bool(condition.value) == value
