"""Arrays of any library, as tensors of TVM's runtime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tvm

from .errors import InputError

_ALIGNMENT = 64
"""Bytes to which generated code expects every tensor to be aligned; it crashes where one is not."""

Arrays = dict[str, np.ndarray]


def to_arrays(tensors: Mapping[str, tvm.runtime.Tensor]) -> Arrays:
    """Copy tensors to numpy arrays."""
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def to_array(label: str, value: Any) -> np.ndarray:
    """Return a value as an array of numbers in native byte order, which may share its memory.

    Raises
    ------
    InputError
        It is none; `label` names it.
    """
    read = _read(label, value)
    try:
        array = read.numpy() if isinstance(read, tvm.runtime.Tensor) else np.asarray(read)
    except (ValueError, TypeError, RuntimeError) as error:
        raise InputError(f"{label} cannot be read as an array: {error}") from error
    if array.dtype.kind not in "biufV":
        raise InputError(f"{label}: a {type(value).__name__} is no array of numbers")
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def lend(label: str, value: Any, device: tvm.runtime.Device) -> tvm.runtime.Tensor | None:
    """Return a value in the memory that it has: on the device, contiguous, aligned; else None.

    What is lent never overlaps what a step overwrites: that memory is handed to nobody.

    Raises
    ------
    InputError
        It is no array of numbers.
    """
    tensor = _read(label, value)
    if (
        isinstance(tensor, tvm.runtime.Tensor)
        and tensor.device == device
        and tensor.is_contiguous()
        and tensor.data_ptr() % _ALIGNMENT == 0
    ):
        return tensor
    return None


def copy(
    array: np.ndarray, device: tvm.runtime.Device, into: tvm.runtime.Tensor | None = None
) -> tvm.runtime.Tensor:
    """Return a tensor on a device, aligned: a new one, or `into`, which is overwritten.

    Waits for nothing that a GPU has still to do: its driver reads ordinary memory at once, and puts
    the copy behind the rest.
    """
    if into is None:
        into = tvm.runtime.empty(array.shape, str(array.dtype), device)
    if device.type == "cpu":
        return into.copyfrom(np.asarray(array, order="C"))
    return tvm.runtime.tensor(np.asarray(array, order="C")).copyto(into)


class Staging:
    """Memory on a device that arrays are copied to, kept for the next ones.

    To take memory from a GPU's driver, and to give it back, costs more than most copies.
    """

    def __init__(self, device: tvm.runtime.Device):
        self._device = device
        self._held: dict[Any, tvm.runtime.Tensor] = {}

    def copy(self, label: str, array: np.ndarray) -> tvm.runtime.Tensor:
        """Return an array on the device; the next of its label, shape and dtype overwrites it."""
        key = label, array.shape, str(array.dtype)
        self._held[key] = copy(array, self._device, self._held.get(key))
        return self._held[key]

    def place(self, label: str, value: Any) -> tvm.runtime.Tensor:
        """Return a value on the device: where it is, or else a copy, as by `copy`.

        Raises
        ------
        InputError
            It is no array of numbers.
        """
        tensor = lend(label, value, self._device)
        return self.copy(label, to_array(label, value)) if tensor is None else tensor


def _read(label: str, value: Any) -> Any:
    """Return the tensor of another library as one of TVM; anything else as it is."""
    if hasattr(value, "detach"):
        value = value.detach().contiguous()
    if isinstance(value, np.ndarray | np.generic) or not hasattr(value, "__dlpack__"):
        return value
    try:
        return tvm.runtime.from_dlpack(value)
    except (RuntimeError, BufferError) as error:
        try:
            return np.from_dlpack(value)  # unlike TVM, takes any alignment
        except (RuntimeError, BufferError, TypeError):
            raise InputError(f"{label} cannot be read as an array: {error}") from error
