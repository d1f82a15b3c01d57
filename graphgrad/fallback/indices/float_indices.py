"""Indices that are computed with floats, as those of an image that is resized: made integer.

The value at every point of a loop is worked out when the gradient is derived, in intervals that
hold whatever the compiled code rounds to, with multiplications and additions fused or not. If
each rounds to one integer, and the integers are ⌊(a·i + b) / c⌋, that is what the index is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import tirx
from tvm.ir import prim

from ..backprop import is_float
from ..constants import integer_value
from ..walk import Expr, called, children, identity, postorder, transformed
from .linear_system import Axis

_MAX_TRIPS = 1 << 14
"""Trips of a loop beyond which its values are not worked out."""

_MAX_DIVISOR = 64
"""Scales of images are ratios of small integers; each divisor is one more to be tried."""

_ERROR = {
    "float64": (2.0**-50, 2.0**-1022),
    "float32": (2.0**-21, 2.0**-126),
    "float16": (2.0**-8, 2.0**-14),
    "bfloat16": (2.0**-5, 2.0**-126),
}
"""More than the error of an operation, by dtype: relative, and absolute where it underflows."""

_ROUNDINGS: dict[str, Callable[[Any], Any]] = {
    "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "round": np.rint, "nearbyint": np.rint,
}  # fmt: skip


class _UnknownValueError(Exception):
    """A value cannot be worked out, or not for certain."""


@dataclass(frozen=True)
class _Range:
    """What a value lies between, at each point of a loop."""

    low: Any
    high: Any

    @property
    def exact(self) -> Any:
        """Where both bounds are the value itself."""
        return self.low == self.high


def replace_float_arithmetic(index: Expr, axes: Sequence[Axis]) -> Expr:
    """An index with what is computed with floats replaced by integer divisions.

    What cannot be is left as it is.
    """
    loops = {identity(axis.var): axis for axis in axes}

    def change(node: Expr) -> Expr:
        if isinstance(node, prim.Cast) and is_float(node.value.ty) and _is_index(node):
            division = _as_division(node, loops)
            return node if division is None else division
        return node

    return transformed(index, change)


def _as_division(node: Any, loops: Mapping[int, Axis]) -> Expr | None:
    """An expression of integers with the values of a cast, None if none is found."""
    used = {identity(n): n for n in postorder(node.value) if isinstance(n, tvm.ir.Var)}
    # Values are worked out along one loop.
    if len(used) != 1:
        return None
    axis = loops.get(next(iter(used)))
    if axis is None or integer_value(axis.low) is None:
        return None
    trips = integer_value(axis.extent)
    if trips is None or not 0 < trips <= _MAX_TRIPS:
        return None
    try:
        with np.errstate(all="ignore"):
            values = _integers(node, axis, trips)
    except _UnknownValueError:
        return None
    fitted = _fit_division(values)
    if fitted is None:
        return None
    factor, offset, divisor = fitted
    count = (axis.var - axis.low).astype(str(node.ty))
    return tirx.floordiv(count * factor + offset, divisor)


def _is_index(node: Expr) -> bool:
    return str(node.ty) in ("int32", "int64")


def _integers(node: Any, axis: Axis, trips: int) -> Any:
    """The value of a cast at each point of a loop."""
    start = np.arange(trips, dtype=np.float64) + int(axis.low)
    results = {identity(axis.var): _Range(start, start)}
    for part in postorder(node):
        if identity(part) not in results:
            parts = [results[identity(child)] for child in children(part)]
            results[identity(part)] = _value(part, parts)
    return results[identity(node)].low.astype(np.int64)


def _value(node: Any, parts: Sequence[_Range]) -> _Range:
    if isinstance(node, prim.IntImm | prim.FloatImm):
        value = np.float64(node.value)
        return _Range(value, value)
    if isinstance(node, prim.Cast):
        return _rounded_to(node, parts[0]) if is_float(node.ty) else _whole(np.trunc, parts[0])
    rounding = _ROUNDINGS.get(called(node).split(".")[-1])
    if rounding is not None:
        return _whole(rounding, parts[0])
    if isinstance(node, prim.Min | prim.Max):
        choose = np.minimum if isinstance(node, prim.Min) else np.maximum
        return _Range(choose(parts[0].low, parts[1].low), choose(parts[0].high, parts[1].high))
    result = _arithmetic(node, parts)
    if is_float(node.ty):
        return _rounded_to(node, result)
    # From 2⁵³ on, float64 does not hold every integer.
    if np.abs([result.low, result.high]).max() > 2**52:
        raise _UnknownValueError
    return result


def _arithmetic(node: Any, parts: Sequence[_Range]) -> _Range:
    """The bounds of an operation on reals; apart by more than nothing if it is inexact."""
    operation: Any
    if isinstance(node, prim.Add | prim.Sub):
        operation = np.add if isinstance(node, prim.Add) else np.subtract
    elif isinstance(node, prim.Mul):
        operation = np.multiply
    elif isinstance(node, prim.Div) and is_float(node.ty):
        if ((parts[1].low <= 0) & (parts[1].high >= 0)).any():
            raise _UnknownValueError
        operation = np.divide
    else:
        raise _UnknownValueError
    a, b = parts
    # Monotone in each operand, so the extremes are at the ends of both.
    corners = [operation(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
    low, high = np.minimum.reduce(corners), np.maximum.reduce(corners)
    # Of exact operands the result may be inexact, by one rounding of float64.
    inexact = a.exact & b.exact & ~_is_exact(operation, a.low, b.low, low)
    return _Range(low - inexact * abs(low) * 2.0**-52, high + inexact * abs(high) * 2.0**-52)


def _is_exact(operation: Any, a: Any, b: Any, result: Any) -> Any:
    """Whether an operation on float64 numbers gave the very result, at each point."""
    if operation in (np.add, np.subtract):
        b = b if operation is np.add else -b
        # Knuth's two-sum: the rounding error of an addition, exactly.
        moved = result - a
        return (a - (result - moved)) + (b - moved) == 0
    x, product = (result, a) if operation is np.divide else (a, result)
    # Two factors of 24 bits have a product of at most 48.
    return (np.float32(x) == x) & (np.float32(b) == b) & (x * b == product)


def _rounded_to(node: Any, value: _Range) -> _Range:
    """The bounds of a value in the dtype of a node."""
    dtype = str(node.ty)
    if dtype not in _ERROR:
        raise _UnknownValueError
    # What the dtype holds is not rounded.
    representable = _representable(value.low, dtype) & value.exact
    relative, absolute = _ERROR[dtype]
    low = value.low - (relative * abs(value.low) + absolute)
    high = value.high + (relative * abs(value.high) + absolute)
    return _Range(
        np.where(representable, value.low, low), np.where(representable, value.high, high)
    )


def _representable(value: Any, dtype: str) -> Any:
    if dtype == "bfloat16":  # 8 of the 24 bits of a float32
        bits = np.asarray(value, np.float32).view(np.uint32)
        return (np.float32(value) == value) & (bits & np.uint32(0xFFFF) == 0)
    return np.asarray(value).astype(dtype) == value


def _whole(rounding: Any, value: _Range) -> _Range:
    """The integers that a value rounds to.

    Raises
    ------
    _UnknownValueError
        It may round to either of two.
    """
    low, high = rounding(value.low), rounding(value.high)
    # Rounding functions differ on halves: to even, or away from 0.
    tie = rounding is np.rint and (np.abs(value.low - low) == 0.5).any()
    if tie or not (low == high).all() or np.abs(low).max() > 2**31:
        raise _UnknownValueError
    return _Range(low, high)


def _fit_division(values: Any) -> tuple[int, int, int] | None:
    """The a, b and c with values[k] = ⌊(a·k + b) / c⌋ for all k, None if there are none."""
    steps = np.arange(len(values))
    slope = (int(values[-1]) - int(values[0])) / max(len(values) - 1, 1)
    for divisor in range(1, _MAX_DIVISOR + 1):
        for factor in sorted({int(np.floor(slope * divisor)), int(np.ceil(slope * divisor))}):
            # c·v ≤ a·k + b ≤ c·v + c - 1
            least = values * divisor - factor * steps
            # One b fits all k if the greatest lower bound is not above the least upper one.
            if least.max() <= least.min() + divisor - 1:
                return factor, int(least.max()), divisor
    return None
