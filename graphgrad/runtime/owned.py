"""The tensors that an exported step owns: parameters, statistics, the optimizer's buffers.

The counterpart of `graphgrad.train.state`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm

from .arrays import Arrays, copy, to_arrays
from .library import TensorType, types_by_name
from .storage import Storage
from .window import Types, window_types


@dataclass(frozen=True)
class Description:
    """The types of what a step owns.

    Attributes
    ----------
    params, state : dict of str to TensorType
        Parameters and statistics.
    trained : list of TensorType
        The parameters that train.
    fills : dict of str to float
        Names of the optimizer's buffers, of which each parameter that trains has one, and what they
        start with.
    storage : Storage
    """

    params: dict[str, TensorType]
    state: dict[str, TensorType]
    trained: list[TensorType]
    fills: dict[str, float]
    storage: Storage

    @staticmethod
    def of(manifest: Mapping[str, Any]) -> Description:
        """The description that a manifest gives."""
        params = types_by_name(manifest["params"])
        return Description(
            params,
            types_by_name(manifest["state"]),
            [params[name] for name in manifest["trained"]],
            {slot["name"]: slot["fill"] for slot in manifest["slots"]},
            Storage(manifest.get("storage", {})),  # the first format has none
        )

    def types(self) -> Types:
        """The types of everything, by group, in the order of a step."""
        trained = {ty.name: ty for ty in self.trained}
        return {"params": self.params, "state": self.state, **dict.fromkeys(self.fills, trained)}

    def window_types(self) -> Types:
        """The types of what a window of several micro-batches holds."""
        return window_types(self.state, self.trained)

    def started(self, arrays: Mapping[str, np.ndarray]) -> dict[str, Arrays]:
        """Everything by group before the first step, given the parameters and statistics."""
        groups = {
            group: {name: arrays[name] for name in names} for group, names in self.types().items()
        }
        for slot, fill in self.fills.items():
            groups[slot] = {name: np.full_like(array, fill) for name, array in groups[slot].items()}
        return groups


class Owned:
    """Tensors on a device that each step replaces.

    Parameters
    ----------
    described : Description
    groups : mapping
        Copied: arrays by group and name, as a state file has them.
    updates : int
        How many steps have changed something.
    device : Device
    """

    def __init__(
        self,
        described: Description,
        groups: Mapping[str, Arrays],
        updates: int,
        device: tvm.runtime.Device,
    ):
        self._described = described
        storage = described.storage
        self._tensors = {
            group: {
                name: copy(storage.stored(group, name, groups[group][name]), device)
                for name in names
            }
            for group, names in described.types().items()
        }
        self._updates = copy(np.asarray(updates, "float64"), device)

    @property
    def updates(self) -> int:
        """How many steps have changed something; asking waits for the device."""
        return int(self._updates.numpy())

    def groups(self) -> list[str]:
        """The names of the groups."""
        return list(self._tensors)

    def arrays(self, group: str) -> Arrays:
        """Copies of a group, as the model has them."""
        return self._described.storage.as_in_model(group, to_arrays(self._tensors[group]))

    def of_model(self) -> list[tvm.runtime.Tensor]:
        """The parameters and the statistics."""
        return [*self._tensors["params"].values(), *self._tensors["state"].values()]

    def everything(self) -> list[tvm.runtime.Tensor]:
        """Count, parameters, statistics and buffers, in the order that a step takes."""
        owned = [tensor for group in self._tensors.values() for tensor in group.values()]
        return [self._updates, *owned]

    def replaced(self) -> list[tvm.runtime.Tensor]:
        """The tensors that `replace` replaces, in its order."""
        trained = [self._tensors["params"][ty.name] for ty in self._described.trained]
        other_tensors = [tensor for group in self._replaced_whole() for tensor in group.values()]
        return [self._updates, *trained, *other_tensors]

    def replace(self, tensors: Sequence[tvm.runtime.Tensor]) -> None:
        """Take what a step returned: count, parameters that train, statistics and buffers."""
        new_tensors = iter(tensors)
        self._updates = next(new_tensors)
        for ty in self._described.trained:
            self._tensors["params"][ty.name] = next(new_tensors)
        for group in self._replaced_whole():
            for name in group:
                group[name] = next(new_tensors)

    def _replaced_whole(self) -> list[dict[str, tvm.runtime.Tensor]]:
        """The groups of which a step returns every tensor; of ``params`` it returns some."""
        return [self._tensors[group] for group in ("state", *self._described.fills)]
