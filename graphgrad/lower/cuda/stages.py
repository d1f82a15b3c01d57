"""Schedules for GPUs by the structure of a kernel's stages, never by the name of an operator.

Each stage is launched on its own, so that it sees all that those before it have written; what they
leave for each other lies in memory of the device. Only a tiled contraction takes the maps around it
into its launch, and a reduction that which takes each of its results once.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir import Schedule

from ...ir.kernel_structure import (
    Axis,
    Stage,
    buffer_of,
    is_among,
    loop_nest,
    stages,
    statements_of,
    static,
)
from ...ir.loops import block
from ..kernels.epilogue import epilogues_of
from ..kernels.inline_maps import inline_maps
from .contraction import cut_long_sums, may_tile, tiles, used_buffers
from .reduction import launches, reduction_of
from .threads import one_thread_per_point

_MAX_CHEAP_OPERATIONS = 16
"""Operations that are sooner repeated for every reader than stored, launched and read again."""

_MAX_READERS = 4
"""Stages into which one map may be copied."""

Launches = tuple[list[Any], list[Any]]
"""Kernels in order, and the buffers that they leave values in for each other."""


def tile_contractions(func: tirx.PrimFunc, _: tvm.target.Target) -> tirx.PrimFunc | None:
    """The PrimFunc with its contractions in tiles; None if none of its stages is tiled."""
    found = stages(func)
    if found is None or not any(stage.reduced for stage in found):
        return None
    sch = Schedule(func)
    for stage in inline_maps(sch, _may_repeat, _MAX_READERS):
        cut_long_sums(sch, stage)
    kernel = _Kernel(sch.mod["main"])
    for position, stage in enumerate(kernel.stages):
        if may_tile(stage):
            kernel.tile(position)
    return kernel.launched() if kernel.replaced else None


def one_thread_per_element(func: tirx.PrimFunc, _: tvm.target.Target) -> tirx.PrimFunc | None:
    """The PrimFunc with every stage bound to threads; None if it is not made of stages."""
    if stages(func) is None:
        return None
    sch = Schedule(func)
    inline_maps(sch, _may_repeat, _MAX_READERS)
    return _Kernel(sch.mod["main"]).launched()


class _Kernel:
    """A function made of stages, on its way to launches.

    Attributes
    ----------
    stages : list of Stage
    replaced : dict
        Launches that take the place of the stage at a position.
    """

    def __init__(self, func: tirx.PrimFunc):
        self.func = func
        self.block = func.body.block
        self.stages = stages(func) or []
        self.nests = statements_of(self.block.body)
        self.replaced: dict[int, Launches] = {}

    def tile(self, position: int) -> None:
        """Put the contraction at a position in tiles, with as many maps around it as possible."""
        before, after = self._producers(position), self._consumers(position)
        for group in ([*before, position, *after], [*before, position], [position]):
            found = tiles([self.nests[i] for i in group], self._shared(group))
            if found is not None:
                # Where the last of them stood, all that any of them reads has been written.
                self.replaced.update({i: ([], []) for i in group})
                self.replaced[max(group)] = found
                return

    def launched(self) -> tirx.PrimFunc:
        """The function with every stage launched."""
        kernels: list[Any] = []
        buffers: list[Any] = []
        for position, (stage, nest) in enumerate(zip(self.stages, self.nests, strict=True)):
            statements, more = self.replaced.get(position) or self._launches(stage, nest)
            kernels.extend(statements)
            buffers.extend(more)
        own = [b for b in self.block.alloc_buffers if not is_among(b, buffers)]
        used, _ = used_buffers(kernels)
        between = [b for b in (*own, *buffers) if is_among(b, used)]
        return self.func.with_body(block(self.block.name_hint, *kernels, buffers=between))

    def _launches(self, stage: Stage, nest: Any) -> Launches:
        found = loop_nest(nest)
        assert found is not None
        loops, realize = found
        if not stage.reduced:
            return [one_thread_per_point(loops, realize)], []
        epilogues = [
            epilogue
            for epilogue in epilogues_of(stage, self.stages, list(self.block.alloc_buffers))
            if self.stages.index(epilogue.stage) not in self.replaced
        ]
        self.replaced.update({self.stages.index(e.stage): ([], []) for e in epilogues})
        reduction = reduction_of(stage, loops, realize.block, epilogues, self._unread(stage))
        return launches(reduction, stage.name)

    def _unread(self, stage: Stage) -> list[Any]:
        """The buffers of the kernel's own that a stage writes for nobody.

        Memory between launches is allocated outside of them; what one alone uses cannot be.
        """
        read = [buffer_of(load) for other in self.stages for load in other.loads]
        written = [store.buffer for store in stage.stores]
        own = [buffer for buffer in written if is_among(buffer, self.block.alloc_buffers)]
        return [buffer for buffer in own if not is_among(buffer, read)]

    def _producers(self, position: int) -> list[int]:
        """The maps that only the stage at a position reads."""
        return [
            i
            for i, stage in enumerate(self.stages[:position])
            if not stage.reduced and self._readers(i) == [position] and i not in self.replaced
        ]

    def _consumers(self, position: int) -> list[int]:
        """The map that alone reads the stage at a position, if there is one."""
        readers = self._readers(position)
        if len(readers) != 1 or readers[0] in self.replaced:
            return []
        reader = self.stages[readers[0]]
        written = self.stages[position].stores[0].buffer
        return readers if not reader.reduced and _takes_each_once(reader, written) else []

    def _readers(self, position: int) -> list[int]:
        """The stages that read what a stage leaves for others; none if it is a result."""
        written = self.stages[position].stores[0].buffer
        if not is_among(written, self.block.alloc_buffers):
            return []
        return [
            i
            for i, stage in enumerate(self.stages)
            if any(buffer_of(load).same_as(written) for load in stage.loads)
        ]

    def _shared(self, group: list[int]) -> list[Any]:
        """The buffers that stages outside of a group use, or the caller."""
        outside = [stage for i, stage in enumerate(self.stages) if i not in group]
        used = [buffer_of(a) for stage in outside for a in (*stage.loads, *stage.stores)]
        return [*self.func.params, *used]


def _takes_each_once(reader: Stage, buffer: Any) -> bool:
    """Whether each element of a map takes one of a buffer, at the indices of its own.

    TVM inlines other maps too. Of one that chooses between buffers, because it interleaves or
    concatenates them, it keeps only the elements that take the buffer in question.
    """
    long = [axis for axis in reader.axes if axis.extent != 1]
    loads = [load for load in reader.loads if buffer_of(load).same_as(buffer)]
    if not all(_index_of(load, axis) is not None for load in loads for axis in long):
        return False
    return not reader.conditional or all(
        axis.extent is not None and static(buffer.shape[_index_of(load, axis)]) == axis.extent
        for load in loads
        for axis in long
    )


def _index_of(load: Any, axis: Axis) -> int | None:
    """Which index of a load is an axis, if one is."""
    found = [i for i, index in enumerate(load.indices) if index.same_as(axis.var)]
    return found[0] if len(found) == 1 else None


def _may_repeat(_: Stage, operations: int) -> bool:
    return operations <= _MAX_CHEAP_OPERATIONS
