"""A lock for objects that several threads call: their methods run one at a time."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from threading import RLock
from typing import Any, TypeVar, cast

_Method = TypeVar("_Method", bound=Callable[..., Any])


class Synchronized:
    """The base class of objects whose methods are `one_at_a_time`.

    Frames of a virtual machine, the memory that batches are copied to, and tensors that are
    overwritten where they are belong to one thread at a time.
    """

    def __init__(self) -> None:
        self._calls = RLock()  # reentrant, because such methods call each other


def one_at_a_time(method: _Method) -> _Method:
    """Make calls of a method wait while another thread is in such a method of the same object."""

    @wraps(method)
    def alone(self: Synchronized, *arguments: Any, **options: Any) -> Any:
        with self._calls:
            return method(self, *arguments, **options)

    return cast(_Method, alone)
