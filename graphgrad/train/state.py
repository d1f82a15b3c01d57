"""The tensors that a training step owns on its device, and how results take their place.

They are parameters, statistics, the optimizer's buffers, and the count of updates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm

from ..errors import ArgumentError
from ..ir.arrays import to_tensor
from ..lower.device import reported
from ..runtime.progress import unfit_rate
from ..runtime.storage import Storage
from .staging import overwrite
from .tensors import Arrays, Spans, as_arrays
from .window import Window


class TrainState:
    """The state of training: device tensors by name, replaced or overwritten by each step.

    Parameters
    ----------
    params, state : mapping of str to array
        Copied.
    trained : sequence of str
        Names of the parameters that the optimizer moves; they get buffers.
    slots : mapping of str to float
        Names of the optimizer's buffers, and what they are filled with.
    device : tvm device
    accumulates : bool
        A step consists of several micro-batches.
    orders : mapping of str to sequence of int, optional
        Those in which parameters, and the buffers that belong to them, are stored; see `Storage`.
        Arrays that come in and go out are as the model has them.

    Attributes
    ----------
    window : Window or None
        What the micro-batches have summed up, if there are any.
    updates : tensor
        How many steps changed something: a float64 scalar on the device.
    rate : tensor
        The learning rate of the next step, likewise; zero at first.
    """

    def __init__(
        self,
        params: Mapping[str, np.ndarray],
        state: Mapping[str, np.ndarray],
        trained: Sequence[str],
        slots: Mapping[str, float],
        device: Any,
        accumulates: bool = False,
        orders: Mapping[str, Sequence[int]] | None = None,
    ):
        self.device = device
        self._storage = Storage(orders or {})
        self.trained = list(trained)
        self.trained_dtypes = {params[name].dtype for name in trained}
        # In bytes, in the order of `_overwritten`. Each buffer is as large as its parameter.
        trained_sizes = [params[name].nbytes for name in trained]
        state_sizes = [array.nbytes for array in state.values()]
        self._sizes = np.array([*trained_sizes, *state_sizes, *trained_sizes * len(slots)], int)
        frozen = sum(array.nbytes for name, array in params.items() if name not in trained)
        with reported(
            device,
            "the state of training (parameters, statistics, buffers of the optimizer)",
            int(self._sizes.sum()) + frozen,
            remedy="use a smaller model or another optimizer",
        ):
            self.updates, self.rate = self.scalar(np.float64(0)), self.scalar(np.float64(0))
            self.params = {name: self._placed("params", name, a) for name, a in params.items()}
            self.state = {name: to_tensor(array, device) for name, array in state.items()}
            self.slots = {
                slot: {
                    param_name: self._placed(
                        slot, param_name, np.full_like(params[param_name], fill)
                    )
                    for param_name in trained
                }
                for slot, fill in slots.items()
            }
        # The group and the name of each tensor that a step returns behind the count, in that order.
        self._returned = [
            *((self.params, name) for name in self.trained),
            *((group, name) for group in (self.state, *self.slots.values()) for name in group),
        ]
        self._spans: Spans | None = (
            None  # None before the first check, and once a tensor is replaced
        )
        self.window = None
        if accumulates:
            self.window = Window(params, state, self.trained, device, self._storage)

    @property
    def accumulated(self) -> int:
        """How many micro-batches the open window has."""
        return self.window.accumulated if self.window is not None else 0

    def set_rate(self, rate: float) -> None:
        """Set the learning rate of the next steps.

        Raises
        ------
        ArgumentError
            It is infinite in the dtype of a parameter.
        DeviceError
        """
        reason = unfit_rate(rate, self.trained_dtypes)
        if reason:
            raise ArgumentError(f"learning_rate={rate!r} {reason}")
        with reported(self.device, "setting the learning rate"):
            overwrite(self.rate, np.array(rate, "float64"))

    def scalar(self, value: np.generic) -> tvm.runtime.Tensor:
        """A number as a tensor on the device."""
        return to_tensor(value, self.device)

    def arrays(self, with_window: bool = False) -> dict[str, Arrays]:
        """Copies of everything, by group (``params``, ``state``, slot names) and name."""
        window = self.window.arrays() if self.window is not None and with_window else {}
        return {**{group: self.arrays_of(group) for group in self._groups()}, **window}

    def arrays_of(self, group: str) -> Arrays:
        """Copies of a group: ``params``, ``state`` or the name of a slot."""
        return self._storage.as_in_model(group, as_arrays(self._groups()[group]))

    def restore(
        self, groups: Mapping[str, Mapping[str, np.ndarray]], updates: int, accumulated: int = 0
    ) -> None:
        """Overwrite everything by arrays, grouped as `arrays` returns them, and set the counts.

        The window is among them if some micro-batches are accumulated.
        """
        with reported(
            self.device, "a copy of the state of training", remedy="load it in a new process"
        ):
            count = self.scalar(np.float64(updates))  # first: all else needs no memory
            for group, members in self._groups().items():
                for name, tensor in members.items():
                    to_tensor(self._storage.stored(group, name, groups[group][name]), into=tensor)
            self.updates = count
            if self.window is not None:
                self.window.restore(groups, accumulated)

    def of_model(self) -> list[tvm.runtime.Tensor]:
        """The parameters and the statistics, in the order of the model."""
        return [*self.params.values(), *self.state.values()]

    def everything(self) -> list[tvm.runtime.Tensor]:
        """Count, parameters, statistics and buffers, in the order that a step takes."""
        buffers = (tensor for slot in self.slots.values() for tensor in slot.values())
        return [self.updates, *self.of_model(), *buffers]

    def replace(self, tensors: Mapping[int, tvm.runtime.Tensor]) -> None:
        """Take what a step returned, by position: count, trained parameters, statistics, buffers.

        What is left out was overwritten where it is.
        """
        for position, tensor in tensors.items():
            if position == 0:
                self.updates = tensor
            else:
                group, name = self._returned[position - 1]
                group[name] = tensor
                self._spans = None

    def replaced(self) -> list[tvm.runtime.Tensor]:
        """The tensors that `replace` may replace, in its order."""
        return [self.updates, *(group[name] for group, name in self._returned)]

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
        if self.window is not None:
            self.window.check_overlap(lent)

    def _placed(self, group: str, name: str, array: np.ndarray) -> tvm.runtime.Tensor:
        """A copy of an array on the device, in the order of axes in which the step stores it."""
        return to_tensor(self._storage.stored(group, name, array), self.device)

    def _groups(self) -> dict[str, dict[str, tvm.runtime.Tensor]]:
        """All tensors but the count and the window, by group and name, as state files have them."""
        return {"params": self.params, "state": self.state, **self.slots}

    def _overwritten(self) -> dict[str, tvm.runtime.Tensor]:
        """The tensors that a step may overwrite, by what errors call them."""
        return {
            **{f"parameter {name!r}": self.params[name] for name in self.trained},
            **{f"statistic {name!r}": tensor for name, tensor in self.state.items()},
            **{
                f"{slot} of {name!r}": tensor
                for slot, tensors in self.slots.items()
                for name, tensor in tensors.items()
            },
        }
