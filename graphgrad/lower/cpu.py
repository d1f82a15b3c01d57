"""Schedules for processors: every PrimFunc of a module, by the structure of its stages."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import Schedule, ScheduleError

from .contraction import operands, plan, schedule_contraction
from .map import schedule_map
from .reduction import schedule_reduction
from .structure import Stage, buffer_of, stages
from .target import VectorUnit, vector_unit

_LARGEST_BODY = 256
"""Operations that inlining may collect in one stage: deeper expressions strain the compiler."""

_TRIVIAL_BODY = 4
"""Operations that may be repeated for every reader of a broadcast value."""

_SCHEDULED = "tirx.is_scheduled"


def schedule_module(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Return the module with every PrimFunc scheduled for an llvm target."""
    unit = vector_unit(target)
    known: dict[int, list[tuple[tirx.PrimFunc, tirx.PrimFunc]]] = {}
    scheduled = mod.clone()
    for name, func in mod.functions.items():
        if isinstance(func, tirx.PrimFunc):
            scheduled.update_func(name, _once(func, unit, known))
    return scheduled


def schedule_function(func: tirx.PrimFunc, unit: VectorUnit) -> tirx.PrimFunc:
    """Return a PrimFunc scheduled; unchanged if it is not made of known structures."""
    if stages(func) is None or (func.attrs and func.attrs.get(_SCHEDULED)):
        return func
    sch = Schedule(func)
    try:
        _inline(sch)
        for stage in _stages(sch):
            _schedule_stage(sch, stage, unit)
    except ScheduleError:
        return func
    return func.with_body(sch.mod["main"].body)


def _once(func: tirx.PrimFunc, unit: VectorUnit, known: dict[int, list[Any]]) -> tirx.PrimFunc:
    """Schedule a function, or return the result of an identical one."""
    same = known.setdefault(tvm_ffi.structural_hash(func), [])
    for seen, result in same:
        if tvm_ffi.structural_equal(seen, func):
            return result
    same.append((func, schedule_function(func, unit)))
    return same[-1][1]


def _schedule_stage(sch: Schedule, stage: Stage, unit: VectorUnit) -> None:
    tile = plan(stage, unit)
    if tile is not None:
        schedule_contraction(sch, stage, tile)
    elif stage.reduced:
        schedule_reduction(sch, stage, unit)
    else:
        schedule_map(sch, stage, unit)


def _stages(sch: Schedule) -> list[Stage]:
    return stages(sch.mod["main"]) or []


def _inline(sch: Schedule) -> None:
    """Compute a map inside its reader, where that repeats no work worth naming."""
    internal = list(sch.mod["main"].body.block.alloc_buffers)
    sizes = {stage.name: stage.operations for stage in _stages(sch)}
    for stage in _stages(sch):
        written = stage.stores[0].buffer
        if stage.reduced or not any(written.same_as(buffer) for buffer in internal):
            continue
        readers = [s for s in _stages(sch) if _reads(s, written)]
        if len(readers) != 1 or not _may_inline(stage, readers[0], sizes):
            continue
        sch.compute_inline(sch.get_sblock(stage.name))
        sizes[readers[0].name] += _reads(readers[0], written) * sizes[stage.name]


def _may_inline(stage: Stage, reader: Stage, sizes: dict[str, int]) -> bool:
    if operands(reader) is not None:
        return False  # a contraction's operands are read many times, and must stay plain reads
    reads = _reads(reader, stage.stores[0].buffer)
    if sizes[reader.name] + reads * sizes[stage.name] > _LARGEST_BODY:
        return False
    repeats = reader.work > stage.work
    return not repeats or (sizes[stage.name] <= _TRIVIAL_BODY and not stage.calls)


def _reads(stage: Stage, buffer: Any) -> int:
    return sum(buffer_of(load).same_as(buffer) for load in stage.loads)
