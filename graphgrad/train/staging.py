"""Memory on the device that batches are copied to, and that is used again for the next ones."""

from __future__ import annotations

import numpy as np
import tvm

from ..ir.arrays import to_tensor
from ..lower.device import reported
from ..runtime import arrays
from .recent import Limit, Recent


class Staging(arrays.Staging):
    """As that of exports, with memory for a limited number of shapes and errors of graphgrad's."""

    def __init__(self, device: tvm.runtime.Device, limit: Limit):
        super().__init__(device)
        self._limit = limit

    def copy(self, name: str, array: np.ndarray) -> tvm.runtime.Tensor:
        """As `queue`, after waiting for a GPU to finish what was queued.

        Raises
        ------
        DeviceError
        """
        if self._device.type == "cpu":
            return self.queue(name, array)
        with reported(self._device, f"a copy of {name}", array.nbytes):
            return to_tensor(array, into=self._buffer(name, array)[0])

    def queue(self, label: str, array: np.ndarray) -> tvm.runtime.Tensor:
        """An array on the device; it is overwritten by the next of its label and shape.

        Raises
        ------
        DeviceError
        """
        with reported(self._device, f"a copy of {label}", array.nbytes):
            return super().queue(label, array)

    def _buffer(self, label: str, array: np.ndarray) -> arrays.Buffer:
        if label not in self._held:
            self._held[label] = Recent(self._limit)
        return self._held[label].get((array.shape, array.dtype), lambda: self._allocated(array))
