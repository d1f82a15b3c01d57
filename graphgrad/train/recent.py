"""What is kept for the next calls, in a limited number: what was used longest ago goes."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


@dataclass
class Limit:
    """The number of values that each `Recent` of one owner keeps; it may change at any time."""

    count: int


class Recent(Generic[_Key, _Value]):
    """The values of the keys that were asked for last."""

    def __init__(self, limit: Limit):
        self._limit = limit
        self._values: dict[_Key, _Value] = {}  # in the order of their last use

    def get(self, key: _Key, make: Callable[[], _Value]) -> _Value:
        """The value of a key, made if it is not kept."""
        value = self._values.pop(key) if key in self._values else make()
        self._values[key] = value
        while len(self._values) > self._limit.count:
            del self._values[next(iter(self._values))]
        return value

    def keys(self) -> list[_Key]:
        """The keys whose values are kept, those that were used last at the end."""
        return list(self._values)

    def clear(self) -> None:
        """Keep nothing."""
        self._values.clear()
