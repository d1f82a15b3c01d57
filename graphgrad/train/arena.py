"""One block of memory for all functions of a model, which use it one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary, WeakSet

import tvm

from ..memory.workspace import Workspace
from ..runtime.arrays import empty
from ..runtime.cuda_graph import Recorded

Tensors = list[tvm.runtime.Tensor]


class Arena:
    """Memory of a device for workspaces: as much as the largest that was asked for so far.

    Steps, evaluations and steps of other shapes use the same. What belongs to a workspace goes with
    it.

    Parameters
    ----------
    device : Device
    """

    def __init__(self, device: tvm.runtime.Device) -> None:
        self._device = device
        self._block: tvm.runtime.Tensor | None = None
        self._bytes = 0
        self._is_lent = False
        self._placed: WeakKeyDictionary[Workspace, Tensors] = WeakKeyDictionary()
        self.borrowers: WeakSet[Recorded] = WeakSet()
        """What holds tensors of the block from call to call, and is told before it goes."""

    @contextmanager
    def lent(self, workspace: Workspace) -> Iterator[Tensors]:
        """The tensors of a workspace, for the time of a call."""
        if self._is_lent:  # a packed function of the model, which runs, calls the model
            yield workspace.place(self._new_block(workspace.bytes))
            return
        self._is_lent = True
        try:
            yield self._tensors(workspace)
        finally:
            self._is_lent = False

    def _tensors(self, workspace: Workspace) -> Tensors:
        if self._block is None or workspace.bytes > self._bytes:
            # The old block goes first, so that no two are there at a time.
            for borrower in self.borrowers:
                borrower.forget()
            self._placed.clear()
            self._block, self._bytes = None, 0
            self._block, self._bytes = self._new_block(workspace.bytes), workspace.bytes
        if workspace not in self._placed:
            self._placed[workspace] = workspace.place(self._block)
        return self._placed[workspace]

    def _new_block(self, size: int) -> tvm.runtime.Tensor:
        return empty((size,), "uint8", self._device)
