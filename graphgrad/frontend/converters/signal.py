"""Fourier transforms, as products with the matrix of the transform.

A complex number is two real ones, its *parts*, on the last axis.
"""

from __future__ import annotations

import numpy as np
from tvm import relax

from ...errors import ModelError
from ...ir.tensor import Dimension, Tensor
from ...ops import functional as op
from .node import Node, converter


@converter("DFT")
def dft(node: Node) -> Tensor:
    """Σ x[n] exp(−2πi k n / N) along an axis; the last axis holds real and imaginary parts."""
    x = node.tensor(0)
    axis = _integer(node, 2, -2) if node.opset >= 20 else node.attribute("axis", 1)
    length = _integer(node, 1, 0) or None
    is_inverse, is_onesided = (bool(node.attribute(n, 0)) for n in ("inverse", "onesided"))
    return _transformed(x, axis % x.ndim, length, is_inverse, is_onesided)


@converter("STFT")
def stft(node: Node) -> Tensor:
    """The Fourier transforms of windows of a signal, which may overlap."""
    x = node.tensor(0)
    signal_length, hop = _known_extent(x, 1), _integer(node, 1, 1)
    window = node.tensor(2) if node.has(2) else None
    default_length = signal_length if window is None else _known_extent(window, 0)
    length = _integer(node, 3, default_length)
    starts = np.arange(0, signal_length - length + 1, hop)
    positions = relax.const(starts[:, None] + np.arange(length), "int64")
    frames = node.emitter.emit(relax.op.take(x, positions, axis=1))
    if window is not None:
        frames = frames * op.reshape(window, [length, 1])
    return _transformed(frames, 2, length, False, bool(node.attribute("onesided", 1)))


def _integer(node: Node, index: int, default: int) -> int:
    """An input that is one number known at import; the default if it is left out."""
    value = node.constant(index)
    return default if value is None else int(value.item())


def _known_extent(x: Tensor, axis: int) -> int:
    extent = x.shape[axis]
    if not isinstance(extent, int):
        raise ModelError(
            f"a Fourier transform needs the extent of axis {axis}, which is {extent}: import with "
            "shapes= that give it"
        )
    return extent


def _transformed(
    x: Tensor, axis: int, length: int | None, is_inverse: bool, is_onesided: bool
) -> Tensor:
    """The transform of x along an axis, of the numbers that the last axis holds."""
    extent, parts = _known_extent(x, axis), _known_extent(x, x.ndim - 1)
    if parts not in (1, 2):
        raise ModelError(f"its last axis has {parts} numbers: 1 if they are real, 2 if complex")
    if is_onesided and parts != (2 if is_inverse else 1):
        raise ModelError("a onesided transform goes from real numbers to complex ones, or back")
    matrix = _matrix(extent, parts, length, is_inverse, is_onesided)
    other_axes = [number for number in range(x.ndim - 1) if number != axis]
    # The axis and the parts come last, so that they are one axis of a product with a matrix.
    order = [*other_axes, axis, x.ndim - 1]
    rows = op.reshape(
        op.permute_dims(op.widen(x), order), [*_extents(x, other_axes), extent * parts]
    )
    factor = x.emitter.lift(relax.const(matrix.reshape(extent * parts, -1), "float64"))
    product = rows @ factor.astype(rows.dtype)
    y = op.reshape(product, [*_extents(x, other_axes), *matrix.shape[1:]])
    return op.permute_dims(y, [int(number) for number in np.argsort(order)]).astype(x.dtype)


def _extents(x: Tensor, axes: list[int]) -> list[Dimension]:
    return [x.shape[axis] for axis in axes]


def _matrix(
    extent: int, parts: int, length: int | None, is_inverse: bool, is_onesided: bool
) -> np.ndarray:
    """The matrix of a transform: (extent · parts, frequencies, parts).

    A transform is linear, so its rows are the transforms of the unit vectors.
    """
    vectors = np.eye(extent * parts).reshape(-1, extent, parts)
    signals = vectors[..., 0] + (1j * vectors[..., 1] if parts == 2 else 0)
    if is_inverse and is_onesided:
        return np.fft.irfft(signals, length)[..., None]
    transformed = (np.fft.ifft if is_inverse else np.fft.fft)(signals, length)
    if is_onesided:
        transformed = transformed[:, : transformed.shape[1] // 2 + 1]
    return np.stack([transformed.real, transformed.imag], axis=-1)
