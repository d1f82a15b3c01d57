"""Arrays at the border: whatever the caller has becomes an aligned tensor of the runtime.

The runtime's kernels assume memory aligned to 64 bytes, and end the process when it is not. So
every array that comes in is copied, unless the caller lends its memory and it is fit for use.
"""

from __future__ import annotations

import sys
from typing import Any

import ml_dtypes
import numpy as np
import tvm

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
        A numpy array of any strides, alignment and byte order; a torch tensor, with or without
        gradient; a tensor of TVM; anything with ``__dlpack__``; a Python number or nested list.
    device : Device, optional
        Where the tensor lives; the CPU by default.
    dtype : str, optional
        Convert to it; by default the dtype is kept. Python floats become float32.
    borrow : bool
        Share memory with `value` where it is contiguous, writable, aligned and on the CPU, and
        needs no conversion; else copy. By default always copy.

    Raises
    ------
    InputError
        `value` is not a regular array of numbers, or cannot be converted to `dtype`.
    """
    device = tvm.cpu() if device is None else device
    array = _converted(_as_numpy(value), value, dtype)
    if borrow and device == tvm.cpu() and _can_lend(array):
        return tvm.runtime.from_dlpack(array)
    tensor = tvm.runtime.empty(array.shape, str(array.dtype), device)
    return tensor.copyfrom(np.ascontiguousarray(array).reshape(array.shape))


def overlaps(a: tvm.runtime.Tensor, b: tvm.runtime.Tensor) -> bool:
    """Return whether two contiguous tensors share a byte of memory on the same device."""
    if a.device != b.device:
        return False
    (start_a, end_a), (start_b, end_b) = _extent(a), _extent(b)
    return max(start_a, start_b) < min(end_a, end_b)


def _extent(tensor: tvm.runtime.Tensor) -> tuple[int, int]:
    start = int(tensor.data_ptr())
    bits = int(tensor.numel()) * int(tensor.dtype.bits) * int(tensor.dtype.lanes)
    return start, start + (bits + 7) // 8


def _as_numpy(value: Any) -> np.ndarray:
    torch = sys.modules.get("torch")
    try:
        if isinstance(value, np.ndarray):
            return value
        if isinstance(value, tvm.runtime.Tensor):
            return value.numpy()
        if torch is not None and isinstance(value, torch.Tensor):
            return _torch_as_numpy(value, torch)
        if hasattr(value, "__dlpack__") and not isinstance(value, np.generic):
            return np.from_dlpack(value)
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError, BufferError) as error:
        raise InputError(
            f"a value of type {type(value).__name__} cannot be read as an array: {error}"
        ) from error
    if array.dtype == np.float64 and not isinstance(value, np.generic):
        return array.astype(np.float32)
    return array


def _torch_as_numpy(value: Any, torch: Any) -> np.ndarray:
    plain = value.detach().cpu().resolve_conj().resolve_neg()
    if plain.dtype == torch.bfloat16:  # numpy has no such dtype of its own
        return plain.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return plain.numpy()


def _converted(array: np.ndarray, value: Any, dtype: str | None) -> np.ndarray:
    """Return the array in native byte order and in `dtype`; refuse what is not numbers."""
    given = f"a value of type {type(value).__name__} with dtype {array.dtype}"
    if not _is_number(array.dtype):
        raise InputError(f"{given} is not an array of real numbers or booleans")
    native = array.dtype.newbyteorder("=") if dtype is None else _numpy_dtype(dtype, given)
    return array.astype(native, copy=False)


def _numpy_dtype(dtype: str, given: str) -> np.dtype:
    try:
        wanted = np.dtype(dtype)
    except TypeError:
        wanted = None
    if wanted is None or not _is_number(wanted):
        raise InputError(f"{given} cannot be converted to {dtype!r}: not a dtype of numbers")
    return wanted


def _is_number(dtype: np.dtype) -> bool:
    return dtype.kind in "biuf" or (dtype.kind == "V" and dtype.name in _EXTENSION_DTYPES)


_EXTENSION_DTYPES = ("bfloat16", "float8_e4m3fn", "float8_e5m2")


def _can_lend(array: np.ndarray) -> bool:
    return (
        array.flags.c_contiguous
        and array.flags.writeable
        and array.ctypes.data % ALIGNMENT == 0
        and array.dtype.kind in "biuf"
        and array.size > 0
    )
