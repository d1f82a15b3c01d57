"""Conversion of a caller's arrays to numpy arrays and to tensors of TVM's runtime.

Compiled kernels assume memory aligned to 64 bytes, and crash when it is not. So every array that
comes in is copied, unless it is aligned and contiguous and its memory may be borrowed.
"""

from __future__ import annotations

import sys
from typing import Any

import ml_dtypes
import numpy as np
import tvm

from ..errors import InputError
from ..runtime import errors as runtime_errors
from ..runtime.arrays import ALIGNMENT, empty, is_number, is_readable, numbers


def to_numpy(value: Any) -> np.ndarray:
    """A numpy array of real numbers or booleans in native byte order.

    Parameters
    ----------
    value : array
        A numpy array of any strides, alignment and byte order; a torch tensor, with or without
        gradient; a tensor of TVM; anything with ``__dlpack__``; a Python number or a nested list,
        whose floats become float32.

    Returns
    -------
    numpy.ndarray
        Of the same shape and dtype; it may share memory with `value`.

    Raises
    ------
    InputError
        `value` is not a regular array of numbers, or has masked values.
    """
    try:
        return numbers(f"a value of type {type(value).__name__}", _read(value))
    except runtime_errors.InputError as error:
        raise InputError(str(error)) from error


def _read(value: Any) -> Any:
    """The tensor of another library as a numpy array, without a copy where that is possible."""
    torch = sys.modules.get("torch")
    try:
        if torch is not None and isinstance(value, torch.Tensor):
            return _read_torch(value, torch)
        ours = isinstance(value, np.ndarray | np.generic | tvm.runtime.Tensor)
        return value if ours or not hasattr(value, "__dlpack__") else np.from_dlpack(value)
    except (ValueError, TypeError, RuntimeError, BufferError) as error:
        raise InputError(
            f"a value of type {type(value).__name__} cannot be read as an array: {error}"
        ) from error


def _read_torch(value: Any, torch: Any) -> np.ndarray:
    plain = value.detach().cpu().resolve_conj().resolve_neg()
    if plain.dtype == torch.bfloat16:  # numpy has no such dtype of its own
        return plain.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return plain.numpy()


def to_tensor(
    value: Any,
    device: tvm.runtime.Device | None = None,
    dtype: str | None = None,
    into: tvm.runtime.Tensor | None = None,
) -> tvm.runtime.Tensor:
    """A copy of `value` as a tensor on `device`.

    Parameters
    ----------
    value : array
        Whatever `to_numpy` reads.
    device : Device, optional
        Where the tensor lives; the CPU by default.
    dtype : str, optional
        Convert to it; by default the dtype is kept.
    into : Tensor, optional
        Overwrite and return it, in place of a new tensor. Of that device, shape and dtype.

    Raises
    ------
    InputError
        `value` is not a regular array of numbers, or cannot be converted to `dtype`.
    """
    array = _converted(to_numpy(value), dtype)
    if into is None:
        into = empty(array.shape, str(array.dtype), device or tvm.cpu())
    return into.copyfrom(np.ascontiguousarray(array).reshape(array.shape))


def borrowed(value: Any, device: tvm.runtime.Device) -> tvm.runtime.Tensor | None:
    """`value` as a tensor in the memory that it has; None if kernels cannot use that memory.

    They can use memory that is on `device`, contiguous and aligned; that of numpy must be writable
    too. A torch tensor on a CUDA device that does not fit is copied there by torch, and so is one
    whose current stream is not the default stream.

    Raises
    ------
    InputError
        `value` is not a regular array of numbers.
    """
    if isinstance(value, tvm.runtime.Tensor):
        return value if value.device == device and _is_usable(value) else None
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor) and value.is_cuda:
        return _borrowed_from_torch(value, device, torch)
    if device != tvm.cpu():
        return None
    array = to_numpy(value)
    return tvm.runtime.from_dlpack(array) if _can_lend(array) else None


def _is_usable(tensor: tvm.runtime.Tensor) -> bool:
    """Whether kernels can use the memory of a tensor, which is not empty."""
    return int(tensor.numel()) > 0 and is_readable(tensor)


def _borrowed_from_torch(
    value: Any, device: tvm.runtime.Device, torch: Any
) -> tvm.runtime.Tensor | None:
    """A torch tensor on a CUDA device, borrowed; None if it is on another device, or empty."""
    if device.type != "cuda" or value.device.index != device.index or not value.numel():
        return None
    # Our kernels run on the default stream, later than this returns. What torch does to memory of
    # that stream, overwriting and recycling it, comes after them in turn. Another stream, which
    # takes no turns with it, lends nothing: it waits while the default stream makes a copy.
    ours, lender = torch.cuda.default_stream(value.device), torch.cuda.current_stream(value.device)
    value = value.detach()
    with torch.cuda.stream(ours):
        ours.wait_stream(lender)
        plain = value.resolve_conj().resolve_neg().contiguous()
        shares_memory = plain.data_ptr() == value.data_ptr()
        if plain.data_ptr() % ALIGNMENT or (shares_memory and ours != lender):
            plain = plain.clone()
        lender.wait_stream(ours)
    value.record_stream(ours)  # nor is memory of a third stream recycled before our kernels end
    return tvm.runtime.from_dlpack(plain)


def _converted(array: np.ndarray, dtype: str | None) -> np.ndarray:
    """An array in a dtype; as it is if that is None or its own.

    Raises
    ------
    InputError
        `dtype` is no dtype of numbers.
    """
    if dtype is None:
        return array
    try:
        target_dtype = np.dtype(dtype)
    except TypeError:
        target_dtype = None
    if target_dtype is None or not is_number(target_dtype):
        raise InputError(
            f"an array of {array.dtype} cannot be converted to {dtype!r}: not a dtype of numbers"
        )
    return array.astype(target_dtype, copy=False)


def _can_lend(array: np.ndarray) -> bool:
    """Whether kernels can use the memory of a numpy array, and TVM can import it."""
    return (
        array.flags.c_contiguous
        and array.flags.writeable
        and array.ctypes.data % ALIGNMENT == 0
        and array.dtype.kind in "biuf"
        and array.size > 0
    )
