"""Maxima and minima of few rows, or of long ones, cut into parts that become rows.

A row is the terms of one result, and cores share a reduction row by row. Where it has few results,
or a row fits no cache, its terms are divided into parts: one reduction has a result for each part,
a second one combines these. A term that counts twice changes no extremum, so parts may overlap, and
their length need not divide the extent.

TVM splits reductions by itself (`rfactor`) if it knows their combiner. It does not know the choice
by which extrema propagate NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import Range
from tvm.s_tir import SBlock

from ...ir.kernel_rewrite import replace_block
from ...ir.kernel_structure import Axis, Stage, stages, statements_of, stride, volume
from ...ir.passes import Phase, compiler_pass
from ...ir.tensor import bits
from .buffer_views import block_of, replace_nests, restated
from .map import MIN_PARALLEL_TRIPS, SMALL
from .rowwise.accumulation import Accumulation, accumulations_of, maximum, minimum
from .tuning import Processor

_MIN_TASKS = 16
"""The number of tasks below which some cores might have none."""

_MIN_NEIGHBOR_RESULTS = 128
"""Where terms of a row are not neighbors in memory, results are computed side by side. From this
number of results on, these are tasks enough."""


@dataclass(frozen=True)
class _Cut:
    """The cut of a reduced axis into parts of equal length; the last may overlap the one before."""

    axis: Axis
    parts: int
    length: int


@compiler_pass(
    Phase.FUSED,
    over="kernel",
    targets=("llvm",),
    after={"join_reductions": "siblings have the same loops, until one of them is cut"},
)
def split_reductions(func: tirx.PrimFunc, processor: Processor) -> tirx.PrimFunc:
    """Reduce extrema of few or of long rows in parts first.

    Parameters
    ----------
    func : PrimFunc
        It is left as it is if it is not made of stages.
    processor : Processor
    """
    kernel_stages = stages(func)
    if kernel_stages is None:
        return func
    nests: list[Any] = []
    buffers = list(func.body.block.alloc_buffers)
    for stage, nest in zip(kernel_stages, statements_of(func.body.block.body), strict=True):
        block = block_of(nest)
        cut = _cut(stage, processor)
        accumulation = None if cut is None else _extremum(stage, block)
        if cut is None or accumulation is None:
            nests.append(nest)
            continue
        parts_buffer = _buffer_of_parts(accumulation, cut)
        buffers.append(parts_buffer)
        nests += [
            _parts(stage, block, cut, parts_buffer),
            _combined(stage, block, cut, parts_buffer, accumulation),
        ]
    return replace_nests(func, nests, buffers) if len(nests) > len(kernel_stages) else func


def _cut(stage: Stage, processor: Processor) -> _Cut | None:
    """How to cut a stage's reduction; None if the stage is left whole."""
    if not stage.reduced or any(axis.extent is None for axis in stage.axes):
        return None
    if len(stage.stores) != 1 or stage.work < SMALL:
        return None
    innermost = stage.reduced[-1]
    contiguous = any(stride(load, innermost.var) == 1 for load in stage.loads)
    results = volume(stage.spatial)
    tasks = results if contiguous or results >= _MIN_NEIGHBOR_RESULTS else 1
    row_bytes = volume(stage.reduced) * bits(stage.dtype) // 8
    min_parts = max(
        -(-MIN_PARALLEL_TRIPS // tasks) if tasks < _MIN_TASKS else 1,
        -(-row_bytes // processor.row_bytes) if contiguous else 1,
    )
    # The outermost axis that is long enough, or else the longest.
    longest = max(stage.reduced, key=lambda axis: volume([axis]))
    axis = next((a for a in stage.reduced if volume([a]) >= min(min_parts, _MIN_TASKS)), longest)
    length = -(-volume([axis]) // min_parts)
    parts = -(-volume([axis]) // length)
    return _Cut(axis, parts, length) if parts > 1 else None


def _extremum(stage: Stage, block: SBlock) -> Accumulation | None:
    """The accumulation of a stage that is an extremum which propagates NaN; None if it is none."""
    candidates = accumulations_of(stage, block) or []
    return next((a for a in candidates if a.combine in (maximum, minimum)), None)


def _buffer_of_parts(accumulation: Accumulation, cut: _Cut) -> Any:
    """A buffer for the results of all parts, with the part as the first dimension."""
    result = accumulation.store.buffer
    dtype = str(cut.axis.var.ty.dtype)
    shape = [tirx.const(cut.parts, dtype), *result.shape]
    return tirx.decl_buffer(shape, result.dtype, f"{result.name}_of_parts")


def _parts(stage: Stage, block: SBlock, cut: _Cut, parts_buffer: Any) -> Any:
    """The nest that reduces each part."""
    part, step = (tirx.Var(name, cut.axis.var.ty) for name in ("part", "step"))
    start = part * cut.length
    if cut.parts * cut.length != cut.axis.extent:
        last = tirx.const(volume([cut.axis]) - cut.length, str(part.ty.dtype))
        start = tirx.min(start, last)  # Terms that two parts share count twice, which is harmless.
    axes, values = [(part, _range(part, cut.parts), tirx.IterVar.DataPar)], {}
    for iterator in block.iter_vars:
        if iterator.var.same_as(cut.axis.var):
            axes.append((step, _range(step, cut.length), iterator.iter_type))
            values[iterator.var] = start + step
        else:
            var = tirx.Var(iterator.var.name, iterator.var.ty)
            axes.append((var, iterator.dom, iterator.iter_type))
            values[iterator.var] = var

    def in_parts(indices: Sequence[Any]) -> list[Any]:
        return [part, *indices]

    moved = {stage.stores[0].buffer: (parts_buffer, in_parts)}
    return restated(block, axes, values, moved, f"{stage.name}_parts")


def _combined(
    stage: Stage, block: SBlock, cut: _Cut, parts_buffer: Any, accumulation: Accumulation
) -> Any:
    """The nest that combines the parts' results."""
    part = tirx.Var("part", cut.axis.var.ty)
    (store,) = stage.stores
    so_far = tirx.BufferLoad(store.buffer, store.indices)
    value = accumulation.combine(so_far, tirx.BufferLoad(parts_buffer, [part, *store.indices]))
    spatial = [
        iterator for iterator in block.iter_vars if iterator.iter_type == tirx.IterVar.DataPar
    ]
    values = {iterator.var: tirx.Var(iterator.var.name, iterator.var.ty) for iterator in spatial}
    axes = [(values[iterator.var], iterator.dom, iterator.iter_type) for iterator in spatial]
    axes.append((part, _range(part, cut.parts), tirx.IterVar.CommReduce))
    body = tirx.BufferStore(store.buffer, value, store.indices)
    return restated(replace_block(block, body=body), axes, values, {}, stage.name)


def _range(var: Any, extent: int) -> Range:
    dtype = str(var.ty.dtype)
    return Range.from_min_extent(tirx.const(0, dtype), tirx.const(extent, dtype))
