"""The tensors of an open window: the sums of the micro-batches that a step has seen so far."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

import numpy as np
import tvm

from .arrays import Arrays, copy, empty, to_arrays
from .library import TensorType
from .storage import Storage

Types = dict[str, dict[str, TensorType]]


def window_types(state: Mapping[str, TensorType], trained: Sequence[TensorType]) -> Types:
    """The types of what a window holds, by group, in the order that a step takes it."""
    sums = {name: TensorType(name, "float64", ()) for name in ("loss", "weight")}
    return {
        "window": sums,
        "window_state": dict(state),
        "accumulators": {ty.name: TensorType(ty.name, _wide(ty.dtype), ty.shape) for ty in trained},
    }


class Counting(Protocol):
    """The part of a window that `dropped_on_failure` uses."""

    accumulated: int


@contextmanager
def dropped_on_failure(window: Counting, lacks_memory: type[Exception]) -> Iterator[None]:
    """Drop a window if adding a micro-batch to it, inside, fails: some sums may hold it by then.

    Parameters
    ----------
    window : Counting
    lacks_memory : type
        The error that comes before anything is computed. It leaves the window as it is.
    """
    try:
        yield
    except lacks_memory:
        raise
    except BaseException:
        window.accumulated = 0
        raise


class Window:
    """Tensors that each micro-batch overwrites; the first one overlooks what they hold.

    Parameters
    ----------
    types : Types
    groups : mapping
        Arrays by group and name, as a state file has them; what it lacks is not set.
    accumulated : int
        Micro-batches so far.
    device : Device
    storage : Storage, optional
        Says in which order accumulators are stored. Arrays that come in and go out are as the model
        has them.

    Attributes
    ----------
    groups : dict of str to dict of str to tensor
    """

    def __init__(
        self,
        types: Types,
        groups: Mapping[str, Arrays],
        accumulated: int,
        device: tvm.runtime.Device,
        storage: Storage | None = None,
    ):
        self.accumulated = accumulated
        self._storage = storage or Storage({})
        # On the device from the start, so that no micro-batch has to copy its flag there.
        self._flags = [copy(np.asarray(flag, "int64"), device) for flag in (1, 0)]
        self.groups = {
            group: {
                name: self._placed(group, ty, arrays[name] if arrays else None, device)
                for name, ty in members.items()
            }
            for group, members in types.items()
            for arrays in [groups.get(group)]
        }
        # The group and the name of each tensor, in the order in which a micro-batch returns them.
        self._returned = [(members, name) for members in self.groups.values() for name in members]

    @property
    def opens(self) -> tvm.runtime.Tensor:
        """Whether the next micro-batch is the first one, as an int64 scalar on the device."""
        return self._flags[self.accumulated > 0]

    def everything(self) -> list[tvm.runtime.Tensor]:
        """The tensors in the order that a step takes them."""
        return [tensor for members in self.groups.values() for tensor in members.values()]

    def replace(self, tensors: Mapping[int, tvm.runtime.Tensor]) -> None:
        """Take what a micro-batch returned, by its position in that order, and count it.

        What is left out was overwritten where it is.
        """
        for position, tensor in tensors.items():
            members, name = self._returned[position]
            members[name] = tensor
        self.accumulated += 1

    def arrays(self) -> dict[str, Arrays]:
        """Copies of everything, by group and name."""
        return {
            group: self._storage.as_in_model(group, to_arrays(tensors))
            for group, tensors in self.groups.items()
        }

    def _placed(
        self, group: str, ty: TensorType, array: np.ndarray | None, device: tvm.runtime.Device
    ) -> tvm.runtime.Tensor:
        """A copy of an array on the device as it is stored; for None, memory that is not set."""
        if array is not None:
            return copy(self._storage.stored(group, ty.name, array), device)
        return empty(self._storage.shape(group, ty.name, ty.shape), ty.dtype, device)


def _wide(dtype: str) -> str:
    """The dtype in which gradients of a dtype are summed up."""
    return "float32" if dtype in ("float16", "bfloat16") else dtype
