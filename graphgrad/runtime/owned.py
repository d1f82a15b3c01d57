"""The tensors that a step owns: parameters, statistics, buffers, the rate, the loss scale."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm

from .arrays import Arrays, copy, to_arrays
from .library import TensorType, types_by_name
from .storage import Storage
from .window import Types, Window, window_types

LOSS_SCALE = "loss_scale"
"""The group of the numbers by which a step of float16 keeps gradients from becoming zero."""

SCALE, GOOD_STEPS = "scale", "good_steps"
"""Their names: what the loss is multiplied by, and good steps since that last changed."""


def scale_types() -> dict[str, TensorType]:
    """The types of a loss scale's numbers by name, in the order of a step."""
    return {
        SCALE: TensorType(SCALE, "float32", ()),
        GOOD_STEPS: TensorType(GOOD_STEPS, "int64", ()),
    }


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
    loss_scale : dict of str to float
        What the numbers of `scale_types` start with; empty for a step that does not scale its loss.
    """

    params: dict[str, TensorType]
    state: dict[str, TensorType]
    trained: list[TensorType]
    fills: dict[str, float]
    storage: Storage
    loss_scale: dict[str, float] = field(default_factory=dict)

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
            dict(manifest.get("loss_scale", {})),
        )

    def types(self) -> Types:
        """The types of everything, by group, in the order of a step."""
        trained = {ty.name: ty for ty in self.trained}
        slots = dict.fromkeys(self.fills, trained)
        scale = {LOSS_SCALE: scale_types()} if self.loss_scale else {}
        return {"params": self.params, "state": self.state, **slots, **scale}

    def window_types(self) -> Types:
        """The types of what a window of several micro-batches holds."""
        return window_types(self.state, self.trained)

    def added(self) -> list[TensorType]:
        """The types of what a micro-batch returns behind its loss, as they are stored."""
        return self._stored(self.window_types())

    def replaced(self) -> list[TensorType]:
        """The types of what a step returns behind its loss, as they are stored; see `Owned`."""
        types = {**self.types(), "params": {ty.name: ty for ty in self.trained}}
        return [TensorType("updates", "float64", ()), *self._stored(types)]

    def _stored(self, types: Types) -> list[TensorType]:
        return [
            TensorType(name, ty.dtype, self.storage.shape(group, name, ty.shape))
            for group, members in types.items()
            for name, ty in members.items()
        ]

    def started(self, arrays: Mapping[str, np.ndarray]) -> dict[str, Arrays]:
        """Everything by group before the first step, given the parameters and statistics."""
        groups = {
            group: {name: arrays[name] for name in names}
            for group, names in self.types().items()
            if group != LOSS_SCALE
        }
        for slot, fill in self.fills.items():
            # Views of one number each: buffers may take more memory than the parameters.
            groups[slot] = {
                name: np.broadcast_to(np.asarray(fill, array.dtype), array.shape)
                for name, array in groups[slot].items()
            }
        return {**groups, **self.first_scale()}

    def first_scale(self) -> dict[str, Arrays]:
        """The group of the loss scale before the first step; nothing where there is none."""
        if not self.loss_scale:
            return {}
        first = {n: np.asarray(self.loss_scale[n], ty.dtype) for n, ty in scale_types().items()}
        return {LOSS_SCALE: first}


class Owned:
    """Tensors on a device that each step replaces, or overwrites where they are.

    Parameters
    ----------
    described : Description
    groups : mapping
        Copied: arrays by group and name, as a state file has them.
    device : Device
    updates : int
        How many steps have changed something.
    rate : float
        The learning rate of the next step.

    Attributes
    ----------
    params, state : dict of str to tensor
    slots : dict of str to dict of str to tensor
        The optimizer's buffers, by slot, then by parameter; behind them the loss scale, if any.
    updates, rate : tensor
        Float64 scalars.
    window : Window or None
        What the micro-batches have summed up, if a step consists of several.
    """

    def __init__(
        self,
        described: Description,
        groups: Mapping[str, Arrays],
        device: tvm.runtime.Device,
        updates: int = 0,
        rate: float = 0.0,
    ):
        self._described = described
        self._device = device
        storage = described.storage
        placed = {
            group: {
                name: copy(storage.stored(group, name, groups[group][name]), device)
                for name in names
            }
            for group, names in described.types().items()
        }
        self.params, self.state = placed.pop("params"), placed.pop("state")
        self.slots = placed
        self.updates, self.rate = self.scalar(updates), self.scalar(rate)
        self.window: Window | None = None
        # The group and the name of each tensor that a step returns behind the count, in that order.
        self._returned = [
            *((self.params, ty.name) for ty in described.trained),
            *((group, name) for group in (self.state, *self.slots.values()) for name in group),
        ]

    @property
    def accumulated(self) -> int:
        """How many micro-batches the open window has."""
        return self.window.accumulated if self.window is not None else 0

    def open_window(self, groups: Mapping[str, Arrays], accumulated: int = 0) -> None:
        """Make the window of a step of several micro-batches; see `Window`."""
        described = self._described
        types, storage = described.window_types(), described.storage
        self.window = Window(types, groups, accumulated, self._device, storage)

    def loss_scale(self) -> list[tvm.runtime.Tensor]:
        """What a step multiplies its loss by, a scalar; nothing where it does not."""
        scale = self.slots.get(LOSS_SCALE)
        return [scale[SCALE]] if scale is not None else []

    def scalar(self, value: float) -> tvm.runtime.Tensor:
        """A number as a float64 scalar on the device."""
        return copy(np.asarray(value, "float64"), self._device)

    def set_rate(self, rate: float) -> None:
        """Set the learning rate of the next steps."""
        copy(np.asarray(rate, "float64"), self._device, into=self.rate)

    def groups(self) -> dict[str, dict[str, tvm.runtime.Tensor]]:
        """All tensors but the scalars and the window, by group, as state files have them."""
        return {"params": self.params, "state": self.state, **self.slots}

    def arrays(self, with_window: bool = False) -> dict[str, Arrays]:
        """Copies of everything, by group and name, as the model has them."""
        window = self.window.arrays() if self.window is not None and with_window else {}
        return {**{group: self.arrays_of(group) for group in self.groups()}, **window}

    def arrays_of(self, group: str) -> Arrays:
        """Copies of a group: ``params``, ``state`` or the name of a slot."""
        return self._described.storage.as_in_model(group, to_arrays(self.groups()[group]))

    def of_model(self) -> list[tvm.runtime.Tensor]:
        """The parameters and the statistics, in the order of the model."""
        return [*self.params.values(), *self.state.values()]

    def everything(self) -> list[tvm.runtime.Tensor]:
        """Count, parameters, statistics, buffers and loss scale, in the order that a step takes."""
        buffers = (tensor for slot in self.slots.values() for tensor in slot.values())
        return [self.updates, *self.of_model(), *buffers]

    def replaced(self) -> list[tvm.runtime.Tensor]:
        """The tensors that `replace` may replace, in its order."""
        return [self.updates, *(group[name] for group, name in self._returned)]

    def add(self, sums: Mapping[int, tvm.runtime.Tensor]) -> None:
        """Take what a micro-batch returned, by position; see `Window.replace`."""
        assert self.window is not None
        self.window.replace(sums)

    def replace(self, tensors: Mapping[int, tvm.runtime.Tensor]) -> None:
        """Take what a step returned, by position: count, trained parameters, statistics, buffers,
        loss scale.

        What is left out was overwritten where it is.
        """
        for position, tensor in tensors.items():
            if position == 0:
                self.updates = tensor
            else:
                group, name = self._returned[position - 1]
                group[name] = tensor
