"""Epilogues: the map behind a reduction, computed as soon as each of its results is complete.

If one map reads each result of a sum or a contraction once, it can be computed tile by tile: the
buffer between the two is as large as a tile, not as the result. An accumulator plus a gradient is
such a map.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ...ir.kernel_structure import Axis, Stage, buffer_of, is_among, substitute_values

_MAX_OPERATIONS = 32
"""Operations of an epilogue at most, those of indices included: it is unrolled with the tile. The
mask of a batch norm with ReLU6, behind the data gradient of a strided convolution, has 26."""


@dataclass(frozen=True)
class Epilogue:
    """A map that reads each result of a reduction once.

    Attributes
    ----------
    stage : Stage
        The map.
    taken : Buffer
        The buffer of the reduction that it reads.
    along : dict
        From the variable of each of the reduction's output axes that is longer than one to the axis
        of the map that runs along it.
    """

    stage: Stage
    taken: Any
    along: dict[Any, Axis]


def epilogues_of(
    stage: Stage, kernel_stages: Sequence[Stage], internal: Sequence[Any]
) -> list[Epilogue]:
    """The epilogues of a reduction: one at most for each of its results.

    Parameters
    ----------
    stage : Stage
    kernel_stages : sequence of Stage
        All stages of the kernel, in order.
    internal : sequence of Buffer
        The buffers inside the kernel: any other that is stored is a result, which the caller reads.
    """
    if not stage.reduced:
        return []
    epilogues = [_epilogue(stage, store, kernel_stages, internal) for store in stage.stores]
    return [epilogue for epilogue in epilogues if epilogue is not None]


def _epilogue(
    stage: Stage, store: Any, kernel_stages: Sequence[Stage], internal: Sequence[Any]
) -> Epilogue | None:
    """The epilogue of one result of a reduction; None if it has none."""
    written = store.buffer
    readers = [
        s for s in kernel_stages if any(buffer_of(load).same_as(written) for load in s.loads)
    ]
    if not is_among(written, internal) or len(readers) != 1:
        return None
    (reader,) = readers
    loads = [load for load in reader.loads if buffer_of(load).same_as(written)]
    other_loads = [load for load in reader.loads if not buffer_of(load).same_as(written)]
    is_plain = not reader.reduced and not reader.calls and reader.operations <= _MAX_OPERATIONS
    # The map moves up to the reduction: what else it reads must be there before the kernel begins.
    stored_buffers = [store.buffer for s in kernel_stages for store in s.stores]
    if not is_plain or any(
        is_among(buffer_of(load), [*internal, *stored_buffers]) for load in other_loads
    ):
        return None
    # Each element of the map may read only one element of the result, though several times.
    if not all(tvm_ffi.structural_equal(load, loads[0]) for load in loads):
        return None
    along = permutation(stage, store, reader, loads[0])
    return None if along is None else Epilogue(reader, written, along)


def permutation(stage: Stage, store: Any, reader: Stage, load: Any) -> dict[Any, Axis] | None:
    """Which axis of the reader runs along which axis of the stage.

    None unless indices are axes as they are, and the long ones of both sides match one to one. Axes
    of one element do not count.
    """
    if any(axis.extent is None for axis in (*stage.axes, *reader.axes)):
        return None
    along: dict[Any, Axis] = {}
    for written_index, read_index in zip(store.indices, load.indices, strict=True):
        written_axis, read_axis = (
            _axis_or_constant(written_index, stage.spatial),
            _axis_or_constant(read_index, reader.axes),
        )
        if isinstance(written_axis, Axis) and isinstance(read_axis, Axis):
            if written_axis.extent != read_axis.extent:
                return None
            along[written_axis.var] = read_axis
        elif not written_axis == read_axis == 0:  # an axis of one element on both sides
            return None
    long_axes = [axis for axis in reader.axes if axis.extent != 1]
    is_each_read_once = all(
        sum(mapped is axis for mapped in along.values()) == 1 for axis in long_axes
    )
    are_all_covered = all(axis.var in along for axis in stage.spatial if axis.extent != 1)
    return along if is_each_read_once and are_all_covered and len(along) == len(long_axes) else None


def _axis_or_constant(index: Any, axes: Sequence[Axis]) -> Axis | int | None:
    """The axis that an index is, or its constant value; None if it is another expression."""
    analyzer = tvm.sym.Analyzer()
    zeros = {}
    for axis in axes:
        zero = tirx.const(0, str(axis.var.ty.dtype))
        if axis.extent == 1:
            zeros[axis.var] = zero
        else:
            analyzer.bind(axis.var, tvm.ir.Range.from_min_extent(zero, axis.extent))
    index = analyzer.simplify(substitute_values(index, zeros))
    if isinstance(index, tirx.IntImm):
        return int(index)
    return next((axis for axis in axes if index.same_as(axis.var)), None)
