"""Tensors by name: copies as numpy arrays, and a check that no caller's memory is among them."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm

from ..errors import AliasError
from ..lower.device import reported
from ..runtime.arrays import Arrays, empty, memory_of

_NUMBERS: dict[str, Any] = {"float32": ctypes.c_float, "float64": ctypes.c_double}
"""C types of the scalars that are read straight from the host's memory; others become arrays."""


class Spans:
    """The address ranges of some tensors, from the first byte to behind the last.

    Parameters
    ----------
    tensors : mapping of str to tensor
        By what errors call them.
    sizes : array of int
        Of the tensors, in bytes; asking each would take longer.
    """

    def __init__(self, tensors: Mapping[str, tvm.runtime.Tensor], sizes: np.ndarray):
        self._names = list(tensors)
        self._starts = np.array([tensor.data_ptr() for tensor in tensors.values()], int)
        self._ends = self._starts + sizes

    def refuse(self, lent: Mapping[str, tvm.runtime.Tensor]) -> None:
        """Raise if memory that the caller lends belongs to one of the tensors.

        Raises
        ------
        AliasError
            Names both.
        """
        for name, tensor in lent.items():
            start = tensor.data_ptr()
            end = start + int(tensor.numel()) * tensor.dtype.itemsize
            # Half-open ranges share a byte if each starts before the other ends.
            shared = np.flatnonzero((self._starts < end) & (start < self._ends))
            if len(shared):
                raise AliasError(
                    f"input {name!r} shares memory with the {self._names[shared[0]]}, which the "
                    "step overwrites; pass a copy"
                )


def in_own_memory(values: Any, arguments: Sequence[tvm.runtime.Tensor]) -> Any:
    """Results of a function, nested, as lists, none in the memory of an argument or another result.

    Those that are get a copy. An argument's memory may be the caller's, or that of later ones.
    """
    taken = {tensor.data_ptr() for tensor in arguments}

    def own(value: Any) -> Any:
        if not isinstance(value, tvm.runtime.Tensor):
            return [own(item) for item in value]
        if value.data_ptr() in taken:
            value = empty(value.shape, str(value.dtype), value.device).copyfrom(value)
        taken.add(value.data_ptr())
        return value

    return own(values)


def as_arrays(tensors: Mapping[str, tvm.runtime.Tensor]) -> Arrays:
    """Copy tensors to numpy arrays.

    Raises
    ------
    DeviceError
        The device has failed.
    """
    return {name: read(tensor) for name, tensor in tensors.items()}


def read(tensor: tvm.runtime.Tensor) -> np.ndarray:
    """Copy a tensor to a numpy array, after waiting for the device.

    Raises
    ------
    DeviceError
        The device has failed.
    """
    if tensor.device.type == "cpu":
        return memory_of(tensor).copy()
    with reported(tensor.device, "a step"):
        return tensor.numpy()


def read_number(tensor: tvm.runtime.Tensor) -> float:
    """A scalar tensor as a float, after waiting for the device.

    Raises
    ------
    DeviceError
        The device has failed.
    """
    ctype = _NUMBERS.get(str(tensor.dtype))
    if ctype is None or tensor.device.type != "cpu":
        return float(read(tensor))
    return ctype.from_address(tensor.data_ptr()).value
