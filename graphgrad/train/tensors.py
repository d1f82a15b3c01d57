"""Tensors by name: copies of them as arrays, and whether a caller's memory is theirs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import tvm

from ..errors import AliasError
from ..lower.device import reported

Arrays = dict[str, np.ndarray]


def refuse_overlap(
    lent: Mapping[str, tvm.runtime.Tensor],
    owned: Mapping[str, tvm.runtime.Tensor],
    sizes: np.ndarray,
) -> None:
    """Raise if memory that the caller lends belongs to one of some tensors.

    Parameters
    ----------
    lent, owned : mapping of str to tensor
        The latter by what errors call them.
    sizes : array of int
        Of the tensors in `owned`, in bytes; asking each would take longer.

    Raises
    ------
    AliasError
        Names both.
    """
    starts = np.array([buffer.data_ptr() for buffer in owned.values()], int)
    for name, tensor in lent.items():
        start = tensor.data_ptr()
        end = start + int(tensor.numel()) * tensor.dtype.itemsize
        shared = np.flatnonzero((starts < end) & (start < starts + sizes))
        if len(shared):
            raise AliasError(
                f"input {name!r} shares memory with the {list(owned)[shared[0]]}, which the "
                "step overwrites; pass a copy"
            )


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
    with reported(tensor.device, "a step"):
        return tensor.numpy()
