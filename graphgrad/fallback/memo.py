"""What was made, kept by the structure of what it was made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import tvm_ffi

Made = TypeVar("Made")


class Memo(Generic[Made]):
    """Results by structurally equal keys: those of equal kernels, of ops that are called alike.

    Parameters
    ----------
    limit : int
        Results that are kept; with more, all are forgotten.
    """

    def __init__(self, limit: int = 4096):
        self._limit = limit
        self._made: dict[int, list[tuple[Any, Made]]] = {}
        self._count = 0

    def get(self, key: Sequence[Any], make: Callable[[], Made]) -> Made:
        """The value made for a key, which is made now if there is none.

        Parameters
        ----------
        key : sequence of TVM objects, numbers and strings
            Equal to another one if it differs in free variables alone.
        make : callable
            What it raises is not kept.
        """
        structure = tvm_ffi.convert(list(key))
        digest = tvm_ffi.structural_hash(structure, map_free_vars=True)
        # Structures that differ may have the same hash.
        for known, made in self._made.get(digest, []):
            if tvm_ffi.structural_equal(known, structure, map_free_vars=True):
                return made
        made = make()
        if self._count >= self._limit:
            self.clear()
        self._made.setdefault(digest, []).append((structure, made))
        self._count += 1
        return made

    def clear(self) -> None:
        """Forget everything: what it follows from has changed."""
        self._made.clear()
        self._count = 0


DERIVED: Memo[Any] = Memo()
"""Gradients of kernels; they follow from what is registered of intrinsics and extern stages."""
