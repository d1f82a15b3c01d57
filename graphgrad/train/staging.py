"""Memory on the device that batches are copied to, and that is used again for the next ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm

from ..ir.arrays import to_tensor
from ..lower.device import reported
from ..runtime.arrays import copy, empty
from .recent import Limit, Recent
from .tensors import memory_of


@dataclass(frozen=True)
class _Buffer:
    """A buffer on the device: a tensor, and on the host its memory as a numpy array, else None."""

    tensor: tvm.runtime.Tensor
    memory: np.ndarray | None


class Staging:
    """Memory on the device that arrays from the host are copied to, kept for the next ones.

    To take memory from a driver and to give it back costs more than most copies, and giving back
    waits for all that runs.
    """

    def __init__(self, device: tvm.runtime.Device, limit: Limit):
        self.device = device
        self._limit = limit
        self._is_host = device.type == "cpu"
        self._held: dict[str, Recent[Any, _Buffer]] = {}

    def copy(self, name: str, array: np.ndarray) -> tvm.runtime.Tensor:
        """An array on the device; it is overwritten by the next of its name and shape.

        Raises
        ------
        DeviceError
        """
        buffer = self._buffer(name, array)
        if buffer.memory is not None:
            buffer.memory[...] = array
            return buffer.tensor
        with reported(self.device, f"a copy of {name}", array.nbytes):
            return to_tensor(array, into=buffer.tensor)

    def queue(self, name: str, array: np.ndarray) -> tvm.runtime.Tensor:
        """As `copy`, but without waiting for a GPU to finish what was queued.

        Raises
        ------
        DeviceError
        """
        if self._is_host:
            return self.copy(name, array)
        buffer = self._buffer(name, array)
        with reported(self.device, f"a copy of {name}", array.nbytes):
            return copy(array, self.device, into=buffer.tensor)

    def _buffer(self, name: str, array: np.ndarray) -> _Buffer:
        """The buffer for arrays of a name, shape and dtype, allocated when first asked for."""

        def allocate() -> _Buffer:
            with reported(self.device, f"a copy of {name}", array.nbytes):
                tensor = empty(array.shape, str(array.dtype), self.device)
            return _Buffer(tensor, memory_of(tensor) if self._is_host else None)

        if name not in self._held:
            self._held[name] = Recent(self._limit)
        return self._held[name].get((array.shape, array.dtype), allocate)

    def clear(self) -> None:
        """Give the memory back."""
        self._held.clear()
