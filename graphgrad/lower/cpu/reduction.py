"""Schedules of reductions: sums, means, maxima, pooling windows, statistics.

Floating-point sums are reordered into a fixed number of partial sums, so that lanes and cores can
work side by side. The number depends on the shape and on the vector unit alone: every run adds in
the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from tvm import tirx
from tvm.s_tir import Schedule, ScheduleError

from ...ir.kernel_structure import Axis, Stage, buffer_of, stride, volume
from ...ir.tensor import bits
from ..kernels.epilogue import Epilogue
from .map import (
    MIN_PARALLEL_TRIPS,
    SMALL,
    extent_of,
    fusable_suffix,
    has_uniform_conditions,
    parallel_leading,
)
from .tuning import Processor

_MIN_PARALLEL_OUTPUTS = 8
"""Outputs below which one output is computed by several cores."""

_MAX_ROW_VECTORS = 64
"""The most vectors of a whole row of outputs that are computed side by side. These are more than
there are registers: the partial sums stay in the nearest cache."""

_MIN_TERMS_PER_LANE = 8
"""Terms that a lane must add up, or combining the lanes costs more than they save."""

_MAX_ACCUMULATORS = 4096
"""Accumulators per core where the outputs cannot be cut into equal vectors."""

_MAX_UNROLLED_TERMS = 16
"""Terms that the code generator unrolls, where it can vectorize along the outputs by itself."""

_MAX_VECTOR_STRIDE = 4
"""The largest stride, in elements, of reads that are worth vectorizing: that of pooling windows."""


class _Nest(NamedTuple):
    """A reduction's block and loops: over outputs and chunks, the first reduced one, the vector."""

    block: Any
    across: list[Any]
    first_reduced: Any
    vector: Any


def schedule_reduction(
    sch: Schedule,
    stage: Stage,
    processor: Processor,
    epilogues: Sequence[Epilogue] = (),
    small: int = SMALL,
) -> None:
    """Vectorize along the outputs or else along the reduction; run in parallel.

    Epilogues are computed where a result, or a vector of them, is complete. With fewer points than
    `small` it runs in a single thread, as it is.
    """
    block = sch.get_sblock(stage.name)
    epilogue_blocks = [sch.get_sblock(epilogue.stage.name) for epilogue in epilogues]
    if stage.work < small:
        _compute_epilogues(sch, stage, epilogue_blocks)
        # As built, initialization is part of the first term's step: of nothing to reduce, nothing
        # would be written.
        sch.decompose_reduction(block, sch.get_loops(block)[len(stage.spatial)])
    # Few terms are unrolled by the code generator, which then vectorizes along the outputs.
    elif volume(stage.reduced) <= _MAX_UNROLLED_TERMS and not _is_neat(stage, processor):
        _scalar(sch, block, stage, epilogue_blocks)
    elif _outputs_are_vectors(stage, processor):
        _vectorize_outputs(sch, block, stage, processor, epilogue_blocks)
    elif _terms_are_vectors(stage, processor):
        _vectorize_terms(sch, block, stage, processor, epilogue_blocks)
    elif not epilogues and (turned := _turned(stage, processor)):
        number, stage = turned
        loops = sch.get_loops(block)
        spatial = len(stage.spatial)
        sch.reorder(*loops[:number], *loops[number + 1 : spatial], loops[number])
        _vectorize_outputs(sch, block, stage, processor, [])
    else:
        _scalar(sch, block, stage, epilogue_blocks)


def vector_length(extent: int, lanes: int, most: int) -> int:
    """How many elements of an axis to compute side by side; it divides the extent.

    Whole vectors if they fit (up to `most` of them), else the largest part of one.
    """
    for vectors in range(most, 0, -1):
        if extent % (vectors * lanes) == 0:
            return vectors * lanes
    if extent <= lanes:
        return extent
    return max(d for d in range(1, lanes + 1) if extent % d == 0)


def _vectorize_outputs(
    sch: Schedule, block: Any, stage: Stage, processor: Processor, epilogue_blocks: list[Any]
) -> None:
    """Accumulate a vector of neighboring outputs in registers."""
    last = stage.spatial[-1]
    assert last.extent is not None
    lanes = processor.lanes(stage.dtype)
    length = _outputs_side_by_side(stage, processor)
    # Whole and half vectors are vectorized here; other lengths by the code generator.
    explicit = 2 * length % lanes == 0
    if not explicit:
        length = last.extent
    outer = stage.spatial[:-1]
    trips = volume(outer) * (last.extent // length)
    block, chunks = _split_over_cores(sch, block, stage, trips)
    if chunks:
        vector_part = vector_length(last.extent, lanes, processor.sum_vectors)
        # Results are complete only in the stage that combines the chunks, not in `block`.
        _compute_epilogues(sch, stage, epilogue_blocks, chunks, vector_part)
        epilogue_blocks = []
    loops = sch.get_loops(block)
    chunk_loops, loops = loops[:chunks], loops[chunks:]
    spatial, reduced = loops[: len(outer) + 1], loops[len(outer) + 1 :]
    vectors, vector = sch.split(spatial[-1], [None, length])
    sch.reorder(*chunk_loops, *spatial[:-1], vectors, *reduced, vector)
    across = [*chunk_loops, *spatial[:-1], vectors]
    nest = _Nest(block, across, reduced[0], vector)
    _accumulate_in_registers(sch, nest, len(stage.stores), explicit, epilogue_blocks)


def _outputs_side_by_side(stage: Stage, processor: Processor) -> int:
    """How many neighboring outputs to compute side by side.

    Whole rows of few vectors; and of some more where the terms of a task do not fit the core's own
    cache: to walk through the terms for a part of each row only would read a few cache lines here
    and a few there, which takes twice as long.
    """
    last = stage.spatial[-1]
    assert last.extent is not None
    lanes = processor.lanes(stage.dtype)
    terms = volume(stage.reduced)
    if volume(stage.spatial[:-1]) < _MIN_PARALLEL_OUTPUTS:
        terms //= _chunk_count(stage.reduced[0].extent)
    width = max((bits(str(buffer_of(load).dtype)) for load in stage.loads), default=0) // 8
    is_far = terms * last.extent * width > processor.row_bytes
    most = _MAX_ROW_VECTORS if is_far else processor.sum_vectors
    if 2 * last.extent % lanes == 0 and last.extent <= most * lanes:
        return last.extent
    return vector_length(last.extent, lanes, processor.sum_vectors)


def _vectorize_terms(
    sch: Schedule, block: Any, stage: Stage, processor: Processor, epilogue_blocks: list[Any]
) -> None:
    """Keep one partial result per lane, and per core if there are few outputs; then combine."""
    fused_count, length = _fused_terms(stage, processor), _term_vector(stage, processor)
    loops = sch.get_loops(block)
    spatial, reduced = loops[: len(stage.spatial)], loops[len(stage.spatial) :]
    terms = sch.fuse(*reduced[-fused_count:]) if fused_count > 1 else reduced[-1]
    vectors, lane = sch.split(terms, [None, length])
    outer_terms = [*reduced[:-fused_count], vectors]
    chunks = (
        _chunk_count(extent_of(sch, outer_terms[0]))
        if volume(stage.spatial) < _MIN_PARALLEL_OUTPUTS
        else 1
    )
    chunk, outer_terms[0] = sch.split(outer_terms[0], [chunks, None])
    sch.reorder(*spatial, chunk, lane, *outer_terms)
    # The buffer of partial results has the chunk and the lane as its last dimension.
    partial_block = sch.rfactor(sch.fuse(chunk, lane), len(stage.stores[0].indices))
    loops = sch.get_loops(partial_block)
    chunk, lane = sch.split(loops[len(spatial)], [chunks, length])
    across, outer_terms = [*loops[: len(spatial)], chunk], loops[len(spatial) + 1 :]
    sch.reorder(*across, *outer_terms, lane)
    nest = _Nest(partial_block, across, outer_terms[0], lane)
    _accumulate_in_registers(sch, nest, len(stage.stores), True, [])
    _compute_epilogues(sch, stage, epilogue_blocks)
    if volume(stage.spatial) * chunks * length >= SMALL:
        output_loops = sch.get_loops(sch.get_sblock(stage.name))[: len(spatial)]
        parallel_leading(sch, output_loops)
    result_block = sch.get_sblock(stage.name)
    sch.decompose_reduction(result_block, sch.get_loops(result_block)[-1])


def _scalar(sch: Schedule, block: Any, stage: Stage, epilogue_blocks: list[Any]) -> None:
    """Compute output by output in parallel, without vectors of our own."""
    block, chunks = _split_over_cores(sch, block, stage, volume(stage.spatial))
    _compute_epilogues(sch, stage, epilogue_blocks, chunks)
    loops = sch.get_loops(block)
    outer_loops = loops[: chunks + len(stage.spatial)]
    if outer_loops:
        parallel_leading(sch, outer_loops)
    sch.decompose_reduction(block, loops[len(outer_loops)])


def _split_over_cores(sch: Schedule, block: Any, stage: Stage, trips: int) -> tuple[Any, int]:
    """Give each core a part of the reduction if there are few outputs.

    Returns the block of the partial results, and 1 for the loop over chunks in front of its others.
    Where nothing is split, returns the block as it is, and 0.
    """
    loops = sch.get_loops(block)
    first_reduced = len(stage.spatial)
    chunks = _chunk_count(stage.reduced[0].extent)
    if trips >= _MIN_PARALLEL_OUTPUTS or chunks == 1 or not _is_associative(stage):
        return block, 0
    chunk, chunk_terms = sch.split(loops[first_reduced], [chunks, None])
    sch.reorder(chunk, *loops[:first_reduced], chunk_terms, *loops[first_reduced + 1 :])
    return sch.rfactor(chunk, 0), 1


def _compute_epilogues(
    sch: Schedule, stage: Stage, epilogue_blocks: list[Any], chunks: int = 0, length: int = 1
) -> None:
    """Compute epilogues of a stage where results are complete, so that those need no memory.

    Parameters
    ----------
    sch : Schedule
    stage : Stage
    epilogue_blocks : list of block
    chunks : int
        How many loops over parts of the reduction stand in front of those over results: 0 or 1.
    length : int
        How many neighboring results are computed side by side; it divides their number.
    """
    # Without loops over results there is none to compute an epilogue in: it stays behind.
    if not epilogue_blocks or not stage.spatial:
        return
    loops = sch.get_loops(sch.get_sblock(stage.name))
    end = chunks + len(stage.spatial)
    *outer, innermost = loops[chunks:end]
    innermost, *vector = sch.split(innermost, [None, length]) if length > 1 else [innermost]
    sch.reorder(*outer, innermost, *loops[:chunks], *loops[end:], *vector)
    for epilogue in epilogue_blocks:
        _compute_at(sch, epilogue, innermost)


def _compute_at(sch: Schedule, block: Any, loop: Any) -> None:
    """Compute a block behind a reduction in one of its loops.

    Raises
    ------
    ScheduleError
        TVM refuses.
    """
    try:
        sch.reverse_compute_at(block, loop)
    except ValueError as error:
        # A check fails at a region that is a constant, as along an axis of one element.
        raise ScheduleError(str(error)) from error


def _accumulate_in_registers(
    sch: Schedule, nest: _Nest, outputs: int, explicit: bool, epilogue_blocks: list[Any]
) -> None:
    """Keep the innermost vector in registers until it is complete; run the rest in parallel.

    `explicit` says that the vector is vectorized here, not left to the code generator. The
    reduction is separated from its initialization last, because no other loop may be changed after
    that.
    """
    # TVM keeps a small buffer of the scope "global" on the stack, one of the scope "local" not.
    caches = [sch.cache_write(nest.block, i, "global") for i in range(outputs)]
    blocks_behind = [*caches, *epilogue_blocks]
    for block in blocks_behind:
        _compute_at(sch, block, nest.across[-1])
    pieces = _odd_factor(extent_of(sch, nest.vector) or 1)
    if explicit:
        for loop in (nest.vector, *(sch.get_loops(block)[-1] for block in blocks_behind)):
            unrolled, lanes = sch.split(loop, [pieces, None])
            sch.unroll(unrolled)
            sch.vectorize(lanes)
    parallel_leading(sch, nest.across)
    init_loops = sch.get_loops(sch.decompose_reduction(nest.block, nest.first_reduced))
    if explicit:
        sch.vectorize(init_loops[-1])
        sch.unroll(init_loops[-2])


def _odd_factor(length: int) -> int:
    """Into how many parts to cut a vector: LLVM would widen it to a power of two."""
    return length // (length & -length)


def _is_neat(stage: Stage, processor: Processor) -> bool:
    """Whether outputs are whole vectors, and their terms are contiguous vectors too."""
    if not _outputs_are_vectors(stage, processor):
        return False
    last = stage.spatial[-1]
    return volume([last]) % processor.lanes(stage.dtype) == 0 and _moves_smoothly(stage, last, 1)


def _outputs_are_vectors(stage: Stage, processor: Processor) -> bool:
    """Whether neighboring outputs can be accumulated side by side, as lanes."""
    if not stage.spatial or not stage.spatial[-1].extent:
        return False
    if not has_uniform_conditions(stage, stage.spatial[-1]):
        return False
    last, lanes = stage.spatial[-1], processor.lanes(stage.dtype)
    extent = volume([last])
    wide = extent % lanes == 0 or lanes // 2 <= extent <= _MAX_ACCUMULATORS
    return wide and _moves_smoothly(stage, last, _MAX_VECTOR_STRIDE)


def _turned(stage: Stage, processor: Processor) -> tuple[int, Stage] | None:
    """A stage that goes along another axis of its outputs last, whose neighbors can be lanes.

    In front of it the number of that axis. None if there is none.
    """
    for number in reversed(range(len(stage.spatial) - 1)):
        last = stage.axes[number]
        axes = [axis for axis in stage.axes if axis is not last]
        axes.insert(len(stage.spatial) - 1, last)
        turned = replace(stage, axes=axes)
        if _outputs_are_vectors(turned, processor):
            return number, turned
    return None


def _terms_are_vectors(stage: Stage, processor: Processor) -> bool:
    """Whether neighboring terms can be added up side by side, each lane with a partial result."""
    last = stage.reduced[-1]
    return (
        bool(last.extent)
        and has_uniform_conditions(stage, last)
        and _is_associative(stage)
        and _moves_smoothly(stage, last, _MAX_VECTOR_STRIDE)
        and _term_vector(stage, processor) > 2
    )


def _moves_smoothly(stage: Stage, axis: Axis, max_stride: int) -> bool:
    """Whether all reads have a stride of at most so many elements along an axis, and one moves."""
    strides = [stride(load, axis.var) for load in stage.loads]
    return all(
        distance is not None and 0 <= distance <= max_stride for distance in strides
    ) and any(strides)


def _term_vector(stage: Stage, processor: Processor) -> int:
    """How many partial results to keep; 1 if there are too few terms for a vector."""
    length, lanes = volume(stage.reduced[-_fusable_terms(stage) :]), processor.lanes(stage.dtype)
    max_vectors = min(volume(stage.reduced) // (lanes * _MIN_TERMS_PER_LANE), processor.sum_vectors)
    return vector_length(length, lanes, max_vectors) if max_vectors else 1


def _fused_terms(stage: Stage, processor: Processor) -> int:
    """How many reduced axes to fuse: as few as give vectors of the length of `_term_vector`.

    Where TVM divides a position by the extents of three axes, it does not recognize that neighbors
    in a vector are neighbors in memory.
    """
    length, max_count = _term_vector(stage, processor), _fusable_terms(stage)
    sufficient = (
        count for count in range(1, max_count) if volume(stage.reduced[-count:]) % length == 0
    )
    return next(sufficient, max_count)


def _fusable_terms(stage: Stage) -> int:
    """How many of the innermost reduced axes can be walked through as one."""
    return min(fusable_suffix(stage), len(stage.reduced))


def _is_associative(stage: Stage) -> bool:
    """Whether terms may be combined in parts; of other combiners TVM makes no partial results."""
    return all(isinstance(v, tirx.Add | tirx.Mul | tirx.Max | tirx.Min) for v in stage.values)


def _chunk_count(extent: int | None) -> int:
    """Into how many equal parts to cut a reduction so that cores can share it."""
    if not extent:
        return 1
    # Only divisors: parts of unequal length would put a condition into the inner loop.
    return max(d for d in range(1, MIN_PARALLEL_TRIPS + 1) if extent % d == 0)
