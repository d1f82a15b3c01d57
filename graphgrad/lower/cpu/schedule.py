"""The schedule of a kernel for processors, chosen by the structure of its stages.

Maps are inlined; stages are regrouped (`_REGROUPED`) and taken apart (`_TAKEN_APART`). Then each
stage is handled by the first of these that applies: a chain of rows, if the stage is in one; a nest
in vectors, if it reads where data choose or has borders; a Winograd nest, where that is cheaper; a
contraction's nest; a permutation's nest; one of dot products; TVM's scheduling primitives. When all
scheduling is done the nests replace their stages, then the chains do, then buffer views are joined.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import prim
from tvm.s_tir import Schedule, ScheduleError

from ...fallback.lowering.wide_floats import is_rounded, widen_bfloat16
from ...ir.kernel_rewrite import replace_statements
from ...ir.kernel_structure import Stage, is_among, stages, statements_of
from ...ir.passes import Phase, Pipeline, compiler_pass
from ...ir.visits import nodes_in
from ..kernels.blocked_sums import sum_in_blocks
from ..kernels.early_inits import initialize_before_loops
from ..kernels.epilogue import Epilogue, epilogues_of
from ..kernels.inline_maps import inline_maps
from ..kernels.joint_reductions import join_reductions
from ..kernels.shared_values import share_values
from ..kernels.unique_bindings import schedule_of
from .borders import borders_of, read_inside_borders
from .buffer_views import BufferView, joined
from .contraction import blocks_of, nest_of, pays, replace_stages, stage_name, unread
from .dot_products import nest_of as dot_products_of
from .few_sums import nest_of as few_sums_of
from .group_vectors import vectorize_groups
from .interleaved_parts import interleave_parts
from .intervals import split_intervals
from .map import SMALL, schedule_map
from .permutation import nest_of as permutation_nest_of
from .plain_indices import simplify_indices
from .reduction import schedule_reduction
from .residues import split_residues
from .rowwise import Accesses, Chain, chains_of, emit, insert_chain
from .selections import select_values
from .split_axes import split_axes
from .split_reduction import split_reductions
from .time_loops import lasting_parameters, schedule_time_loops
from .tuning import Processor
from .vector_nests import serves, vector_nest
from .winograd import nest_of as winograd_nest_of

_MAX_TRIVIAL_OPERATIONS = 4
"""The most operations of a map that may be repeated, for each reader or along a broadcast."""

_SCHEDULED = "tirx.is_scheduled"

Scheduled = dict[int, list[tuple[tirx.PrimFunc, tirx.PrimFunc]]]
"""Kernels as they were given and as they were scheduled, by the hash of the former."""


@dataclass(frozen=True)
class _Context:
    """What the passes that regroup stages may ask for."""

    processor: Processor


_REGROUPED = Pipeline(
    [simplify_indices, vectorize_groups, join_reductions, split_reductions],
    "llvm",
    _Context,
    start=Phase.FUSED,
)
"""The passes that regroup stages, after maps are inlined.

Rowwise fusion asks for a kernel's rows before anything is scheduled: `_Rows.of` in
`lower/fusion/rowwise.py` runs `simplify_indices`, `vectorize_groups` and `split_axes`, by which the
axes of single stages change. Another pass of this kind belongs there, too.
"""

_TAKEN_APART = Pipeline(
    [split_residues, split_intervals, read_inside_borders, split_axes, select_values],
    "llvm",
    start=Phase.FUSED,
)
"""The passes that take apart stages which choose by remainders or intervals, or index by them."""

_VIEWS = ("residue_views", "interval_views", "axis_views")
"""The facts that these provide, in the order in which views of views are made."""


@compiler_pass(
    Phase.FUSED,
    to=Phase.SCHEDULED,
    over="kernel",
    targets=("llvm",),
    runs=(_REGROUPED, _TAKEN_APART),
)
def schedule_loops(
    func: tirx.PrimFunc,
    processor: Processor,
    winograd: bool = True,
    binds: bool = True,
    scheduled: Scheduled | None = None,
) -> tirx.PrimFunc:
    """Schedule a kernel for a processor; one that is not a sequence of stages stays as it is.

    Parameters
    ----------
    func : PrimFunc
    processor : Processor
    winograd : bool
        Whether convolutions may be computed by minimal filtering, whose rounding errors differ.
    binds : bool
        Whether what blocks keep in local memory may be bound in expressions, so that they are
        stages: TVM's own lowering of kernels overlooks common subexpressions in a binding, which
        that of `graphgrad.compile` does not look for.
    scheduled : dict, optional
        The results for other kernels, by hash: equal kernels are scheduled once.
    """
    known: Scheduled = {} if scheduled is None else scheduled
    same_hash = known.setdefault(tvm_ffi.structural_hash(func), [])
    for original, result in same_hash:
        if tvm_ffi.structural_equal(original, func):
            return result
    result = _scheduled(func, processor, winograd, binds)
    # What is left as it was built sets its results within its loops.
    body = initialize_before_loops(result.body)
    result = result if body.same_as(result.body) else result.with_body(body)
    same_hash.append((func, result))
    return result


def _scheduled(
    func: tirx.PrimFunc, processor: Processor, winograd: bool, binds: bool, small: int = SMALL
) -> tirx.PrimFunc:
    """The kernel scheduled, or as it is if it has no stages with loops or TVM refuses.

    Parameters
    ----------
    func, processor, winograd, binds
        As in `schedule_loops`.
    small : int
        Points of a stage below which it is not worth other threads.
    """
    kernel_stages = stages(func)
    if func.attrs and func.attrs.get(_SCHEDULED):
        return func
    if kernel_stages is None:

        def schedule(part: tirx.PrimFunc, *, small: int) -> tirx.PrimFunc:
            return _scheduled(part, processor, winograd, binds, small)

        return schedule_time_loops(func, processor, schedule, binds) or func
    if not any(stage.axes for stage in kernel_stages):
        return func  # scalars are left to the code generator
    sch = _schedule_of(share_values(func))
    if sch is None:
        return func
    try:
        inline_maps(sch, may_repeat)
        sch = _join_siblings(sch, processor)
        sch, views, parts = _split_stages(sch)
        body = _schedule_stages(sch, processor, winograd, views, parts, small)
    except (ScheduleError, tvm.error.InternalError):
        # What TVM's primitives refuse, or fail at, runs as it was built.
        return func
    return _widen_bindings(func.with_body(joined(body, views)))


def _join_siblings(sch: Schedule, processor: Processor) -> Schedule:
    """A schedule of the regrouped kernel (`_REGROUPED`).

    Indices are plain, reductions with the same loops are one block, and extrema of few or of long
    rows are cut into parts. It is the same schedule if nothing changes or TVM refuses the result.
    """
    func = sch.mod["main"]
    regrouped, _ = _REGROUPED.run_on_kernel(func, _Context(processor))
    return sch if regrouped.same_as(func) else _schedule_of(regrouped) or sch


def _split_stages(sch: Schedule) -> tuple[Schedule, list[BufferView], list[BufferView]]:
    """A schedule in which stages that choose by remainders or intervals are taken apart.

    The views that it returns are to be joined after scheduling; those of residue classes are
    returned once more by themselves. It is the same schedule, without views, if there are no such
    stages, or if TVM refuses to make another one, because of what inlining may leave: variables
    that are bound twice.
    """
    inlined = sch.mod["main"]
    apart, views = _TAKEN_APART.run_on_kernel(inlined)
    if apart.same_as(inlined):
        return sch, [], []
    new_sch = _schedule_of(apart)
    if new_sch is None:
        return sch, [], []
    every_view = [view for name in _VIEWS for view in views[name]]
    return new_sch, every_view, views["residue_views"]


def _schedule_of(func: tirx.PrimFunc) -> Schedule | None:
    """A schedule of a kernel; None if TVM refuses it, as what inlining may leave."""
    try:
        return schedule_of(func)
    except tvm.error.InternalError:
        return None


def _schedule_stages(
    sch: Schedule,
    processor: Processor,
    winograd: bool,
    views: Sequence[BufferView],
    parts: Sequence[BufferView],
    small: int,
) -> Any:
    """The root block of a kernel, with each stage scheduled or written out as a nest."""
    func = sch.mod["main"]
    kernel_stages, blocks = stages(func) or [], blocks_of(func.body)
    for stage in kernel_stages:
        if not stage.axes:
            # TVM cannot split a reduction into parts beside a block that is in no loop.
            sch.add_unit_loop(sch.get_sblock(stage.name))
    internal = list(func.body.block.alloc_buffers)
    # What is stored to a view may be stored for the caller, and other stages read its base.
    unshared = [b for b in internal if not is_among(b, [view.buffer for view in views])]
    borders = borders_of(kernel_stages, unshared, blocks)
    arguments, lasting = list(func.params), lasting_parameters(func)
    rounded = _rounded_buffers(func, views)
    chains = chains_of(kernel_stages, blocks, unshared, processor, small, Accesses(views))
    statements = {stage_name(each): each for each in statements_of(sch.mod["main"].body.block.body)}
    nests: dict[str, Any] = {}
    nest_epilogues: list[Epilogue] = []
    remaining = kernel_stages
    while remaining:
        stage, *remaining = remaining
        if _in_chain(stage, chains):
            continue
        nest = None
        if serves(stage, processor):
            nest = vector_nest(statements[stage.name], processor, small)
        if nest := nest or few_sums_of(stage, blocks, processor, small):
            nests[stage.name] = nest
            continue
        epilogues = [e for e in epilogues_of(stage, remaining, internal) if pays(stage, e)]
        epilogues = [e for e in epilogues if not _in_chain(e.stage, chains)]
        remaining = [s for s in remaining if not any(s is e.stage for e in epilogues)]
        # A nest has one result, and so one epilogue at most.
        epilogue = next(iter(epilogues), None)
        nest = None
        if winograd:
            nest = winograd_nest_of(stage, epilogue, blocks, processor, borders)
        nest = nest or nest_of(
            stage, epilogue, blocks, processor, borders, arguments, lasting, rounded, parts
        )
        nest = nest or permutation_nest_of(stage, blocks, processor)
        if nest is None and (nest := dot_products_of(stage, blocks, processor, small)):
            # The maps behind are stages of their own: it computes squares, not elements.
            remaining, epilogues = [*(e.stage for e in epilogues), *remaining], []
        if nest is None:
            _schedule_stage(sch, stage, epilogues, processor, small)
        else:
            nests[stage.name] = nest
            nest_epilogues += epilogues
    # Padded copies whose readers now read the original are replaced by nothing.
    nests.update(dict.fromkeys(unread(kernel_stages, nests, borders)))
    # The nests of contractions add up in their own way.
    left = {*nests, *(stage.name for stage in kernel_stages if _in_chain(stage, chains))}
    root = replace_stages(_sum_in_blocks(sch.mod["main"].body, left), nests, nest_epilogues)
    root = interleave_parts(root, parts)
    for chain in chains:
        # Only buffers whose layout is final may be read beyond the end of an axis.
        flexible = [*chain.local, *(view.buffer for view in views if view.keeps_addresses())]
        rigid = [buffer for buffer in internal if not is_among(buffer, flexible)]
        root = insert_chain(root, chain, sum_in_blocks(emit(chain, processor, rigid)))
    return root


def _in_chain(stage: Stage, chains: Sequence[Chain]) -> bool:
    """Whether a stage is computed by one of some chains."""
    return any(chain.has(stage.name) for chain in chains)


def _rounded_buffers(func: tirx.PrimFunc, views: Sequence[BufferView]) -> list[Any]:
    """A kernel's own buffers of float32 that hold what was rounded to bfloat16, and nothing else.

    What is stored to a view is in its base, where it is not seen.
    """
    bases = [view.base for view in views]
    exact: dict[Any, bool] = {}
    for store in nodes_in(func.body, tirx.BufferStore):
        exact[store.buffer] = exact.get(store.buffer, True) and is_rounded(store.value)
    return [
        buffer
        for buffer in func.body.block.alloc_buffers
        if exact.get(buffer) and not is_among(buffer, bases)
    ]


def _sum_in_blocks(root: Any, left: Collection[str]) -> Any:
    """A kernel's root block with long sums in blocks, but in stages of the names in `left`."""
    body = [
        statement if stage_name(statement) in left else sum_in_blocks(statement)
        for statement in statements_of(root.block.body)
    ]
    return replace_statements(root, body, root.block.alloc_buffers)


def _widen_bindings(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """A function without bfloat16 in bindings, where inlining may have put it.

    TVM would treat the bits of the bound value as an integer.
    """
    bindings = nodes_in(func.body, prim.Let)
    return widen_bfloat16(func) if bindings else func


def _schedule_stage(
    sch: Schedule, stage: Stage, epilogues: list[Epilogue], processor: Processor, small: int
) -> None:
    if not stage.axes:
        return  # A scalar has no loops to schedule.
    if stage.reduced:
        schedule_reduction(sch, stage, processor, epilogues, small)
    else:
        schedule_map(sch, stage, processor, small)


def may_repeat(stage: Stage, operations: int) -> bool:
    """Whether a map may be computed more often than it has elements; see `inline_maps`."""
    return operations <= _MAX_TRIVIAL_OPERATIONS and not stage.calls and not _divides(stage)


def _divides(stage: Stage) -> bool:
    """Whether a map divides floats, which takes a vector unit ten times as long as an addition."""
    return bool(nodes_in(stage.values, tirx.Div))
