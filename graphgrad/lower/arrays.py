"""Arrays at the border: whatever the caller has becomes an aligned tensor of the runtime.

The runtime's kernels assume memory aligned to 64 bytes, and end the process when it is not. So
every array that comes in is copied, unless the caller lends its memory and it is fit for use.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm

from ..arrays import is_number, to_numpy
from ..errors import InputError

ALIGNMENT = 64
"""Bytes to which generated code expects every tensor to be aligned."""


def to_tensor(
    value: Any,
    device: tvm.runtime.Device | None = None,
    dtype: str | None = None,
    *,
    borrow: bool = False,
) -> tvm.runtime.Tensor:
    """Return `value` as a tensor on `device`.

    Parameters
    ----------
    value : array
        Whatever `graphgrad.arrays.to_numpy` reads.
    device : Device, optional
        Where the tensor lives; the CPU by default.
    dtype : str, optional
        Convert to it; by default the dtype is kept.
    borrow : bool
        Share memory with `value` where it is contiguous, writable, aligned and on the CPU, and
        needs no conversion; else copy. By default always copy.

    Raises
    ------
    InputError
        `value` is not a regular array of numbers, or cannot be converted to `dtype`.
    """
    device = tvm.cpu() if device is None else device
    array = _converted(to_numpy(value), dtype)
    if borrow and device == tvm.cpu() and _can_lend(array):
        return tvm.runtime.from_dlpack(array)
    tensor = tvm.runtime.empty(array.shape, str(array.dtype), device)
    return tensor.copyfrom(np.ascontiguousarray(array).reshape(array.shape))


def _converted(array: np.ndarray, dtype: str | None) -> np.ndarray:
    if dtype is None:
        return array
    try:
        wanted = np.dtype(dtype)
    except TypeError:
        wanted = None
    if wanted is None or not is_number(wanted):
        raise InputError(
            f"an array of {array.dtype} cannot be converted to {dtype!r}: not a dtype of numbers"
        )
    return array.astype(wanted, copy=False)


def _can_lend(array: np.ndarray) -> bool:
    return (
        array.flags.c_contiguous
        and array.flags.writeable
        and array.ctypes.data % ALIGNMENT == 0
        and array.dtype.kind in "biuf"
        and array.size > 0
    )
