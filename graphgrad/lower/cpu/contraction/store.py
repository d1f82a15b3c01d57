"""What happens with a finished element: stored as it is, or through the map behind it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import tvm_ffi
from tvm import tirx

from ....ir.kernel_structure import Load, Stage, statements_of, static, stride, substitute_values
from ....ir.visits import nodes_in
from ...kernels.contraction import fixed_iterators
from ...kernels.epilogue import Epilogue


class ResultStore(Protocol):
    """Takes the elements of a contraction's result.

    Attributes
    ----------
    once : bool
        Whether an element must not be handed over twice.
    """

    once: bool

    def step(self, axis: Any) -> int | None:
        """How far in memory what is stored moves along an axis of the contraction.

        None if that is not the same everywhere, or if something that is read moves otherwise.
        """

    def store(self, at: Mapping[Any, Any], value: Any) -> Any:
        """The statement that stores an element.

        Parameters
        ----------
        at : dict
            The value of each axis of the contraction's result, by variable.
        value : Expr
        """


class PlainStore:
    """Stores elements where the contraction's own statement does."""

    once = False

    def __init__(self, realize: Any) -> None:
        store = statements_of(realize.block.body)[0]
        self._store = substitute_values(store, fixed_iterators(realize))

    def step(self, axis: Any) -> int | None:
        """The step of the store."""
        return stride(self._store, axis.var)

    def store(self, at: Mapping[Any, Any], value: Any) -> Any:
        """The store of `value`."""
        indices = [substitute_values(index, at) for index in self._store.indices]
        return tirx.BufferStore(self._store.buffer, value, indices)


class EpilogueStore:
    """Computes the map that takes each element, and stores its result.

    If the map reads another tensor that is like its result, each element is stored once, so that it
    may be stored where that tensor is.
    """

    def __init__(self, epilogue: Epilogue, realize: Any) -> None:
        self._taken = epilogue.taken
        self._along = epilogue.along
        self._fixed = fixed_iterators(realize)
        self._store = statements_of(realize.block.body)[0]
        self.once = any(_is_like(load.source, self._store.buffer) for load in self._others())

    def step(self, axis: Any) -> int | None:
        """The step of the map's store; None if a read of the map jumps."""
        if axis.var not in self._along:
            return 0
        taken = self._along[axis.var].var
        smooth = all(stride(load, taken) in (0, 1) for load in self._others())
        return stride(self._store, taken) if smooth else None

    def store(self, at: Mapping[Any, Any], value: Any) -> Any:
        """The store of what the map makes of `value`."""
        moved = {self._along[var].var: to for var, to in at.items() if var in self._along}
        axes = self._fixed | moved

        def replace(node: Any) -> Any:
            return value if node.source.same_as(self._taken) else node

        result = tvm_ffi.structural_map(substitute_values(self._store.value, axes), (Load, replace))
        indices = [substitute_values(index, axes) for index in self._store.indices]
        return tirx.BufferStore(self._store.buffer, result, indices)

    def _others(self) -> list[Any]:
        """The map's reads of anything but the contraction's result."""
        loads = nodes_in(self._store.value, Load)
        return [load for load in loads if not load.source.same_as(self._taken)]


def _is_like(buffer: Any, other: Any) -> bool:
    """Whether two buffers have the same shape and dtype."""
    same = len(buffer.shape) == len(other.shape) and all(
        tvm_ffi.structural_equal(a, b) for a, b in zip(buffer.shape, other.shape, strict=True)
    )
    return same and str(buffer.dtype) == str(other.dtype)


def result_store_of(
    stage: Stage, epilogue: Epilogue | None, blocks: Mapping[str, Any]
) -> PlainStore | EpilogueStore | None:
    """The store of a stage's results; None if its epilogue does more than to store one.

    Parameters
    ----------
    stage : Stage
    epilogue : Epilogue or None
        The map that takes each of its results.
    blocks : dict
        The blocks (SBlockRealize) of the kernel, by name.
    """
    if epilogue is None:
        return PlainStore(blocks[stage.name])
    behind = blocks[epilogue.stage.name]
    return EpilogueStore(epilogue, behind) if _is_single_store(behind) else None


def _is_single_store(realize: Any) -> bool:
    """Whether a block does nothing but store one value."""
    return isinstance(realize.block.body, tirx.BufferStore) and static(realize.predicate) == 1
