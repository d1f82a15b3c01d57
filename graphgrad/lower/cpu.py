"""Schedules for processors: every PrimFunc of a module, by the structure of its stages."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import prim
from tvm.s_tir import Schedule, ScheduleError

from ..fallback.lowering.wide_floats import with_wide_floats
from .contraction import pays, plan, schedule_contraction
from .epilogue import Epilogue, epilogues_of
from .inline import inline_maps
from .map import schedule_map
from .reduction import schedule_reduction
from .structure import Stage, stages
from .target import VectorUnit, vector_unit

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
    found = stages(func)
    if found is None or (func.attrs and func.attrs.get(_SCHEDULED)):
        return func
    if not all(stage.axes for stage in found):
        return func  # scalars are left to the code generator
    sch = Schedule(func)
    internal = list(func.body.block.alloc_buffers)
    try:
        rest = inline_maps(sch, _may_repeat)
        while rest:
            stage, *rest = rest
            epilogues = [e for e in epilogues_of(stage, rest, internal) if pays(stage, e)]
            rest = [s for s in rest if not any(s is e.stage for e in epilogues)]
            _schedule_stage(sch, stage, epilogues, unit)
    except ScheduleError:
        return func
    return _with_wide_bindings(func.with_body(sch.mod["main"].body))


def _with_wide_bindings(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a function in which bindings have no bfloat16, which inlining may have put there.

    TVM takes the bits of what is bound for an integer.
    """
    bindings: list[Any] = []
    tvm_ffi.structural_walk(func.body, (prim.Let, bindings.append))
    return with_wide_floats(func) if bindings else func


def _once(func: tirx.PrimFunc, unit: VectorUnit, known: dict[int, list[Any]]) -> tirx.PrimFunc:
    """Schedule a function, or return the result of an identical one."""
    same = known.setdefault(tvm_ffi.structural_hash(func), [])
    for seen, result in same:
        if tvm_ffi.structural_equal(seen, func):
            return result
    same.append((func, schedule_function(func, unit)))
    return same[-1][1]


def _schedule_stage(
    sch: Schedule, stage: Stage, epilogues: list[Epilogue], unit: VectorUnit
) -> None:
    epilogue = epilogues[0] if epilogues else None
    tile = plan(stage, unit, epilogue)
    if tile is not None:
        schedule_contraction(sch, stage, tile, epilogue)
    elif stage.reduced:
        schedule_reduction(sch, stage, unit, epilogues)
    else:
        schedule_map(sch, stage, unit)


def _may_repeat(stage: Stage, operations: int) -> bool:
    return operations <= _TRIVIAL_BODY and not stage.calls
