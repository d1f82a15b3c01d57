"""One block of memory for all functions of a model, which use it one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import tvm

from .arrays import empty
from .cuda_graph import Recorded
from .results import Returned

Tensors = list[tvm.runtime.Tensor]

RELEASE = "graphgrad.release"
"""The name of a function that takes and returns nothing.

A virtual machine holds what it has returned last, and with it the block that this lies in, until a
function of it returns something else.
"""


@dataclass(frozen=True, eq=False)
class Workspace:
    """What a function wants to be passed behind its arguments.

    Attributes
    ----------
    bytes : int
        The size of the block that all of it lies in.
    tensors : list of (int, list of int, str)
        The offset, shape and dtype of each tensor. Some lie in the same memory, which they use one
        after the other.
    """

    bytes: int
    tensors: list[tuple[int, list[int], str]]

    def place(self, block: tvm.runtime.Tensor) -> Tensors:
        """The tensors in a block of bytes."""
        at_zero = tvm.get_global_func("vm.builtin.ensure_zero_offset")
        return [
            at_zero(block._create_view(tuple(shape), dtype, relative_byte_offset=offset))
            for offset, shape, dtype in self.tensors
        ]


class Arena:
    """Memory of a device for workspaces: as much as the largest that was asked for so far.

    Steps, evaluations and steps of other shapes use the same. What belongs to a workspace goes with
    it.

    Parameters
    ----------
    device : Device

    Attributes
    ----------
    records : bool
        Whether functions are recorded that can be; may be changed between two calls.
    """

    def __init__(self, device: tvm.runtime.Device) -> None:
        self._device = device
        self._block: tvm.runtime.Tensor | None = None
        self._bytes = 0
        self._is_lent = False
        self._placed: WeakKeyDictionary[Workspace, Tensors] = WeakKeyDictionary()
        self._borrowers: WeakSet[Recorded] = WeakSet()
        """What holds tensors of the block from call to call, and is told before it goes."""
        self.records = True

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

    def recorded(
        self,
        function: Callable[..., Sequence[tvm.runtime.Tensor]],
        release: Callable[[], Any],
        workspace: Workspace,
        returned: Returned,
    ) -> Callable[..., Tensors]:
        """A function of a GPU that computes in a workspace, as one that is recorded.

        Parameters
        ----------
        function : callable
            As of `Recorded`.
        release : callable
            `RELEASE` of the same virtual machine.
        workspace : Workspace
        returned : Returned
        """

        def work(*arguments: tvm.runtime.Tensor) -> Sequence[tvm.runtime.Tensor]:
            results = function(*arguments)
            release()
            return results

        recorded = Recorded(work, self._device, returned.overwritten, returned.results)
        self._borrowers.add(recorded)

        def run(*arguments: tvm.runtime.Tensor) -> Tensors:
            with self.lent(workspace) as tensors:
                return recorded(tensors, *arguments, records=self.records)

        return run

    def clear(self) -> None:
        """Give the memory back, and the graphs that were recorded with it; not inside of a call."""
        for borrower in self._borrowers:
            borrower.forget()
        self._placed.clear()
        self._block, self._bytes = None, 0

    def _tensors(self, workspace: Workspace) -> Tensors:
        if self._block is None or workspace.bytes > self._bytes:
            self.clear()  # first, so that no two blocks are there at a time
            self._block, self._bytes = self._new_block(workspace.bytes), workspace.bytes
        if workspace not in self._placed:
            self._placed[workspace] = workspace.place(self._block)
        return self._placed[workspace]

    def _new_block(self, size: int) -> tvm.runtime.Tensor:
        return empty((size,), "uint8", self._device)
