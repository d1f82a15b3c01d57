"""Which stages are convolutions with 3 by 3 windows: recognized by what they compute.

A convolution and its data gradient are one form, channels last, with any border of zeros and with
the windows as they are or turned; the weight gradient is another. What was derived from tensor
expressions takes the same forms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....ir.kernel_structure import Stage, buffer_of, static, substitute_values
from ....ir.loops import Index
from ...kernels.contraction import fixed_iterators, operands
from ...kernels.pads import Border, Terms, terms_of
from ..contraction import ResultStore
from .forward import TAPS, Convolution
from .transforms import Images
from .weight import WeightGradient


@dataclass(frozen=True)
class Slide:
    """How an index goes over a window.

    Attributes
    ----------
    axis : Var
    factor : int
        1 or -1: backwards.
    first : int
        Where the first row or column of the window is, seen from its place.
    """

    axis: Any
    factor: int
    first: int


class Sum:
    """A sum of products of two reads with four indices each, and a result with four.

    Parameters
    ----------
    stage : Stage
        With `operands`.
    realize : SBlockRealize
        Its block.
    """

    def __init__(self, stage: Stage, realize: Any):
        self.axes = {axis.var: axis for axis in stage.axes}
        fixed = fixed_iterators(realize)
        pair = operands(stage) or ()
        (store,) = stage.stores
        self.accesses = [
            Access(
                buffer_of(access),
                [terms_of(substitute_values(index, fixed), self.axes) for index in access.indices],
            )
            for access in (*pair, store)
        ]

    @property
    def is_plain(self) -> bool:
        """Whether all of its indices are affine, and there are four of each."""
        return all(
            len(access.indices) == 4 and None not in access.indices for access in self.accesses
        )

    def extents(self, indices: Sequence[Terms]) -> list[int] | None:
        """The extents of indices that are whole axes, or always zero; None if any is not."""
        found = [self._extent(index) for index in indices]
        return None if None in found else found  # type: ignore[return-value]

    def slide(self, index: Terms, base: Terms) -> Slide | None:
        """How an index goes over the rows or columns of a window; None if it does not.

        Parameters
        ----------
        index : Terms
        base : Terms
            The place of the window.
        """
        rest = {
            variable: index.get(variable, 0) - base.get(variable, 0) for variable in (*index, *base)
        }
        shift = rest.pop(None, 0)
        moved = {variable: factor for variable, factor in rest.items() if factor}
        if len(moved) != 1:
            return None
        ((variable, factor),) = moved.items()
        if abs(factor) != 1 or self.axes[variable].extent != TAPS:
            return None
        return Slide(variable, factor, shift if factor == 1 else shift - (TAPS - 1))

    def _extent(self, index: Terms) -> int | None:
        if not index:
            return 1
        (variable, *others) = index
        if others or variable is None or index[variable] != 1:
            return None
        return self.axes[variable].extent


@dataclass(frozen=True)
class Access:
    """A read or a write: its buffer, and its indices."""

    buffer: Any
    indices: list[Any]


def convolution_of(
    stage: Stage, realize: Any, borders: Mapping[Any, Border], result_store: ResultStore
) -> Convolution | None:
    """The convolution that a stage computes, None if it computes something else.

    y[n, i, j, k] = Σ x[n, i + r, j + s, c] · w[r, s, c, k], where r and s may fall in w or in x,
    and c and k may change places in w.

    Parameters
    ----------
    stage : Stage
    realize : SBlockRealize
        Its block.
    borders : dict
        By buffer, what it is a copy of, with a border.
    result_store : ResultStore
        What takes the results.
    """
    found = Sum(stage, realize)
    if len(stage.reduced) != 3 or not found.is_plain:
        return None
    for data, weight in (found.accesses[:2], found.accesses[1::-1]):
        made = _convolution(found, data, weight, borders, result_store)
        if made is not None:
            return made
    return None


def weight_gradient_of(
    stage: Stage, realize: Any, borders: Mapping[Any, Border], result_store: ResultStore
) -> WeightGradient | None:
    """The weight gradient that a stage computes, None if it computes something else.

    w̄[r, s, c, k] = Σ x[n, p + r, q + s, c] · ȳ[n, p, q, k], where c and k may change places in w̄.

    Parameters
    ----------
    stage, realize, borders, result_store
        As of `convolution_of`.
    """
    found = Sum(stage, realize)
    if not found.is_plain:
        return None
    for data, cotangent in (found.accesses[:2], found.accesses[1::-1]):
        made = _weight_gradient(found, data, cotangent, borders, result_store)
        if made is not None:
            return made
    return None


def _convolution(
    found: Sum,
    data: Access,
    weight: Access,
    borders: Mapping[Any, Border],
    result_store: ResultStore,
) -> Convolution | None:
    out = found.accesses[2]
    c, k = data.indices[3], out.indices[3]
    extents = found.extents([*out.indices, c])
    rows = found.slide(data.indices[1], out.indices[1])
    columns = found.slide(data.indices[2], out.indices[2])
    if extents is None or rows is None or columns is None or not c or not k:
        return None
    turned = weight.indices[2:] == [k, c]
    falls = [_runs_backwards(weight.indices[0], rows), _runs_backwards(weight.indices[1], columns)]
    if not (
        data.indices[0] == out.indices[0]
        and found.axes[rows.axis].reduced
        and found.axes[columns.axis].reduced
        and (turned or weight.indices[2:] == [c, k])
        and None not in falls
    ):
        return None
    count, height, width, filters, channels = extents
    images = _images(data.buffer, borders, [rows.first, columns.first], count, channels)
    if images is None:
        return None

    def at(i: Index, j: Index, channel: Index, number: Index) -> tuple[Any, list[Index]]:
        taps = [TAPS - 1 - tap if fall else tap for tap, fall in zip((i, j), falls, strict=True)]
        return weight.buffer, [*taps, *([number, channel] if turned else [channel, number])]

    return Convolution(
        images, height, width, filters, turned, at, _result_writer(out, result_store)
    )


def _weight_gradient(
    found: Sum,
    data: Access,
    cotangent: Access,
    borders: Mapping[Any, Border],
    result_store: ResultStore,
) -> WeightGradient | None:
    out = found.accesses[2]
    c, k = data.indices[3], cotangent.indices[3]
    extents = found.extents([*cotangent.indices, c])
    rows = found.slide(data.indices[1], cotangent.indices[1])
    columns = found.slide(data.indices[2], cotangent.indices[2])
    if extents is None or rows is None or columns is None or not c or not k:
        return None
    if not (
        data.indices[0] == cotangent.indices[0]
        and out.indices[:2] == [{rows.axis: 1}, {columns.axis: 1}]
        and rows.factor == columns.factor == 1
        and out.indices[2:] in ([c, k], [k, c])
        and cotangent.buffer not in borders
    ):
        return None
    count, height, width, filters, channels = extents
    images = _images(data.buffer, borders, [rows.first, columns.first], count, channels)
    if images is None:
        return None
    given = Images(cotangent.buffer, 0, 0, count, height, width, filters)
    return WeightGradient(
        images, given, out.indices[2:] == [c, k], _result_writer(out, result_store)
    )


def _runs_backwards(index: Terms, slide: Slide) -> bool | None:
    """Whether the weights run backwards while a window runs forwards; None if neither."""
    if set(index) - {slide.axis, None} or abs(index.get(slide.axis, 0)) != 1:
        return None
    falls = index[slide.axis] == -1
    if index.get(None, 0) != (TAPS - 1 if falls else 0):
        return None
    return falls != (slide.factor == -1)


def _images(
    buffer: Any, borders: Mapping[Any, Border], shifts: Sequence[int], count: int, channels: int
) -> Images | None:
    """Images whose window starts so far beyond the result's row and column."""
    border = borders.get(buffer)
    top, left = -shifts[0], -shifts[1]
    if border is not None:
        if border.before[0] or border.before[3]:
            return None
        buffer, top, left = border.source, top + border.before[1], left + border.before[2]
    rows, columns = static(buffer.shape[1]), static(buffer.shape[2])
    if rows is None or columns is None:
        return None
    return Images(buffer, top, left, count, rows, columns, channels)


def _result_writer(out: Access, result_store: ResultStore) -> Any:
    """The function that stores a result, given its four indices and its value."""

    def put(*indices_and_value: Any) -> Any:
        *indices, value = indices_and_value
        at = {}
        for index, value_of in zip(out.indices, indices, strict=True):
            at.update(dict.fromkeys(index, value_of))
        return result_store.store(at, value)

    return put
