"""Memory on the device that batches are copied to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm

from ..ir.arrays import empty, to_tensor
from ..lower.device import reported
from .tensors import memory_of


@dataclass(frozen=True)
class _Place:
    """A tensor, and on the host its memory as numpy sees it."""

    tensor: tvm.runtime.Tensor
    memory: np.ndarray | None


class Staging:
    """Memory on the device that arrays from the host are copied to, kept for the next ones.

    To take memory from a driver and to give it back costs more than most copies, and giving back
    waits for all that runs.
    """

    def __init__(self, device: tvm.runtime.Device):
        self.device = device
        self._is_host = device.type == "cpu"
        self._held: dict[Any, _Place] = {}

    def copy(self, name: str, array: np.ndarray) -> tvm.runtime.Tensor:
        """An array on the device; it is overwritten by the next of its name and shape.

        Raises
        ------
        DeviceError
        """
        place = self._place(name, array)
        if place.memory is not None:
            place.memory[...] = array
            return place.tensor
        with reported(self.device, f"a copy of {name}", array.nbytes):
            return to_tensor(array, into=place.tensor)

    def queue(self, name: str, array: np.ndarray) -> tvm.runtime.Tensor:
        """As `copy`, by `overwrite`.

        Raises
        ------
        DeviceError
        """
        if self._is_host:
            return self.copy(name, array)
        place = self._place(name, array)
        with reported(self.device, f"a copy of {name}", array.nbytes):
            return overwrite(place.tensor, array)

    def _place(self, name: str, array: np.ndarray) -> _Place:
        key = name, array.shape, array.dtype
        place = self._held.get(key)
        if place is None:
            with reported(self.device, f"a copy of {name}", array.nbytes):
                tensor = empty(array.shape, str(array.dtype), self.device)
            place = _Place(tensor, memory_of(tensor) if self._is_host else None)
            self._held[key] = place
        return place

    def clear(self) -> None:
        """Give the memory back."""
        self._held.clear()


def overwrite(tensor: tvm.runtime.Tensor, array: np.ndarray) -> tvm.runtime.Tensor:
    """Copy an array into a tensor, after all that was queued, without asking to wait for it."""
    if tensor.device.type == "cpu":
        return to_tensor(array, into=tensor)
    # The driver has read ordinary memory when it returns, but not memory that is locked for it, as
    # a caller's may be.
    return tvm.runtime.tensor(array).copyto(tensor)
