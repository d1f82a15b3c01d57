"""What the numbers of a tensor say of it: masks, tables and encodings are computed, not learned.

Weights, trained or as they are drawn at the start, meet these tests by a negligible chance. Those
that start at one number everywhere are left to other signs.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

_FORBIDDING = -1e3  # scores this low or lower forbid: after a softmax nothing is left of them

_LONG = 16  # bits of a significand; no number of a table needs so many
_FEW = 64  # elements along an axis, which tell a weight from a table or an encoding
_SURPRISE = 12  # last bits, that are zero in a table; a weight has so many by a chance of 2⁻¹²
_EQUATIONS = 3  # that an encoding fulfills beyond those that determine it


def is_uniform(array: np.ndarray) -> bool:
    """Whether all elements are one number, as of weights that start at 0, 1 or 1e-6."""
    if array.size == 0 or array.flat[0] != array.flat[-1]:  # at once for most weights
        return False
    return bool((array == array.flat[0]).all())


def is_mask(array: np.ndarray) -> bool:
    """Whether each element either forbids, as -inf and -1e9 do, or is 0, and some do forbid."""
    head = array.ravel()[:_FEW]
    if not ((head <= _FORBIDDING) | (head == 0)).all():  # at once for a large weight
        return False
    forbids = array <= _FORBIDDING
    return bool(forbids.any() and (forbids | (array == 0)).all())


def is_table(array: np.ndarray) -> bool:
    """Whether the elements, not all equal, are short numbers: integers, halves, small fractions.

    Such are positions, grids of cells, anchors, strides, and masks of 0 and 1 or of 0 and -100.
    """
    if array.size < 2 or is_uniform(array) or not np.isfinite(array).all():
        return False
    values = array.ravel().astype("float64")
    if _bits(values[:_FEW]).max() > _LONG:  # at once for a large weight
        return False
    bits, exponents = _bits(values), np.frexp(values)[1]
    # Weights may have been rounded to a smaller float once: the least surprising one is assumed.
    own = ml_dtypes.finfo(array.dtype).nmant + 1
    digits = min((digits for digits in (8, 11, own) if digits >= bits.max()), default=0)
    last = exponents - digits if digits != 11 else np.maximum(exponents - digits, -24)
    # All are multiples of one power of two. That a last bit is zero has a chance of one half.
    unit = np.where(values == 0, np.inf, exponents - bits).min()
    zeros = np.where(values == 0, digits - 1, unit - last)
    return bool(np.maximum(zeros, 0).sum() >= _SURPRISE)


def _bits(values: np.ndarray) -> np.ndarray:
    """The number of bits that each significand needs; none for zero."""
    integers = np.abs(np.ldexp(np.frexp(values)[0], 53)).astype("int64")
    lowest = integers & -integers  # the lowest bit that is set
    return np.where(integers == 0, 0, 53 - np.log2(np.maximum(lowest, 1)).astype("int64"))


def is_encoding(array: np.ndarray) -> bool:
    """Whether a table holds sines and cosines: rotary ones, or an encoding of positions."""
    if array.ndim < 2 or array.shape[-1] < 2:
        return False
    rows = array.reshape(-1, array.shape[-1])[:_FEW].astype("float64")
    corner = array[(slice(_FEW),) * array.ndim].astype("float64")
    if is_uniform(corner) or not (np.abs(rows) <= 1.001).all():
        return False
    tolerance = 1e-3 if array.itemsize > 2 else 1e-2
    return _is_on_circles(rows, tolerance) or any(
        _are_sinusoids(np.moveaxis(corner, axis, 0), tolerance) for axis in range(array.ndim)
    )


def _are_sinusoids(rows: np.ndarray, tolerance: float) -> bool:
    """Whether each column is a sine or cosine of the row's number: x[t+1] + x[t-1] = k · x[t]."""
    rows = rows.reshape(len(rows), -1)
    middle, neighbors = rows[1:-1], rows[2:] + rows[:-2]
    norms = (middle**2).sum(0)
    factors = (middle * neighbors).sum(0) / np.where(norms > 0, norms, 1.0)
    errors = np.linalg.norm(neighbors - factors * middle, axis=0)
    scale = np.linalg.norm(neighbors, axis=0) + np.linalg.norm(middle, axis=0)
    # One equation determines k. A column that hardly moves, of a very low frequency, says nothing.
    equations = (len(rows) - 3) * np.count_nonzero((norms > 0) & (factors < 1.99))
    return bool(equations >= _EQUATIONS and (errors <= tolerance * scale).all())


def _is_on_circles(rows: np.ndarray, tolerance: float) -> bool:
    """Whether each row, but for rows of zeros, is made of as many pairs (sin a, cos a) as fit."""
    squares = (rows**2).sum(-1)
    squares = squares[squares > 0]
    pairs = rows.shape[-1] / 2
    return len(squares) >= _EQUATIONS and bool((np.abs(squares - pairs) <= tolerance * pairs).all())


def is_frequencies(array: np.ndarray) -> bool:
    """Whether positive numbers fall from exactly 1: the frequencies of an encoding."""
    values = array.ravel()
    is_row = 1 < array.size == max(array.shape)
    return is_row and bool(
        values[0] == 1 and (values > 0).all() and (values[1:] < values[:-1]).all()
    )


def is_unit_vector(array: np.ndarray) -> bool:
    """Whether a vector has length 1, as those of a power iteration have."""
    length = np.linalg.norm(array.astype("float64"))
    return array.ndim == 1 and array.size > 1 and bool(abs(length - 1) < 1e-5)
