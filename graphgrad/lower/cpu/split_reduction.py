"""Extrema of few rows, or of long ones, in parts that become rows.

Cores and vectors share a reduction row by row. Where it has few results, or a row fits no cache,
its terms are dealt to parts: one reduction has a result for each part, a second one combines these.
A term that is taken twice changes no extremum, so parts may overlap, and extents need not divide.

TVM takes reductions apart by itself if it knows their combiner; of a choice that hands NaN on it
does not.
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

_MIN_TASKS = 16
"""Tasks below which not every core may have one."""

_MIN_NEIGHBOR_RESULTS = 128
"""Neighboring results from which on they are tasks themselves, or rows of terms are."""

_MAX_WHOLE_ROW_BYTES = 1 << 18
"""Bytes of a row from which on it is cut."""


@dataclass(frozen=True)
class _Cut:
    """A reduced axis in parts of equal length; the last one may overlap the one before."""

    axis: Axis
    parts: int
    length: int


@compiler_pass(
    Phase.FUSED,
    over="kernel",
    targets=("llvm",),
    after={"join_reductions": "siblings have the same loops, until one of them is cut"},
)
def split_reductions(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Reduce extrema of few or of long rows in parts first.

    Parameters
    ----------
    func : PrimFunc
        Left as it is if it is not made of stages.
    """
    found = stages(func)
    if found is None:
        return func
    nests: list[Any] = []
    buffers = list(func.body.block.alloc_buffers)
    for stage, nest in zip(found, statements_of(func.body.block.body), strict=True):
        block = block_of(nest)
        cut = _cut(stage)
        accumulation = None if cut is None else _extremum(stage, block)
        if cut is None or accumulation is None:
            nests.append(nest)
            continue
        own = _buffer_of_parts(accumulation, cut)
        buffers.append(own)
        nests += [_parts(stage, block, cut, own), _combined(stage, block, cut, own, accumulation)]
    return replace_nests(func, nests, buffers) if len(nests) > len(found) else func


def _cut(stage: Stage) -> _Cut | None:
    """The axis that is cut, and how; None if a stage is left whole."""
    if not stage.reduced or any(axis.extent is None for axis in stage.axes):
        return None
    if len(stage.stores) != 1 or stage.work < SMALL:
        return None
    last = stage.reduced[-1]
    along = any(stride(load, last.var) == 1 for load in stage.loads)
    results = volume(stage.spatial)
    tasks = results if along or results >= _MIN_NEIGHBOR_RESULTS else 1
    row = volume(stage.reduced) * bits(stage.dtype) // 8
    wanted = max(
        -(-MIN_PARALLEL_TRIPS // tasks) if tasks < _MIN_TASKS else 1,
        -(-row // _MAX_WHOLE_ROW_BYTES) if along else 1,
    )
    longest = max(stage.reduced, key=lambda axis: volume([axis]))
    axis = next((a for a in stage.reduced if volume([a]) >= min(wanted, _MIN_TASKS)), longest)
    length = -(-volume([axis]) // wanted)
    parts = -(-volume([axis]) // length)
    return _Cut(axis, parts, length) if parts > 1 else None


def _extremum(stage: Stage, block: SBlock) -> Accumulation | None:
    """The accumulation of a stage that is an extremum which hands NaN on."""
    accumulations = accumulations_of(stage, block) or []
    return next((one for one in accumulations if one.combine in (maximum, minimum)), None)


def _buffer_of_parts(accumulation: Accumulation, cut: _Cut) -> Any:
    whole = accumulation.store.buffer
    dtype = str(cut.axis.var.ty.dtype)
    shape = [tirx.const(cut.parts, dtype), *whole.shape]
    return tirx.decl_buffer(shape, whole.dtype, f"{whole.name}_of_parts")


def _parts(stage: Stage, block: SBlock, cut: _Cut, own: Any) -> Any:
    """The nest that reduces each part."""
    part, step = (tirx.Var(name, cut.axis.var.ty) for name in ("part", "step"))
    start = part * cut.length
    if cut.parts * cut.length != cut.axis.extent:
        last = tirx.const(volume([cut.axis]) - cut.length, str(part.ty.dtype))
        start = tirx.min(start, last)
    axes, values = [(part, _range(part, cut.parts), tirx.IterVar.DataPar)], {}
    for iterator in block.iter_vars:
        if iterator.var.same_as(cut.axis.var):
            axes.append((step, _range(step, cut.length), iterator.iter_type))
            values[iterator.var] = start + step
        else:
            var = tirx.Var(iterator.var.name, iterator.var.ty)
            axes.append((var, iterator.dom, iterator.iter_type))
            values[iterator.var] = var

    def places(indices: Sequence[Any]) -> list[Any]:
        return [part, *indices]

    moved = {stage.stores[0].buffer: (own, places)}
    return restated(block, axes, values, moved, f"{stage.name}_parts")


def _combined(stage: Stage, block: SBlock, cut: _Cut, own: Any, accumulation: Accumulation) -> Any:
    """The nest that reduces the parts' results."""
    part = tirx.Var("part", cut.axis.var.ty)
    (store,) = stage.stores
    so_far = tirx.BufferLoad(store.buffer, store.indices)
    value = accumulation.combine(so_far, tirx.BufferLoad(own, [part, *store.indices]))
    spatial = [v for v in block.iter_vars if v.iter_type == tirx.IterVar.DataPar]
    values = {v.var: tirx.Var(v.var.name, v.var.ty) for v in spatial}
    axes = [(values[v.var], v.dom, v.iter_type) for v in spatial]
    axes.append((part, _range(part, cut.parts), tirx.IterVar.CommReduce))
    body = tirx.BufferStore(store.buffer, value, store.indices)
    return restated(replace_block(block, body=body), axes, values, {}, stage.name)


def _range(var: Any, extent: int) -> Range:
    dtype = str(var.ty.dtype)
    return Range.from_min_extent(tirx.const(0, dtype), tirx.const(extent, dtype))
