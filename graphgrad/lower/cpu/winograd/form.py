"""The recognition of convolutions with 3 by 3 windows, by the indices of what a stage multiplies.

There are two forms. A convolution and its data gradient are one, channels last, with any border of
zeros, and with windows that run forwards or backwards; the weight gradient is the other. Gradients
that were derived from tensor expressions take the same forms.
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
    """The way in which an index goes over the rows or columns of a window.

    Attributes
    ----------
    axis : Var
        The axis of the sum that goes over the window.
    factor : int
        1 if it goes forwards, -1 if it goes backwards.
    first : int
        The distance from the window's position to its first row or column.
    """

    axis: Any
    factor: int
    first: int


class Sum:
    """A sum of products of two reads, as affine indices of its three accesses.

    They are those of the two reads and, last, that of the result.

    Parameters
    ----------
    stage : Stage
        It has `operands`.
    realize : SBlockRealize
        The block of the stage.
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
        """Whether all indices are affine, and each access has four."""
        return all(
            len(access.indices) == 4 and None not in access.indices for access in self.accesses
        )

    def extents(self, indices: Sequence[Terms]) -> list[int] | None:
        """The extents of indices, each of which is an axis, or always zero; None if any is not."""
        extents = [self._extent(index) for index in indices]
        return None if None in extents else extents  # type: ignore[return-value]

    def slide(self, index: Terms, base: Terms) -> Slide | None:
        """The way in which an index goes over the rows or columns of a window.

        None if it does not go over a window of 3.

        Parameters
        ----------
        index : Terms
        base : Terms
            The position of the window.
        """
        difference = {
            variable: index.get(variable, 0) - base.get(variable, 0) for variable in (*index, *base)
        }
        shift = difference.pop(None, 0)
        coefficients = {
            variable: coefficient for variable, coefficient in difference.items() if coefficient
        }
        if len(coefficients) != 1:
            return None
        ((variable, coefficient),) = coefficients.items()
        if abs(coefficient) != 1 or self.axes[variable].extent != TAPS:
            return None
        # Backwards, the last value of the variable is at the first row or column.
        return Slide(variable, coefficient, shift if coefficient == 1 else shift - (TAPS - 1))

    def _extent(self, index: Terms) -> int | None:
        """The extent of an index that is one axis, or always zero; None if it is neither."""
        # Axes of one element have been replaced by their value, which leaves no terms.
        if not index:
            return 1
        (variable, *other_terms) = index
        if other_terms or variable is None or index[variable] != 1:
            return None
        return self.axes[variable].extent


@dataclass(frozen=True)
class Access:
    """A read or a write: its buffer and its affine indices. None stands for one that is no such."""

    buffer: Any
    indices: list[Any]


def convolution_of(
    stage: Stage, realize: Any, borders: Mapping[Any, Border], result_store: ResultStore
) -> Convolution | None:
    """The convolution that a stage computes; None if it computes something else.

    y[n, i, j, k] = Σ x[n, i + r, j + s, c] · w[r, s, c, k], where r and s may run backwards in w or
    in x, and c and k may change places in w.

    Parameters
    ----------
    stage : Stage
    realize : SBlockRealize
        The block of the stage.
    borders : dict
        From the buffer of each padded copy to what it is a copy of.
    result_store : ResultStore
        The store of the results.
    """
    products = Sum(stage, realize)
    if len(stage.reduced) != 3 or not products.is_plain:
        return None
    # Factors may stand in either order.
    for data, weight in (products.accesses[:2], products.accesses[1::-1]):
        convolution = _convolution(products, data, weight, borders, result_store)
        if convolution is not None:
            return convolution
    return None


def weight_gradient_of(
    stage: Stage, realize: Any, borders: Mapping[Any, Border], result_store: ResultStore
) -> WeightGradient | None:
    """The weight gradient that a stage computes; None if it computes something else.

    w̄[r, s, c, k] = Σ x[n, p + r, q + s, c] · ȳ[n, p, q, k], where c and k may change places in w̄.

    Parameters
    ----------
    stage, realize, borders, result_store
        As for `convolution_of`.
    """
    products = Sum(stage, realize)
    if not products.is_plain:
        return None
    for data, cotangent in (products.accesses[:2], products.accesses[1::-1]):
        gradient = _weight_gradient(products, data, cotangent, borders, result_store)
        if gradient is not None:
            return gradient
    return None


def _windows(products: Sum, data: Access, output: Access) -> tuple[list[int], Slide, Slide] | None:
    """The extents of an output's axes and the data's channels, and how windows slide over the data.

    The slides are those along rows and columns. None if there are no such extents or slides.
    """
    extents = products.extents([*output.indices, data.indices[3]])
    rows, columns = (products.slide(data.indices[i], output.indices[i]) for i in (1, 2))
    return None if extents is None or rows is None or columns is None else (extents, rows, columns)


def _convolution(
    products: Sum,
    data: Access,
    weight: Access,
    borders: Mapping[Any, Border],
    result_store: ResultStore,
) -> Convolution | None:
    """The convolution of `data` with `weight`; None if it is none."""
    result = products.accesses[2]
    channel_index, filter_index = data.indices[3], result.indices[3]
    windows = _windows(products, data, result)
    if windows is None or not channel_index or not filter_index:
        return None
    extents, row_slide, column_slide = windows
    turned = weight.indices[2:] == [filter_index, channel_index]
    runs_backwards = [
        _runs_backwards(weight.indices[0], row_slide),
        _runs_backwards(weight.indices[1], column_slide),
    ]
    if not (
        data.indices[0] == result.indices[0]
        and products.axes[row_slide.axis].reduced
        and products.axes[column_slide.axis].reduced
        and (turned or weight.indices[2:] == [channel_index, filter_index])
        and None not in runs_backwards
    ):
        return None
    count, height, width, filters, channels = extents
    images = _images(data.buffer, borders, [row_slide.first, column_slide.first], count, channels)
    if images is None:
        return None

    def weight_at(
        row_tap: Index, column_tap: Index, channel: Index, filter_number: Index
    ) -> tuple[Any, list[Index]]:
        taps = [
            TAPS - 1 - tap if backwards else tap
            for tap, backwards in zip((row_tap, column_tap), runs_backwards, strict=True)
        ]
        return weight.buffer, [
            *taps,
            *([filter_number, channel] if turned else [channel, filter_number]),
        ]

    return Convolution(
        images, height, width, filters, turned, weight_at, _result_writer(result, result_store)
    )


def _weight_gradient(
    products: Sum,
    data: Access,
    cotangent: Access,
    borders: Mapping[Any, Border],
    result_store: ResultStore,
) -> WeightGradient | None:
    """The weight gradient of `data` and `cotangent`; None if it is none."""
    result = products.accesses[2]
    channel_index, filter_index = data.indices[3], cotangent.indices[3]
    windows = _windows(products, data, cotangent)
    if windows is None or not channel_index or not filter_index:
        return None
    extents, row_slide, column_slide = windows
    if not (
        data.indices[0] == cotangent.indices[0]
        and result.indices[:2] == [{row_slide.axis: 1}, {column_slide.axis: 1}]
        and row_slide.factor == column_slide.factor == 1
        and result.indices[2:] in ([channel_index, filter_index], [filter_index, channel_index])
        and cotangent.buffer not in borders
    ):
        return None
    count, height, width, filters, channels = extents
    images = _images(data.buffer, borders, [row_slide.first, column_slide.first], count, channels)
    if images is None:
        return None
    cotangent_images = Images(cotangent.buffer, 0, 0, count, height, width, filters)
    return WeightGradient(
        images,
        cotangent_images,
        result.indices[2:] == [channel_index, filter_index],
        _result_writer(result, result_store),
    )


def _runs_backwards(index: Terms, slide: Slide) -> bool | None:
    """Whether the weights run backwards while the window runs forwards, or the other way round.

    None if the index goes over the window in no such way.
    """
    if set(index) - {slide.axis, None} or abs(index.get(slide.axis, 0)) != 1:
        return None
    index_is_reversed = index[slide.axis] == -1
    # A reversed index is 2 - axis; with any other constant it would leave the window.
    if index.get(None, 0) != (TAPS - 1 if index_is_reversed else 0):
        return None
    return index_is_reversed != (slide.factor == -1)


def _images(
    buffer: Any, borders: Mapping[Any, Border], shifts: Sequence[int], count: int, channels: int
) -> Images | None:
    """The images whose windows begin at distances `shifts` from the result's row and column.

    None if they have a border along other axes, or if their size is not known.
    """
    # A window that begins before its position reads that many zeros before the first row or column.
    border = borders.get(buffer)
    top, left = -shifts[0], -shifts[1]
    if border is not None:
        # `Images` has borders around rows and columns alone.
        if border.before[0] or border.before[3]:
            return None
        buffer, top, left = border.source, top + border.before[1], left + border.before[2]
    rows, columns = static(buffer.shape[1]), static(buffer.shape[2])
    if rows is None or columns is None:
        return None
    return Images(buffer, top, left, count, rows, columns, channels)


def _result_writer(result: Access, result_store: ResultStore) -> Any:
    """The function that stores a result, given its four indices and its value."""

    def store_result(*indices_and_value: Any) -> Any:
        *indices, value = indices_and_value
        indices_by_axis = {}
        for index, position in zip(result.indices, indices, strict=True):
            indices_by_axis.update(dict.fromkeys(index, position))
        return result_store.store(indices_by_axis, value)

    return store_result
