"""Schedules for GPUs by the structure of a kernel's stages, never by the name of an operator.

Each stage is launched as a GPU kernel of its own, so that it sees all that those before it have
written; the buffers between them lie in memory of the device. Only a tiled contraction takes the
maps around it into its launch, and another reduction its epilogue.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.s_tir import SBlockRealize

from ...ir.kernel_structure import (
    Axis,
    Load,
    Stage,
    buffer_of,
    is_among,
    loop_nest,
    stages,
    statements_of,
    static,
    stride,
    substitute_values,
    volume,
)
from ...ir.loops import block
from ...ir.visits import nodes_in
from ..cpu.rowwise import chains_of
from ..kernels.epilogue import Epilogue, epilogues_of, permutation
from ..kernels.inline_maps import inline_maps
from ..kernels.joint_reductions import BlockLimits, join_reductions
from ..kernels.unique_bindings import schedule_of
from .column_tiles import (
    MAX_SAMPLE_TERMS,
    Companion,
    belongs,
    column_tiles,
    is_element,
    may_tile_columns,
)
from .columns import columns_step
from .contraction import cut_long_sums, cut_sums, may_tile, tiles, used_buffers
from .interleaved import interleaved_launch
from .joint_launches import flattened, join_launches
from .lanes import lanes_of, over_lanes, split_lanes
from .reduction import Reduction, reduction_of
from .row_chains import GPU, row_chain
from .rows import rows_step
from .shared_loads import is_shareable
from .tensor_cores.kernel import Product, is_plain, product_of, tensor_core_launch
from .threads import one_thread_per_point
from .transposed import transposed_launch
from .windows import window_launch

_MAX_CHEAP_OPERATIONS = 16
"""Operations up to which repeating a map for every reader is cheaper than a launch of its own."""

BLOCK_LIMITS = BlockLimits(results=4, reads_bfloat=True)
"""Reductions of a launch: each has a vector of results in registers."""

MAX_READERS = 4
"""Stages into which one map may be copied."""

Launches = tuple[list[Any], list[Any]]
"""Device kernels in order, and the buffers through which they hand values to each other."""


def tile_contractions(
    func: tirx.PrimFunc, target: tvm.target.Target, tf32: bool = False
) -> tirx.PrimFunc | None:
    """The PrimFunc with its contractions in tiles; None if none of its stages is tiled.

    Those that tensor cores take, of float32 with `tf32` alone, are theirs.
    """
    kernel_stages = stages(func)
    if kernel_stages is None or not any(stage.reduced for stage in kernel_stages):
        return None
    sch = schedule_of(func)
    left = inline_maps(sch, may_repeat, MAX_READERS)
    realized = {str(r.block.name_hint): r for r in nodes_in(sch.mod["main"].body, SBlockRealize)}
    for stage in left:
        product = product_of(stage, realized[stage.name], target, tf32)
        if product is None:
            cut_long_sums(sch, stage)
        else:
            cut_sums(sch, stage, product.extents.parts)
    kernel = _Kernel(sch.mod["main"])
    for position, stage in enumerate(kernel.stages):
        product = product_of(stage, kernel.realized(position), target, tf32)
        if product is not None:
            kernel.use_tensor_cores(position, product)
        elif may_tile(stage):
            kernel.tile(position)
    return kernel.launched() if kernel.replaced else None


def one_thread_per_element(func: tirx.PrimFunc, _: tvm.target.Target) -> tirx.PrimFunc | None:
    """The PrimFunc with every stage bound to threads; None if it is not made of stages."""
    if stages(func) is None:
        return None
    sch = schedule_of(func)
    inline_maps(sch, may_repeat, MAX_READERS, _keeps_order)
    kernel = _Kernel(join_reductions(sch.mod["main"], BLOCK_LIMITS))
    kernel.chain_rows()
    for position in range(len(kernel.stages)):
        kernel.interleave(position)
    for position in range(len(kernel.stages)):
        kernel.take_maps_in(position)
    for position in range(len(kernel.stages)):
        kernel.tile_columns(position)
    return kernel.launched()


class _Kernel:
    """A function made of stages, which are turned into launches one by one.

    Attributes
    ----------
    stages : list of Stage
    replaced : dict
        From the position of a stage to the launches that take its place; none if the stage is
        computed in the launch of another one.
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
            tiled = tiles([self.nests[i] for i in group], self._shared(group))
            if tiled is not None:
                # Where the last of them stood, all that any of them reads has been written.
                self.replaced.update({i: ([], []) for i in group})
                self.replaced[max(group)] = tiled
                return

    def realized(self, position: int) -> Any:
        """The realized block of the stage at a position."""
        nest = loop_nest(self.nests[position])
        assert nest is not None
        return nest[1]

    def use_tensor_cores(self, position: int, product: Product) -> None:
        """Compute the product at a position on tensor cores, with the maps around it."""
        stage = self.stages[position]
        (store,) = stage.stores
        before = [i for i in self._producers(position) if is_plain(self.stages[i])]
        after, epilogues = [], []
        for i in self._consumers(position):
            reader = self.stages[i]
            read = next(x for x in reader.loads if buffer_of(x).same_as(store.buffer))
            along = permutation(stage, store, reader, read)
            if along is not None:
                after, epilogues = [i], [Epilogue(reader, store.buffer, along)]
        group = [*before, position, *after]
        maps = [self.stages[i] for i in before]
        launch = tensor_core_launch(product, stage, self.nests[position], maps, epilogues)
        # Where the last of them stood, all that any of them reads has been written.
        self.replaced.update({i: ([], []) for i in group})
        self.replaced[max(group)] = [launch], []

    def chain_rows(self) -> None:
        """Compute stages that go by the same rows in one launch, where the last of them stood."""
        blocks = {
            stage.name: nest[1]
            for stage, nest in zip(self.stages, map(loop_nest, self.nests), strict=True)
            if nest is not None
        }
        internal = list(self.block.alloc_buffers)
        for chain in chains_of(self.stages, blocks, internal, GPU):
            launch = row_chain(chain, blocks) if len(chain.parts) > 1 else None
            if launch is not None:
                own = [i for i, stage in enumerate(self.stages) if chain.has(stage.name)]
                self.replaced.update({i: ([], []) for i in own})
                self.replaced[max(own)] = [launch], []

    def interleave(self, position: int) -> None:
        """Compute the map at a position in one launch with the sums that it takes turns with."""
        stage = self.stages[position]
        if stage.reduced or position in self.replaced or not stage.conditional:
            return
        read = [buffer_of(access) for access in stage.loads]
        sums = [
            i
            for i in range(position)
            if self.stages[i].reduced
            and i not in self.replaced
            and len(self.stages[i].stores) == 1
            and is_among(self.stages[i].stores[0].buffer, read)
            and self._readers(i) == [position]
        ]
        if not sums:
            return
        nest = loop_nest(self.nests[position])
        assert nest is not None
        companion = self._companion(position, [])
        reductions = {self.stages[i].stores[0].buffer: self._reduction(i) for i in sums}
        launch = interleaved_launch(nest[0], companion.store, reductions)
        if launch is not None:
            self.replaced.update({i: ([], []) for i in sums})
            self.replaced[position] = [launch], []

    def take_maps_in(self, position: int) -> None:
        """Compute maps of what windows share in the launch of the reduction at a position."""
        stage = self.stages[position]
        internal = self.block.alloc_buffers
        if not stage.reduced or position in self.replaced:
            return
        if any(is_among(store.buffer, internal) for store in stage.stores):
            return  # It may have an epilogue, which belongs into its launch.
        inside = [i for i in self._producers(position) if is_shareable(self.stages[i])]
        maps = {self.stages[i].stores[0].buffer: self.stages[i] for i in inside}
        launch = window_launch(self._reduction(position), maps) if maps else None
        if launch is not None:
            self.replaced.update({i: ([], []) for i in inside})
            self.replaced[position] = [launch], []

    def tile_columns(self, position: int) -> None:
        """Compute the reduction at a position in one launch, with what belongs to its results.

        It stays as it is where it has as many results as keep a GPU busy, or neighboring terms are
        neighbors in memory.
        """
        stage = self.stages[position]
        if not stage.reduced or position in self.replaced or None in (a.extent for a in stage.axes):
            return
        if not may_tile_columns(self._reduction(position)):
            return
        samples, maps = self._companions(position)
        if any(self._accumulates(i) for i in maps):
            return  # What proves that the accumulator may be overwritten reads plain loops.
        inside = [position, *maps]
        unread = [
            store.buffer
            for store in stage.stores
            if is_among(store.buffer, self.block.alloc_buffers)
            and all(reader in inside for reader in self._readers_of(store.buffer))
        ]
        kernel, buffers = column_tiles(
            self._reduction(position, unread),
            [self._reduction(sample) for sample in samples],
            [self._companion(i, inside) for i in maps],
            stage.name,
        )
        self.replaced.update({i: ([], []) for i in (*samples, *maps)})
        self.replaced[position] = [flattened(kernel, self.func.params)], buffers

    def _companions(self, position: int) -> tuple[list[int], list[int]]:
        """The positions of the samples and the maps that a reduction's launch can compute."""
        results = volume(self.stages[position].spatial)
        written = [store.buffer for store in self.stages[position].stores]
        samples = [i for i in range(position) if self._is_sample(i, position, results)]
        maps: list[int] = []
        later = [store.buffer for s in self.stages[position:] for store in s.stores]
        own = [*written, *(self.stages[i].stores[0].buffer for i in samples)]
        for i, stage in list(enumerate(self.stages))[position + 1 :]:
            others = [buffer_of(load) for load in stage.loads if not is_among(buffer_of(load), own)]
            if (
                i not in self.replaced
                and not stage.reduced
                and len(others) < len(stage.loads)
                and belongs(stage, own, results)
                and not any(is_among(buffer, later) for buffer in others)
            ):
                maps.append(i)
                own.append(stage.stores[0].buffer)
        inside = [position, *maps]
        kept = [
            i
            for i in samples
            if all(r in inside for r in self._readers_of(self.stages[i].stores[0].buffer))
        ]
        if len(kept) < len(samples):
            # A map that reads what is no sample would have to wait for another launch.
            return [], []
        return kept, maps

    def _accumulates(self, position: int) -> bool:
        """Whether a map adds something to an argument, whose place the sum might take."""
        (store,), (value,) = self.stages[position].stores, self.stages[position].values
        terms = (value.a, value.b) if isinstance(value, tirx.Add) else ()
        return is_among(store.buffer, self.func.params) and any(
            isinstance(term, Load)
            and is_among(term.source, self.func.params)
            and tvm_ffi.structural_equal(list(term.source.shape), list(store.buffer.shape))
            for term in terms
        )

    def _is_sample(self, position: int, reader: int, results: int) -> bool:
        """Whether a stage adds up a few terms for each result of a reduction, which reads that."""
        stage, reading = self.stages[position], self.stages[reader]
        buffer = stage.stores[0].buffer
        earlier = [store.buffer for s in self.stages[:reader] for store in s.stores]
        return (
            position not in self.replaced
            and bool(stage.reduced)
            and is_among(buffer, self.block.alloc_buffers)
            and volume(stage.reduced) <= MAX_SAMPLE_TERMS
            and belongs(stage, [buffer], results)
            and not any(is_among(buffer_of(load), earlier) for load in stage.loads)
            and all(
                is_element(load, reading.spatial)
                for load in reading.loads
                if buffer_of(load).same_as(buffer)
            )
        )

    def _reduction(self, position: int, unread: Sequence[Any] = ()) -> Reduction:
        """The stage at a position as a reduction, some results of which are not stored."""
        nest = loop_nest(self.nests[position])
        assert nest is not None
        return reduction_of(self.stages[position], nest[0], nest[1].block, (), unread)

    def _companion(self, position: int, inside: list[int]) -> Companion:
        """The map at a position as part of a launch that computes other stages, too."""
        nest = loop_nest(self.nests[position])
        assert nest is not None
        loops, realize = nest
        axes = [iterator.var for iterator in realize.block.iter_vars]
        (store,) = self.stages[position].stores
        store = substitute_values(store, dict(zip(axes, realize.iter_values, strict=True)))
        is_stored = not is_among(store.buffer, self.block.alloc_buffers) or not all(
            reader in inside for reader in self._readers_of(store.buffer)
        )
        return Companion(loops, store, is_stored)

    def _readers_of(self, buffer: Any) -> list[int]:
        """The positions of the stages that read a buffer."""
        return [
            i
            for i, stage in enumerate(self.stages)
            if any(buffer_of(load).same_as(buffer) for load in stage.loads)
        ]

    def launched(self) -> tirx.PrimFunc:
        """The function with every stage launched."""
        kernels: list[Any] = []
        plain: list[Any] = []
        buffers: list[Any] = []
        for position, (stage, nest) in enumerate(zip(self.stages, self.nests, strict=True)):
            # A stage in another's launch has a pair of empty lists here, which counts as true.
            statements, stage_buffers = self.replaced.get(position) or self._launches(stage, nest)
            plain += [] if position in self.replaced else statements
            kernels.extend(statements)
            buffers.extend(stage_buffers)
        unassigned = [b for b in self.block.alloc_buffers if not is_among(b, buffers)]
        used, _ = used_buffers(kernels)
        between = [b for b in (*unassigned, *buffers) if is_among(b, used)]
        joined = join_launches(kernels, plain, self.func.params)
        # TVM would move a buffer of the block that one launch alone uses into that launch.
        own = [
            buffer
            for buffer in between
            if buffer.scope() == "global"
            and sum(is_among(buffer, used_buffers([kernel])[0]) for kernel in joined) == 1
        ]
        allocated = [tirx.AllocBuffer(buffer) for buffer in own]
        between = [buffer for buffer in between if not is_among(buffer, own)]
        body = block(self.block.name_hint, *allocated, *joined, buffers=between)
        return self.func.with_body(body)

    def _launches(self, stage: Stage, nest: Any) -> Launches:
        """The launches of a map, or those of a reduction and its epilogues."""
        nest_parts = loop_nest(nest)
        assert nest_parts is not None
        loops, realize = nest_parts
        if not stage.reduced:
            # TVM recognizes what only gives a tensor another shape, to make a view of it, by a loop
            # over single elements.
            moves_lanes = not relax.analysis.has_reshape_pattern(self.func)
            tiled = transposed_launch(stage, loops, realize) if moves_lanes else None
            if tiled is None:
                return [_map_launch(stage, loops, realize, moves_lanes)], []
            self.replaced[self.stages.index(stage)] = [tiled], []  # its threads wait
            return [tiled], []
        epilogues = [
            epilogue
            for epilogue in epilogues_of(stage, self.stages, list(self.block.alloc_buffers))
            if self.stages.index(epilogue.stage) not in self.replaced
        ]
        # Epilogues come later in the order of stages, so that `launched` will skip them.
        self.replaced.update({self.stages.index(fused.stage): ([], []) for fused in epilogues})
        reduction = reduction_of(stage, loops, realize.block, epilogues, self._unread(stage))
        return launches(reduction, stage.name)

    def _unread(self, stage: Stage) -> list[Any]:
        """The internal buffers that a stage writes and nothing reads.

        Memory between launches is allocated outside of them; a buffer that a single launch uses
        cannot be.
        """
        read = [buffer_of(load) for reader in self.stages for load in reader.loads]
        written = [store.buffer for store in stage.stores]
        internal = [buffer for buffer in written if is_among(buffer, self.block.alloc_buffers)]
        return [buffer for buffer in internal if not is_among(buffer, read)]

    def _producers(self, position: int) -> list[int]:
        """The maps that only the stage at a position reads."""
        return [
            i
            for i, stage in enumerate(self.stages[:position])
            if not stage.reduced and self._readers(i) == [position] and i not in self.replaced
        ]

    def _consumers(self, position: int) -> list[int]:
        """The map that is the only reader of the stage at a position; empty if there is none."""
        readers = self._readers(position)
        if len(readers) != 1 or readers[0] in self.replaced:
            return []
        reader = self.stages[readers[0]]
        written = self.stages[position].stores[0].buffer
        return readers if not reader.reduced and _takes_each_once(reader, written) else []

    def _readers(self, position: int) -> list[int]:
        """The positions of the stages that read a stage's output; empty if it is a result."""
        written = self.stages[position].stores[0].buffer
        if not is_among(written, self.block.alloc_buffers):
            return []
        return self._readers_of(written)

    def _shared(self, group: list[int]) -> list[Any]:
        """The buffers that stages outside of a group use, or the caller of the kernel."""
        outside = [stage for i, stage in enumerate(self.stages) if i not in group]
        used = [buffer_of(a) for stage in outside for a in (*stage.loads, *stage.stores)]
        return [*self.func.params, *used]


def launches(reduction: Reduction, name: str) -> Launches:
    """The kernels that compute a reduction, in order, and the buffers between them."""
    kernels: list[Any] = []
    buffers: list[Any] = []
    rest: Reduction | None = reduction
    while rest is not None:
        # What is left may be long itself, and is cut once more.
        windows = window_launch(rest)
        if windows is not None:
            return [*kernels, windows], buffers
        step = rows_step(rest, name) or columns_step(rest, name)
        kernels.append(step.kernel)
        buffers += step.buffers
        rest = step.rest
    return kernels, buffers


def _map_launch(stage: Stage, loops: list[Any], realize: Any, moves_lanes: bool) -> Any:
    """The launch of a map, in which a thread computes as many elements as fill a wide access."""
    lanes = lanes_of(loops, [*stage.loads, *stage.stores]) if moves_lanes else 1
    if lanes == 1:
        return one_thread_per_point(loops, realize)
    axes = [iterator.var for iterator in realize.block.iter_vars]
    body = substitute_values(realize.block.body, dict(zip(axes, realize.iter_values, strict=True)))
    outer, lane, values = split_lanes(loops, lanes)
    return one_thread_per_point(outer, over_lanes(lane, lanes, substitute_values(body, values)))


def _takes_each_once(reader: Stage, buffer: Any) -> bool:
    """Whether each element of a map reads one element of a buffer, each index a plain axis.

    TVM inlines other maps too, and some wrongly: of one that chooses between buffers, because it
    interleaves or concatenates them, it keeps only the elements that read the buffer in question.
    """
    long_axes = [axis for axis in reader.axes if axis.extent != 1]
    loads = [load for load in reader.loads if buffer_of(load).same_as(buffer)]
    if not all(_index_of(load, axis) is not None for load in loads for axis in long_axes):
        return False
    # A conditional map must read the buffer along its whole extent, not a part of a concatenation.
    return not reader.conditional or all(
        axis.extent is not None and static(buffer.shape[_index_of(load, axis)]) == axis.extent
        for load in loads
        for axis in long_axes
    )


def _index_of(load: Any, axis: Axis) -> int | None:
    """Which index of a load is an axis; None if not exactly one is."""
    positions = [i for i, index in enumerate(load.indices) if index.same_as(axis.var)]
    return positions[0] if len(positions) == 1 else None


def _keeps_order(stage: Stage) -> bool:
    """Whether a map reads neighbors where it writes neighbors: what reads it may read that."""
    return bool(stage.axes) and all(
        stride(access, stage.axes[-1].var) in (0, 1) for access in (*stage.loads, *stage.stores)
    )


def may_repeat(_: Stage, operations: int) -> bool:
    """Whether a map may be computed more often than it has elements."""
    return operations <= _MAX_CHEAP_OPERATIONS
