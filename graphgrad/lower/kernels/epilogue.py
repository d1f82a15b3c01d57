"""Epilogues: the map behind a reduction, computed where each of its results is complete.

A sum or a contraction whose results one map takes, each once, hands them over tile by tile: what
lies between the two is as large as a tile, not as the result. An accumulator plus a gradient is
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

_MAX_OPERATIONS = 16
"""Operations of an epilogue at most: it is unrolled with the tile."""


@dataclass(frozen=True)
class Epilogue:
    """A map that takes each result of a reduction once.

    Attributes
    ----------
    stage : Stage
        The map.
    taken : Buffer
        Which of the reduction's buffers it reads.
    along : dict
        From the reduction's output axes that are longer than one to the map's.
    """

    stage: Stage
    taken: Any
    along: dict[Any, Axis]


def epilogues_of(stage: Stage, found: Sequence[Stage], internal: Sequence[Any]) -> list[Epilogue]:
    """The epilogues of a reduction: one at most for each of its results.

    Parameters
    ----------
    stage : Stage
    found : sequence of Stage
        All of the kernel, in order.
    internal : sequence of Buffer
        Those of the kernel's own: what else is stored is read by the caller.
    """
    if not stage.reduced:
        return []
    epilogues = [_epilogue(stage, store, found, internal) for store in stage.stores]
    return [epilogue for epilogue in epilogues if epilogue is not None]


def _epilogue(
    stage: Stage, store: Any, found: Sequence[Stage], internal: Sequence[Any]
) -> Epilogue | None:
    written = store.buffer
    readers = [s for s in found if any(buffer_of(load).same_as(written) for load in s.loads)]
    if not is_among(written, internal) or len(readers) != 1:
        return None
    (reader,) = readers
    loads = [load for load in reader.loads if buffer_of(load).same_as(written)]
    others = [load for load in reader.loads if not buffer_of(load).same_as(written)]
    plain = not reader.reduced and not reader.calls and reader.operations <= _MAX_OPERATIONS
    made = [store.buffer for s in found for store in s.stores]
    if not plain or any(is_among(buffer_of(load), [*internal, *made]) for load in others):
        return None
    if not all(tvm_ffi.structural_equal(load, loads[0]) for load in loads):
        return None
    along = _permutation(stage, store, reader, loads[0])
    return None if along is None else Epilogue(reader, written, along)


def _permutation(stage: Stage, store: Any, reader: Stage, load: Any) -> dict[Any, Axis] | None:
    """Which axis of the reader goes along which of the stage; None if some is not a whole.

    Axes of one element count for nothing.
    """
    if any(axis.extent is None for axis in (*stage.axes, *reader.axes)):
        return None
    along: dict[Any, Axis] = {}
    for at, read in zip(store.indices, load.indices, strict=True):
        written, taken = _place(at, stage.spatial), _place(read, reader.axes)
        if isinstance(written, Axis) and isinstance(taken, Axis):
            if written.extent != taken.extent:
                return None
            along[written.var] = taken
        elif not written == taken == 0:
            return None
    long = [axis for axis in reader.axes if axis.extent != 1]
    once = all(sum(a is axis for a in along.values()) == 1 for axis in long)
    every = all(axis.var in along for axis in stage.spatial if axis.extent != 1)
    return along if once and every and len(along) == len(long) else None


def _place(index: Any, axes: Sequence[Axis]) -> Axis | int | None:
    """The axis that an index is, or the number; None if it is an expression."""
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
