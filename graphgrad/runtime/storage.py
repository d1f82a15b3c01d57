"""Conversion between the order of axes in which a step stores parameters, and the model's order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

_NOT_OF_PARAMETERS = ("state", "window", "window_state", "loss_scale")
"""Groups of what a step owns whose names are not those of parameters; of all others they are."""


class Storage:
    """A converter between arrays in the model's order of axes, as in all files, and stored arrays.

    Parameters
    ----------
    orders : mapping of str to sequence of int
        By parameter: axis k of what is stored is axis ``order[k]`` of the model's. Buffers and
        accumulators are stored as the parameter that they belong to. What is left out is stored as
        the model has it.
    """

    def __init__(self, orders: Mapping[str, Sequence[int]]):
        self._orders = {name: tuple(map(int, order)) for name, order in orders.items()}

    def stored(self, group: str, name: str, array: np.ndarray) -> np.ndarray:
        """The stored form of an array of a group, such as ``params`` or ``momentum``."""
        return _transposed(array, self._order(group, name))

    def as_in_model(self, group: str, stored: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The arrays by name that those of a group are stored for: the inverse of `stored`.

        What is stored as the model has it is returned itself.
        """
        return {name: self._restored(group, name, array) for name, array in stored.items()}

    def shape(self, group: str, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of what is stored for an array of a shape."""
        order = self._order(group, name)
        return shape if order is None else tuple(shape[axis] for axis in order)

    def _restored(self, group: str, name: str, array: np.ndarray) -> np.ndarray:
        """The array, in the model's order, that another is stored for."""
        order = self._order(group, name)
        # The argsort of a permutation is its inverse.
        return _transposed(array, None if order is None else np.argsort(order))

    def _order(self, group: str, name: str) -> tuple[int, ...] | None:
        """The order in which something is stored; None if in the model's."""
        return None if group in _NOT_OF_PARAMETERS else self._orders.get(name)


def _transposed(array: np.ndarray, axes: Any) -> np.ndarray:
    """A contiguous array with its axes permuted; for None, the array itself."""
    return array if axes is None else np.ascontiguousarray(np.transpose(array, axes))
