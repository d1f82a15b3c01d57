"""The stores of finished elements: each is written as it is, or through the map behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import tvm_ffi
from tvm import tirx

from ....ir.kernel_structure import (
    Load,
    Stage,
    is_among,
    statements_of,
    static,
    stride,
    substitute_values,
)
from ....ir.visits import nodes_in
from ...kernels.contraction import fixed_iterators
from ...kernels.epilogue import Epilogue


class ResultStore(Protocol):
    """The way in which the elements of a contraction's result are stored.

    Attributes
    ----------
    once : bool
        Whether an element must not be stored twice.
    interleaved : bool
        Whether others store between the elements that are neighbors here.
    """

    once: bool
    interleaved: bool

    def step(self, axis: Any) -> int | None:
        """The distance in memory, in elements, of stored values along an axis of the contraction.

        None if it is not the same everywhere, or if the epilogue reads something that cannot be
        read in vectors along the axis.
        """

    def store(self, at: Mapping[Any, Any], value: Any) -> Any:
        """The statement that stores an element.

        Parameters
        ----------
        at : dict
            The index along each axis of the contraction's result, by variable.
        value : Expr
            The element of the result.
        """

    def lines(self, at: Mapping[Any, Any]) -> list[Any]:
        """The elements in memory, as loads, that storing an element of the result touches.

        Those that lie along rows as the results do; what an epilogue reads once for many is not
        among them. `at` is as of `store`.
        """


class PlainStore:
    """The store of elements where the contraction's own statement stores them."""

    once = False

    def __init__(self, realize: Any, parts: Sequence[Any] = ()) -> None:
        store = statements_of(realize.block.body)[0]
        self.interleaved = is_among(store.buffer, parts)
        self._store = substitute_values(store, fixed_iterators(realize))

    def step(self, axis: Any) -> int | None:
        """The step of the store."""
        return stride(self._store, axis.var)

    def store(self, at: Mapping[Any, Any], value: Any) -> Any:
        """The store of `value`."""
        indices = [substitute_values(index, at) for index in self._store.indices]
        return tirx.BufferStore(self._store.buffer, value, indices)

    def lines(self, at: Mapping[Any, Any]) -> list[Any]:
        """Where the element is stored."""
        indices = [substitute_values(index, at) for index in self._store.indices]
        return [tirx.BufferLoad(self._store.buffer, indices)]


class EpilogueStore:
    """The store of what an epilogue, the map behind a contraction, makes of each element.

    If the map reads another tensor of the same shape and dtype as its result, each element is
    stored exactly once. Then the result may take the memory of that tensor: a second store would
    read what the first has overwritten.
    """

    def __init__(self, epilogue: Epilogue, realize: Any, parts: Sequence[Any] = ()) -> None:
        self._taken = epilogue.taken
        self._along = epilogue.along
        self._fixed = fixed_iterators(realize)
        self._store = statements_of(realize.block.body)[0]
        self.interleaved = is_among(self._store.buffer, parts)
        self.once = any(_is_like(load.source, self._store.buffer) for load in self._others())

    def step(self, axis: Any) -> int | None:
        """The step of the map's store; None if the map's other reads do not fit vectors."""
        # Only axes of one element are not along any axis of the map.
        if axis.var not in self._along:
            return 0
        map_axis = self._along[axis.var].var
        # Along the axis, each other read must be of one element or of contiguous ones.
        reads_fit_vectors = all(stride(load, map_axis) in (0, 1) for load in self._others())
        return stride(self._store, map_axis) if reads_fit_vectors else None

    def store(self, at: Mapping[Any, Any], value: Any) -> Any:
        """The store of what the map makes of `value`."""
        values_of_axes = self._values_of_axes(at)

        def replace_result(load: Any) -> Any:
            return value if load.source.same_as(self._taken) else load

        result = tvm_ffi.structural_map(
            substitute_values(self._store.value, values_of_axes), (Load, replace_result)
        )
        indices = [substitute_values(index, values_of_axes) for index in self._store.indices]
        return tirx.BufferStore(self._store.buffer, result, indices)

    def lines(self, at: Mapping[Any, Any]) -> list[Any]:
        """Where the element is stored, and the elements at its place of tensors like the result."""
        alike = [load for load in self._others() if _is_like(load.source, self._store.buffer)]
        loads: list[Any] = []
        for load in (tirx.BufferLoad(self._store.buffer, self._store.indices), *alike):
            if not any(tvm_ffi.structural_equal(load, other) for other in loads):
                loads.append(load)
        return [substitute_values(load, self._values_of_axes(at)) for load in loads]

    def _values_of_axes(self, at: Mapping[Any, Any]) -> dict[Any, Any]:
        """The index along each axis of the map, by variable; `at` is as of `store`."""
        map_indices = {
            self._along[var].var: index for var, index in at.items() if var in self._along
        }
        return self._fixed | map_indices

    def _others(self) -> list[Any]:
        """The map's reads of anything but the contraction's result."""
        loads = nodes_in(self._store.value, Load)
        return [load for load in loads if not load.source.same_as(self._taken)]


def _is_like(buffer: Any, other: Any) -> bool:
    """Whether two buffers have the same shape and dtype."""
    same_shape = len(buffer.shape) == len(other.shape) and all(
        tvm_ffi.structural_equal(extent, other_extent)
        for extent, other_extent in zip(buffer.shape, other.shape, strict=True)
    )
    return same_shape and str(buffer.dtype) == str(other.dtype)


def result_store_of(
    stage: Stage,
    epilogue: Epilogue | None,
    blocks: Mapping[str, Any],
    parts: Sequence[Any] = (),
) -> PlainStore | EpilogueStore | None:
    """The store of a stage's results; None if its epilogue does more than to store one value.

    Parameters
    ----------
    stage : Stage
    epilogue : Epilogue or None
        The map that takes each of the stage's results.
    blocks : dict
        The blocks (SBlockRealize) of the kernel, by name.
    parts : sequence of Buffer, optional
        Those between whose elements others store.
    """
    if epilogue is None:
        return PlainStore(blocks[stage.name], parts)
    map_block = blocks[epilogue.stage.name]
    return EpilogueStore(epilogue, map_block, parts) if _is_single_store(map_block) else None


def _is_single_store(realize: Any) -> bool:
    """Whether a block does nothing but store one value."""
    return isinstance(realize.block.body, tirx.BufferStore) and static(realize.predicate) == 1
