"""The tensors that a training step owns: parameters, statistics and optimiser buffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm

from ..errors import AliasError
from ..lower.arrays import overlaps, to_tensor

Arrays = dict[str, np.ndarray]


class TrainState:
    """Device tensors by name, replaced by each step.

    Parameters
    ----------
    params, state : mapping of str to array
        Copied.
    trained : sequence of str
        Names of the parameters that the optimiser moves; they get buffers of zeros.
    slots : sequence of str
        Names of the optimiser's buffers.
    device : tvm device
    """

    def __init__(
        self,
        params: Mapping[str, np.ndarray],
        state: Mapping[str, np.ndarray],
        trained: Sequence[str],
        slots: Sequence[str],
        device: Any,
    ):
        self.device = device
        self.trained = list(trained)
        self.params = {name: to_tensor(array, device) for name, array in params.items()}
        self.state = {name: to_tensor(array, device) for name, array in state.items()}
        self.slots = {
            slot: {name: to_tensor(np.zeros_like(params[name]), device) for name in trained}
            for slot in slots
        }

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

    def updated(self) -> list[tvm.runtime.Tensor]:
        """Return the tensors that a step replaces: parameters that train, statistics, buffers."""
        trained = [self.params[name] for name in self.trained]
        buffers = [tensor for slot in self.slots.values() for tensor in slot.values()]
        return [*trained, *self.state.values(), *buffers]

    def replace(self, tensors: Sequence[tvm.runtime.Tensor]) -> None:
        """Take the tensors that a step returned, in the order of `updated`."""
        fresh = iter(tensors)
        for name in self.trained:
            self.params[name] = next(fresh)
        for group in (self.state, *self.slots.values()):
            for name in group:
                group[name] = next(fresh)

    def check_overlap(self, given: Mapping[str, tvm.runtime.Tensor]) -> None:
        """Raise if a step's argument shares memory with a tensor that the step may overwrite.

        Raises
        ------
        AliasError
            Names both.
        """
        owned = {
            **{f"parameter {name!r}": self.params[name] for name in self.trained},
            **{f"statistic {name!r}": tensor for name, tensor in self.state.items()},
            **{
                f"{slot} of {name!r}": tensor
                for slot, tensors in self.slots.items()
                for name, tensor in tensors.items()
            },
        }
        for label, tensor in given.items():
            for owner, buffer in owned.items():
                if overlaps(tensor, buffer):
                    raise AliasError(
                        f"input {label!r} shares memory with the {owner}, which the step "
                        "overwrites; pass a copy"
                    )


def as_arrays(tensors: Mapping[str, tvm.runtime.Tensor]) -> Arrays:
    """Copy tensors to numpy arrays."""
    return {name: tensor.numpy().copy() for name, tensor in tensors.items()}
