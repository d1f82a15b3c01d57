"""Random indices with known bounds, and ways to keep them inside a dimension."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tvm import tirx

from tests.fallback.choices import Choices


class Index(NamedTuple):
    """An integer expression and its bounds, both inclusive."""

    expr: Any
    low: int
    high: int


Fit = tuple[Any, Any]
"""An index, and the condition under which it is inside its dimension; None if it always is."""


def random_index(choices: Choices, axes: Sequence[Index], data: Callable[[], Index]) -> Index:
    """Return an index in terms of some axes.

    Parameters
    ----------
    choices : Choices
    axes : sequence of Index
    data : callable
        Returns an integer that is read from a tensor.
    """
    if not axes:
        return constant(choices.integer(0, 1))
    kinds: list[Callable[[], Index]] = [
        lambda: choices.pick(axes),
        lambda: _affine(choices, axes),
        lambda: _affine(choices, axes),
        lambda: _affine(choices, axes),
        lambda: _divided(choices, _affine(choices, axes)),
        lambda: _divided(choices, _flattened(choices, axes)),
        lambda: _truncated(choices, _affine(choices, axes)),
        lambda: _extreme(choices, _affine(choices, axes), _affine(choices, axes)),
        lambda: _chosen(choices, axes),
        lambda: constant(choices.integer(-1, 2)),
        data,
    ]
    return choices.pick(kinds)()


def fitted(choices: Choices, index: Index, extent: int) -> Fit:
    """Return an index into a dimension, moved, folded or guarded so that it is inside."""
    width = index.high - index.low + 1
    folds = [_clamped, _wrapped, _mirrored, _guarded, _guarded]
    if extent == 0:
        fit = _guarded(choices, index, extent)
    elif width <= extent and choices.chance(0.6):
        fit = _moved(index, choices.integer(0, extent - width)), None
    else:
        fit = choices.pick(folds)(choices, index, extent)
    if choices.chance(0.15):
        return extent - 1 - fit[0], fit[1]
    return fit


def clamped(index: Any, extent: int) -> Any:
    """Return the index of a dimension that is nearest to an index."""
    return tirx.max(tirx.min(index, extent - 1), 0)


def constant(value: int) -> Index:
    """Return an index that is the same everywhere."""
    return Index(tirx.const(value, "int32"), value, value)


def _affine(choices: Choices, axes: Sequence[Index]) -> Index:
    total = _scaled(choices.pick(axes), choices.pick([1, 1, 2, 3, -1, -2]))
    while choices.chance(0.4):
        total = _added(total, _scaled(choices.pick(axes), choices.pick([1, 1, 2, 3, -1])))
    return total


def _flattened(choices: Choices, axes: Sequence[Index]) -> Index:
    """Two axes as one, in row-major order, as a reshape has them."""
    major, minor = choices.pick(axes), choices.pick(axes)
    inner = Index(_moved(minor, 0), 0, minor.high - minor.low)
    return _added(_scaled(major, max(inner.high + 1, 1)), inner)


def _divided(choices: Choices, index: Index) -> Index:
    divisor = choices.integer(2, 4)
    if choices.chance(0.5):
        return Index(tirx.floormod(index.expr, divisor), 0, divisor - 1)
    quotient = tirx.floordiv(index.expr, divisor)
    return Index(quotient, index.low // divisor, index.high // divisor)


def _truncated(choices: Choices, index: Index) -> Index:
    """Quotient or remainder as C has them, of something that is not negative."""
    divisor = choices.integer(2, 4)
    positive, high = _moved(index, 0), index.high - index.low
    if choices.chance(0.5):
        return Index(tirx.truncmod(positive, divisor), 0, divisor - 1)
    return Index(tirx.truncdiv(positive, divisor), 0, high // divisor)


def _extreme(choices: Choices, a: Index, b: Index) -> Index:
    if choices.chance(0.3):
        b = constant(choices.integer(0, 2))
    if choices.chance(0.5):
        return Index(tirx.max(a.expr, b.expr), max(a.low, b.low), max(a.high, b.high))
    return Index(tirx.min(a.expr, b.expr), min(a.low, b.low), min(a.high, b.high))


def _chosen(choices: Choices, axes: Sequence[Index]) -> Index:
    a, b, by = _affine(choices, axes), _affine(choices, axes), choices.pick(axes)
    condition = by.expr >= choices.integer(by.low, max(by.low, by.high))
    select = choices.pick([tirx.if_then_else, tirx.Select])
    return Index(select(condition, a.expr, b.expr), min(a.low, b.low), max(a.high, b.high))


def _scaled(index: Index, factor: int) -> Index:
    bounds = factor * index.low, factor * index.high
    return Index(index.expr * factor, min(bounds), max(bounds))


def _added(a: Index, b: Index) -> Index:
    return Index(a.expr + b.expr, a.low + b.low, a.high + b.high)


def _moved(index: Index, low: int) -> Any:
    """Return an index that begins at `low`."""
    return index.expr if index.low == low else index.expr - (index.low - low)


def _guarded(choices: Choices, index: Index, extent: int) -> Fit:
    moved = _moved(index, -choices.integer(0, max(index.high - index.low + 1 - extent, 0)))
    inside = [moved >= 0, moved < extent]
    if choices.chance(0.3):
        inside.reverse()
    return moved, tirx.all(*inside)


def _clamped(choices: Choices, index: Index, extent: int) -> Fit:
    return clamped(_moved(index, -choices.integer(0, 2)), extent), None


def _wrapped(choices: Choices, index: Index, extent: int) -> Fit:
    return tirx.floormod(index.expr - choices.integer(0, 2), extent), None


def _mirrored(choices: Choices, index: Index, extent: int) -> Fit:
    """Reflected at both ends, as often as it takes."""
    period = max(2 * (extent - 1), 1)
    place = tirx.floormod(index.expr - choices.integer(0, 2), period)
    return tirx.Select(place < extent, place, period - place), None


def scaled(index: Any, scale: float, offset: float = 0.0, dtype: str = "float32") -> Any:
    """Return an index computed with floats, as that of an image which is resized."""
    value = (index.astype(dtype) + tirx.const(offset, dtype)) * tirx.const(scale, dtype)
    return tirx.floor(value - tirx.const(offset, dtype)).astype("int32")
