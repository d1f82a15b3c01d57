"""The tensors that a training step owns on its device, beside memory that its callers lend.

What they are, and how results take their place, says `runtime.owned`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import tvm

from ..errors import ArgumentError
from ..ir.arrays import to_tensor
from ..lower.device import reported
from ..runtime.arrays import Arrays
from ..runtime.library import TensorType
from ..runtime.owned import Description, Owned, scale_types
from ..runtime.progress import unfit_rate
from ..runtime.storage import Storage
from .tensors import Spans


def describe(
    params: Mapping[str, np.ndarray],
    state: Mapping[str, np.ndarray],
    trained: Sequence[str],
    slots: Mapping[str, float],
    orders: Mapping[str, Sequence[int]] | None = None,
    loss_scale: Mapping[str, float] | None = None,
) -> Description:
    """The description of what a step owns.

    Parameters
    ----------
    params, state : mapping of str to array
    trained : sequence of str
        Names of the parameters that the optimizer moves; they get buffers.
    slots : mapping of str to float
        Names of the optimizer's buffers, and what they are filled with.
    orders : mapping of str to sequence of int, optional
        Those in which parameters, and the buffers that belong to them, are stored; see `Storage`.
    loss_scale : mapping of str to float, optional
        What its numbers start with, if the step scales its loss.
    """
    types = _types(params)
    trained_types = [types[name] for name in trained]
    storage, scale = Storage(orders or {}), dict(loss_scale or {})
    return Description(types, _types(state), trained_types, dict(slots), storage, scale)


class TrainState(Owned):
    """The state of training: `Owned`, with graphgrad's errors, and restored where it is.

    Parameters
    ----------
    described : Description
    arrays : mapping of str to array
        Parameters and statistics. Copied.
    device : tvm device
    accumulates : bool
        A step consists of several micro-batches.
    """

    def __init__(
        self,
        described: Description,
        arrays: Mapping[str, np.ndarray],
        device: tvm.runtime.Device,
        accumulates: bool = False,
    ):
        with reported(
            device,
            "the state of training (parameters, statistics, buffers of the optimizer)",
            sum(sizes_of(ty for members in described.types().values() for ty in members.values())),
            remedy="use a smaller model or another optimizer",
        ):
            super().__init__(described, described.started(arrays), device)
        trained, state = sizes_of(described.trained), sizes_of(described.state.values())
        # In bytes, in the order of `_overwritten`.
        scale = sizes_of(scale_types().values()) if described.loss_scale else []
        sizes = [*trained, *state, *trained * len(described.fills), *scale]
        if accumulates:
            window_types = described.window_types().values()
            of_window = sizes_of(ty for members in window_types for ty in members.values())
            with reported(
                device,
                "the accumulators of gradients",
                sum(of_window),
                remedy="use a smaller model, or accumulate=1",
            ):
                self.open_window({})
            sizes += of_window
        self._sizes = np.array(sizes, int)
        self._spans: Spans | None = (
            None  # None before the first check, and once a tensor is replaced
        )

    def set_rate(self, rate: float) -> None:
        """Set the learning rate of the next steps.

        Raises
        ------
        ArgumentError
            It is infinite in the dtype of a parameter.
        DeviceError
        """
        reason = unfit_rate(rate, [ty.dtype for ty in self._described.trained])
        if reason:
            raise ArgumentError(f"learning_rate={rate!r} {reason}")
        with reported(self._device, "setting the learning rate"):
            super().set_rate(rate)

    def restore(self, groups: Mapping[str, Arrays], updates: int, accumulated: int = 0) -> None:
        """Overwrite everything by arrays, grouped as `arrays` returns them, and set the counts.

        The window is among them if some micro-batches are accumulated.
        """
        tensors, storage = self.groups(), self._described.storage
        if self.window is not None and accumulated:
            tensors |= self.window.groups
        with reported(
            self._device, "a copy of the state of training", remedy="load it in a new process"
        ):
            count = self.scalar(updates)  # first: all else needs no memory
            for group, members in tensors.items():
                for name, tensor in members.items():
                    to_tensor(storage.stored(group, name, groups[group][name]), into=tensor)
            self.updates = count
        if self.window is not None:
            self.window.accumulated = accumulated

    def add(self, sums: Mapping[int, tvm.runtime.Tensor]) -> None:
        """Take what a micro-batch returned, by position."""
        super().add(sums)
        if sums:
            self._spans = None

    def replace(self, tensors: Mapping[int, tvm.runtime.Tensor]) -> None:
        """Take what a step returned, by position."""
        super().replace(tensors)
        if tensors.keys() - {0}:  # the count is overwritten by nothing
            self._spans = None

    def check_overlap(self, lent: Mapping[str, tvm.runtime.Tensor]) -> None:
        """Raise if memory that the caller lends belongs to a tensor that a step may overwrite.

        Arguments that were copied need no check: their memory is their own.

        Raises
        ------
        AliasError
            Names both.
        """
        if not lent:
            return
        if self._spans is None:
            self._spans = Spans(self._overwritten(), self._sizes)
        self._spans.refuse(lent)

    def _overwritten(self) -> dict[str, tvm.runtime.Tensor]:
        """The tensors that a step may overwrite, by what errors call them."""
        window = self.window.groups if self.window is not None else {}
        return {
            **{f"parameter {ty.name!r}": self.params[ty.name] for ty in self._described.trained},
            **{f"statistic {name!r}": tensor for name, tensor in self.state.items()},
            **{
                f"{group} of {name!r}": tensor
                for group, tensors in (*self.slots.items(), *window.items())
                for name, tensor in tensors.items()
            },
        }


def _types(arrays: Mapping[str, np.ndarray]) -> dict[str, TensorType]:
    """The types of arrays by name."""
    return {name: TensorType(name, str(a.dtype), a.shape) for name, a in arrays.items()}


def sizes_of(types: Iterable[TensorType]) -> list[int]:
    """The sizes of tensors in bytes."""
    return [math.prod(ty.shape) * np.dtype(ty.dtype).itemsize for ty in types]
