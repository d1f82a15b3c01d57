"""The tensors of an open window: the sums of the micro-batches that a step has seen so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm

from ..ir.arrays import to_tensor
from ..ir.tensor import accumulator_dtype
from ..lower.device import reported
from ..runtime.storage import Storage
from .tensors import Arrays, Spans, as_arrays


class Window:
    """Device tensors that each micro-batch of a step overwrites; see `accumulate.OpenWindow`.

    They mean nothing while no micro-batch is accumulated: the first one overlooks what they hold.

    Parameters
    ----------
    params, state : mapping of str to array
        Of the model.
    trained : sequence of str
        Names of the parameters that get an accumulator.
    device : tvm device
    storage : Storage, optional
        Says in which order accumulators are stored. Arrays that come in and go out are as the model
        has them.

    Attributes
    ----------
    accumulated : int
        Micro-batches so far.
    """

    def __init__(
        self,
        params: Mapping[str, np.ndarray],
        state: Mapping[str, np.ndarray],
        trained: Sequence[str],
        device: Any,
        storage: Storage | None = None,
    ):
        self.accumulated = 0
        self._storage = storage or Storage({})
        arrays: dict[str, Arrays] = {
            "window": {"loss": np.zeros(()), "weight": np.zeros(())},
            "window_state": {name: np.zeros_like(array) for name, array in state.items()},
            "accumulators": {name: _zeros(params[name]) for name in trained},
        }
        sizes = [array.nbytes for members in arrays.values() for array in members.values()]
        self._sizes = np.array(sizes, int)
        with reported(
            device,
            "the accumulators of gradients",
            int(self._sizes.sum()),
            remedy="use a smaller model, or accumulate=1",
        ):
            self._groups = {
                group: {
                    name: to_tensor(self._storage.stored(group, name, array), device)
                    for name, array in members.items()
                }
                for group, members in arrays.items()
            }
            # On the device from the start, so that no micro-batch has to copy its flag there.
            self._flags = [to_tensor(np.array(flag, "int64"), device) for flag in (1, 0)]
        # The group and the name of each tensor, in the order in which a micro-batch returns them.
        self._returned = [(members, name) for members in self._groups.values() for name in members]
        self._spans: Spans | None = (
            None  # None before the first check, and once a tensor is replaced
        )

    @property
    def opens(self) -> tvm.runtime.Tensor:
        """Whether the next micro-batch is the first one, as an int64 scalar on the device."""
        return self._flags[self.accumulated > 0]

    def everything(self) -> list[tvm.runtime.Tensor]:
        """The tensors in the order of `OpenWindow.all`."""
        return [tensor for members in self._groups.values() for tensor in members.values()]

    def replace(self, tensors: Mapping[int, tvm.runtime.Tensor]) -> None:
        """Take what a micro-batch returned, by its position in that order, and count it.

        What is left out was overwritten where it is.
        """
        for position, tensor in tensors.items():
            members, name = self._returned[position]
            members[name] = tensor
            self._spans = None
        self.accumulated += 1

    def arrays(self) -> dict[str, Arrays]:
        """Copies of everything, by group and name."""
        return {
            group: self._storage.as_in_model(group, as_arrays(tensors))
            for group, tensors in self._groups.items()
        }

    def restore(self, groups: Mapping[str, Mapping[str, np.ndarray]], accumulated: int) -> None:
        """Overwrite everything by arrays, grouped as `arrays` returns them, and set the count."""
        for group, members in self._groups.items() if accumulated else ():
            for name, tensor in members.items():
                to_tensor(self._storage.stored(group, name, groups[group][name]), into=tensor)
        self.accumulated = accumulated

    def check_overlap(self, lent: Mapping[str, tvm.runtime.Tensor]) -> None:
        """Raise `AliasError` if memory that the caller lends belongs to the window."""
        if self._spans is None:
            owned = {
                f"{group} of {name!r}": tensor
                for group, members in self._groups.items()
                for name, tensor in members.items()
            }
            self._spans = Spans(owned, self._sizes)
        self._spans.refuse(lent)


def _zeros(param: np.ndarray) -> np.ndarray:
    """The accumulator of a parameter's gradient, in float32 for parameters of half precision."""
    return np.zeros(param.shape, accumulator_dtype(str(param.dtype)))
