"""Schedules for processors: those of a kernel, by the structure of its stages.

Maps are inlined; stages are regrouped (`_REGROUPED`) and taken apart (`_TAKEN_APART`). Then, stage
by stage: one of a chain of rows is left for it; else a Winograd nest where that is cheaper; else a
contraction's, else a permutation's; else TVM's primitives. Nests take their stages' places when all
scheduling is done, then the chain, then buffer views are joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import prim
from tvm.s_tir import Schedule, ScheduleError

from ...fallback.lowering.wide_floats import widen_bfloat16
from ...ir.kernel_structure import Stage, buffer_of, is_among, stages
from ...ir.passes import Phase, Pipeline, compiler_pass
from ...ir.visits import nodes_in
from ..kernels.epilogue import Epilogue, epilogues_of
from ..kernels.inline_maps import inline_maps
from ..kernels.joint_reductions import join_reductions
from .borders import borders_of, read_inside_borders
from .buffer_views import BufferView, joined
from .contraction import blocks_of, nest_of, pays, replace_stages, unread
from .group_vectors import vectorize_groups
from .map import schedule_map
from .permutation import nest_of as permutation_nest_of
from .plain_indices import simplify_indices
from .reduction import schedule_reduction
from .residues import split_residues
from .rowwise import Chain, chain_of, emit, insert_chain
from .split_axes import split_axes
from .split_reduction import split_reductions
from .vector_unit import VectorUnit
from .winograd import nest_of as winograd_nest_of

_MAX_TRIVIAL_OPERATIONS = 4
"""Operations that may be repeated for every reader of a broadcast value."""

_SCHEDULED = "tirx.is_scheduled"

Scheduled = dict[int, list[tuple[tirx.PrimFunc, tirx.PrimFunc]]]
"""Kernels as they were given and as they were scheduled, by the hash of the former."""

_REGROUPED = Pipeline(
    [simplify_indices, vectorize_groups, join_reductions, split_reductions],
    "llvm",
    start=Phase.FUSED,
)
"""What is done to stages whose maps are inlined.

Rowwise fusion asks for a kernel's rows before anything is scheduled, and foresees with
`lower/fusion/rowwise.py` (`_Rows.of`) what these make of it: keep both in step.
"""

_TAKEN_APART = Pipeline(
    [split_residues, read_inside_borders, split_axes], "llvm", start=Phase.FUSED
)
"""What is done to stages that choose by remainders, or index by them."""


@compiler_pass(
    Phase.FUSED,
    to=Phase.SCHEDULED,
    over="kernel",
    targets=("llvm",),
    runs=(_REGROUPED, _TAKEN_APART),
)
def schedule_loops(
    func: tirx.PrimFunc, unit: VectorUnit, winograd: bool = True, scheduled: Scheduled | None = None
) -> tirx.PrimFunc:
    """Schedule a kernel for a processor; one that is not made of known structures stays as it is.

    Parameters
    ----------
    func : PrimFunc
    unit : VectorUnit
    winograd : bool
        Whether convolutions may be computed by minimal filtering, whose rounding errors differ.
    scheduled : dict, optional
        What has become of other kernels, by hash: equal ones are scheduled once.
    """
    if scheduled is None:
        return _scheduled(func, unit, winograd)
    same = scheduled.setdefault(tvm_ffi.structural_hash(func), [])
    for seen, result in same:
        if tvm_ffi.structural_equal(seen, func):
            return result
    same.append((func, _scheduled(func, unit, winograd)))
    return same[-1][1]


def _scheduled(func: tirx.PrimFunc, unit: VectorUnit, winograd: bool) -> tirx.PrimFunc:
    found = stages(func)
    if found is None or (func.attrs and func.attrs.get(_SCHEDULED)):
        return func
    if not any(stage.axes for stage in found):
        return func  # scalars are left to the code generator
    sch = Schedule(func)
    try:
        inline_maps(sch, may_repeat)
        sch = _join_siblings(sch)
        sch, stand_ins = _split_stages(sch)
        body = _schedule_stages(sch, unit, winograd, stand_ins)
    except (ScheduleError, tvm.error.InternalError):
        return func  # what TVM's primitives refuse, or fail at, runs as it was built
    return _widen_bindings(func.with_body(joined(body, stand_ins)))


def _join_siblings(sch: Schedule) -> Schedule:
    """A schedule of plain indices, in which reductions with the same loops are one block.

    Those that few results leave no rows are in parts.
    """
    func = sch.mod["main"]
    together, _ = _REGROUPED.run_on_kernel(func)
    return sch if together.same_as(func) else _schedule_of(together) or sch


def _split_stages(sch: Schedule) -> tuple[Schedule, list[BufferView]]:
    """A schedule in which stages that choose by remainders are taken apart.

    It is the same schedule if there are none, or if TVM refuses to make another one, because of
    what inlining may leave: variables that are bound twice.
    """
    inlined = sch.mod["main"]
    apart, views = _TAKEN_APART.run_on_kernel(inlined)
    if apart.same_as(inlined):
        return sch, []
    again = _schedule_of(apart)
    return (sch, []) if again is None else (again, [*views["residue_views"], *views["axis_views"]])


def _schedule_of(func: tirx.PrimFunc) -> Schedule | None:
    """A schedule of a kernel; None if TVM refuses what inlining may leave."""
    try:
        return Schedule(func)
    except tvm.error.InternalError:
        return None


def _schedule_stages(
    sch: Schedule, unit: VectorUnit, winograd: bool, stand_ins: Sequence[BufferView]
) -> Any:
    """The root block of a kernel, with each stage scheduled or written out as a nest."""
    func = sch.mod["main"]
    found, blocks = stages(func) or [], blocks_of(func.body)
    internal = list(func.body.block.alloc_buffers)
    borders = borders_of(found, internal, blocks)
    chain = _chain(found, blocks, internal, unit, stand_ins)
    nests: dict[str, Any] = {}
    behind: list[Epilogue] = []
    rest = found
    while rest:
        stage, *rest = rest
        if chain and chain.has(stage.name):
            continue
        epilogues = [e for e in epilogues_of(stage, rest, internal) if pays(stage, e)]
        epilogues = [e for e in epilogues if not (chain and chain.has(e.stage.name))]
        rest = [s for s in rest if not any(s is e.stage for e in epilogues)]
        epilogue = next(iter(epilogues), None)
        nest = None
        if winograd:
            nest = winograd_nest_of(stage, epilogue, blocks, unit, borders)
        nest = nest or nest_of(stage, epilogue, blocks, unit, borders)
        nest = nest or permutation_nest_of(stage, blocks, unit)
        if nest is None:
            _schedule_stage(sch, stage, epilogues, unit)
        else:
            nests[stage.name] = nest
            behind += epilogues
    nests.update(dict.fromkeys(unread(found, nests, borders)))
    root = replace_stages(sch.mod["main"].body, nests, behind)
    if chain is None:
        return root
    free = [*chain.local, *(one.own for one in stand_ins if one.keeps_addresses())]
    rigid = [buffer for buffer in internal if not is_among(buffer, free)]
    return insert_chain(root, chain, emit(chain, unit, rigid))


def _chain(
    found: list[Stage],
    blocks: dict[str, Any],
    internal: list[Any],
    unit: VectorUnit,
    stand_ins: Sequence[BufferView],
) -> Chain | None:
    """The chain of rows of a kernel, if it has one.

    What reads a buffer for which others stand in reads what is stored to those, and what is stored
    to those is stored for the caller: so the first must not be, and the others are not internal.
    """
    meant, own = [one.whole for one in stand_ins], [one.own for one in stand_ins]
    if any(is_among(buffer_of(load), meant) for stage in found for load in stage.loads):
        return None
    return chain_of(found, blocks, [b for b in internal if not is_among(b, own)], unit)


def _widen_bindings(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """A function in which bindings have no bfloat16, which inlining may have put there.

    TVM takes the bits of what is bound for an integer.
    """
    bindings = nodes_in(func.body, prim.Let)
    return widen_bfloat16(func) if bindings else func


def _schedule_stage(
    sch: Schedule, stage: Stage, epilogues: list[Epilogue], unit: VectorUnit
) -> None:
    if not stage.axes:
        return  # a scalar is computed where it stands
    if stage.reduced:
        schedule_reduction(sch, stage, unit, epilogues)
    else:
        schedule_map(sch, stage, unit)


def may_repeat(stage: Stage, operations: int) -> bool:
    """Whether a map may be computed more often than it has elements; see `inline_maps`."""
    return operations <= _MAX_TRIVIAL_OPERATIONS and not stage.calls and not _divides(stage)


def _divides(stage: Stage) -> bool:
    """Whether a map divides floats, which takes a vector unit ten times as long as a sum."""
    found: list[Any] = []
    for value in stage.values:
        tvm_ffi.structural_walk(value, (tirx.Div, found.append))
    return bool(found)
