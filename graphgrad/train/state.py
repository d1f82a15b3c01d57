"""The tensors that a training step owns: parameters, statistics and optimiser buffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm

from ..errors import AliasError
from ..lower.arrays import to_tensor

Arrays = dict[str, np.ndarray]


class TrainState:
    """Device tensors by name, replaced by each step.

    Parameters
    ----------
    params, state : mapping of str to array
        Copied.
    trained : sequence of str
        Names of the parameters that the optimiser moves; they get buffers.
    slots : mapping of str to float
        Names of the optimiser's buffers, and what they are filled with.
    device : tvm device
    """

    def __init__(
        self,
        params: Mapping[str, np.ndarray],
        state: Mapping[str, np.ndarray],
        trained: Sequence[str],
        slots: Mapping[str, float],
        device: Any,
    ):
        self.device = device
        self.trained = list(trained)
        self.trained_dtypes = {params[name].dtype for name in trained}
        self.params = {name: to_tensor(array, device) for name, array in params.items()}
        self.state = {name: to_tensor(array, device) for name, array in state.items()}
        self.slots = {
            slot: {name: to_tensor(np.full_like(params[name], fill), device) for name in trained}
            for slot, fill in slots.items()
        }
        # In bytes, in the order of `_overwritten`; asking each tensor would take longer.
        trained_sizes = [params[name].nbytes for name in trained]
        state_sizes = [array.nbytes for array in state.values()]
        self._sizes = np.array([*trained_sizes, *state_sizes, *trained_sizes * len(slots)], int)

    def arrays(self) -> dict[str, Arrays]:
        """Return copies of everything, by group (``params``, ``state``, slot names) and name."""
        groups = {"params": self.params, "state": self.state, **self.slots}
        return {group: as_arrays(tensors) for group, tensors in groups.items()}

    def restore(self, groups: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        """Replace everything by copies of arrays, grouped as `arrays` returns them."""
        restored = {
            group: {name: to_tensor(array, self.device) for name, array in arrays.items()}
            for group, arrays in groups.items()
        }
        self.params, self.state = restored.pop("params"), restored.pop("state")
        self.slots = restored

    def of_model(self) -> list[tvm.runtime.Tensor]:
        """Return the parameters and the statistics, in the order of the model."""
        return [*self.params.values(), *self.state.values()]

    def everything(self) -> list[tvm.runtime.Tensor]:
        """Return parameters, statistics and buffers: what a step takes."""
        return [*self.of_model(), *(t for slot in self.slots.values() for t in slot.values())]

    def replace(self, tensors: Sequence[tvm.runtime.Tensor]) -> None:
        """Take what a step returned: the parameters that train, all statistics, all buffers."""
        fresh = iter(tensors)
        for name in self.trained:
            self.params[name] = next(fresh)
        for group in (self.state, *self.slots.values()):
            for name in group:
                group[name] = next(fresh)

    def check_overlap(self, lent: Mapping[str, tvm.runtime.Tensor]) -> None:
        """Raise if memory that the caller lends belongs to a tensor that a step may overwrite.

        Arguments that were copied need no check: their memory is their own.

        Raises
        ------
        AliasError
            Names both.
        """
        owned = self._overwritten() if lent else {}
        starts = np.array([buffer.data_ptr() for buffer in owned.values()], int)
        for name, tensor in lent.items():
            start = tensor.data_ptr()
            end = start + int(tensor.numel()) * tensor.dtype.itemsize
            shared = np.flatnonzero((starts < end) & (start < starts + self._sizes))
            if len(shared):
                raise AliasError(
                    f"input {name!r} shares memory with the {list(owned)[shared[0]]}, which the "
                    "step overwrites; pass a copy"
                )

    def _overwritten(self) -> dict[str, tvm.runtime.Tensor]:
        """Return the tensors that a step may overwrite, by what errors call them."""
        return {
            **{f"parameter {name!r}": self.params[name] for name in self.trained},
            **{f"statistic {name!r}": tensor for name, tensor in self.state.items()},
            **{
                f"{slot} of {name!r}": tensor
                for slot, tensors in self.slots.items()
                for name, tensor in tensors.items()
            },
        }


def as_arrays(tensors: Mapping[str, tvm.runtime.Tensor]) -> Arrays:
    """Copy tensors to numpy arrays."""
    return {name: tensor.numpy() for name, tensor in tensors.items()}
