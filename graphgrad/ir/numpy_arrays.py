"""Arrays of any library, read as numpy arrays."""

from __future__ import annotations

import sys
from typing import Any

import ml_dtypes
import numpy as np
import tvm

from ..errors import InputError

_EXTENSION_DTYPES = ("bfloat16", "float8_e4m3fn", "float8_e5m2")


def to_numpy(value: Any) -> np.ndarray:
    """Return a numpy array of real numbers or booleans in native byte order.

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
        `value` is not a regular array of numbers.
    """
    array = _read(value)
    if not is_number(array.dtype):
        raise InputError(
            f"a value of type {type(value).__name__} with dtype {array.dtype} is not an array of "
            "real numbers or booleans; give a numpy array, a torch tensor or a TVM tensor"
        )
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def is_number(dtype: np.dtype) -> bool:
    """Whether a dtype is one of booleans, integers or real numbers."""
    return dtype.kind in "biuf" or (dtype.kind == "V" and dtype.name in _EXTENSION_DTYPES)


def _read(value: Any) -> np.ndarray:
    torch = sys.modules.get("torch")
    try:
        if isinstance(value, np.ndarray):
            return value
        if isinstance(value, tvm.runtime.Tensor):
            return value.numpy()
        if torch is not None and isinstance(value, torch.Tensor):
            return _read_torch(value, torch)
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


def _read_torch(value: Any, torch: Any) -> np.ndarray:
    plain = value.detach().cpu().resolve_conj().resolve_neg()
    if plain.dtype == torch.bfloat16:  # numpy has no such dtype of its own
        return plain.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return plain.numpy()
