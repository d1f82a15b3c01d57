"""Multi-output reductions: sibling reductions of one kernel become one block.

The sums that the gradient of a norm needs, or a mean and a mean square, run over the same loops.
Such siblings become one block that computes several results, in the form that TVM has for
reductions of tuples (several stores in one block); all schedules of reductions know that form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.s_tir import SBlockRealize

from ...ir.kernel_rewrite import replace_block, replace_statements
from ...ir.kernel_structure import (
    Stage,
    buffer_of,
    is_among,
    loop_nest,
    stages,
    statements_of,
    stride,
    substitute_values,
)
from ...ir.loops import loop, sequence
from ...ir.passes import Phase, compiler_pass
from .contraction import reuses_operands
from .local_values import restate_regions


@dataclass(frozen=True)
class BlockLimits:
    """Which reductions share a block on a target.

    Attributes
    ----------
    results : int
        How many.
    reads_bfloat : bool
        Whether they may read bfloat16; see `may_join`.
    """

    results: int
    reads_bfloat: bool


PROCESSOR_LIMITS = BlockLimits(results=2, reads_bfloat=False)
"""For processors, where TVM adds up partial results (`rfactor`): of two at most."""


@compiler_pass(Phase.FUSED, over="kernel")
def join_reductions(
    func: tirx.PrimFunc, block_limits: BlockLimits = PROCESSOR_LIMITS
) -> tirx.PrimFunc:
    """Make one block of the sibling reductions of a kernel that is made of stages.

    Siblings have the same loops, read a tensor together, and do not depend on each other. Sums of
    products are left alone: contractions have schedules of their own.
    """
    kernel_stages = stages(func)
    if kernel_stages is None:
        return func
    statements = dict(
        zip([s.name for s in kernel_stages], statements_of(func.body.block.body), strict=True)
    )
    order = [stage.name for stage in kernel_stages]
    current = {stage.name: stage for stage in kernel_stages}
    for name in list(order):
        earlier = _earlier_sibling(name, order, current, block_limits)
        if earlier is None:
            continue
        statements[earlier] = _joint(statements[earlier], statements[name])
        # A third sibling is compared with the joint block, which has more results and reads.
        (current[earlier],) = stages(_kernel_of(func, statements[earlier])) or []
        order.remove(name)
    if len(order) == len(kernel_stages):
        return func
    body = [statements[name] for name in order]
    return func.with_body(replace_statements(func.body, body, func.body.block.alloc_buffers))


def _kernel_of(func: tirx.PrimFunc, statement: Any) -> tirx.PrimFunc:
    return func.with_body(replace_statements(func.body, [statement], func.body.block.alloc_buffers))


def _earlier_sibling(
    name: str, order: list[str], current: dict[str, Stage], limits: BlockLimits
) -> str | None:
    """The first reduction that `name` can be computed together with; None if there is none.

    The later one moves up to it, so it must not read anything that is written from there on.
    """
    stage = current[name]
    if not may_join(stage, limits.reads_bfloat):
        return None
    before = order[: order.index(name)]
    for candidate in before:
        candidate_stage = current[candidate]
        between = [current[n] for n in before[before.index(candidate) :]]
        written = [store.buffer for s in between for store in s.stores]
        if (
            may_join(candidate_stage, limits.reads_bfloat)
            and len(candidate_stage.stores) + len(stage.stores) <= limits.results
            and _are_siblings(candidate_stage, stage)
            and not any(is_among(buffer_of(load), written) for load in stage.loads)
        ):
            return candidate
    return None


def may_join(stage: Stage, reads_bfloat: bool) -> bool:
    """Whether a stage is a reduction that may share its block.

    The values of such a block are bound to variables. Where bfloat16 is stored as integers, TVM
    handles one in a bound value as the integer of the same bits. `reads_bfloat` says that the
    target has bfloat16, so that it may be in values, though none may be one.
    """
    accesses = stage.stores if reads_bfloat else [*stage.loads, *stage.stores]
    return (
        bool(stage.reduced)
        and bool(stage.spatial)
        and not reuses_operands(stage)
        and not any(str(buffer_of(access).dtype).startswith("bfloat") for access in accesses)
    )


def _are_siblings(first: Stage, second: Stage) -> bool:
    """Whether two reductions have the same loops, and read a tensor together."""
    loops = [[(axis.extent, axis.reduced) for axis in stage.axes] for stage in (first, second)]
    are_static = all(extent is not None for extent, _ in loops[0])
    if not are_static or loops[0] != loops[1]:
        return False
    return any(
        _walk_alike((first, load), (second, other))
        for load in first.loads
        for other in second.loads
    )


def _walk_alike(first: tuple[Stage, Any], second: tuple[Stage, Any]) -> bool:
    """Whether two reductions, given with a load of each, go through one tensor in the same order.

    A matrix that one reads by rows and the other by columns is not read together.
    """
    (stage, load), (other_stage, other) = first, second
    return buffer_of(load).same_as(buffer_of(other)) and all(
        stride(load, axis.var) == stride(other, other_axis.var)
        for axis, other_axis in zip(stage.axes, other_stage.axes, strict=True)
    )


def _joint(first_nest: Any, second_nest: Any) -> Any:
    """The loops of the first reduction around one block that does what both blocks do."""
    loops, first_realize = _nest(first_nest)
    _, second_realize = _nest(second_nest)
    pairs = zip(second_realize.block.iter_vars, first_realize.block.iter_vars, strict=True)
    values = {second_iter.var: first_iter.var for second_iter, first_iter in pairs}
    first_block, second_block = first_realize.block, second_realize.block

    def rename_iters(node: Any) -> Any:
        return substitute_values(node, values)

    # All values are bound before any is stored: TVM's form of a reduction of tuples.
    body = [*_parts(first_block.body), *map(rename_iters, _parts(second_block.body))]
    binds = [part for part in body if isinstance(part, tirx.Bind)]
    stores = [part for part in body if isinstance(part, tirx.BufferStore)]
    init = [*statements_of(first_block.init), *map(rename_iters, statements_of(second_block.init))]
    joint = replace_block(first_block, body=sequence(*binds, *stores), init=sequence(*init))
    # What both read is named once: TVM's primitives fail on a buffer of two regions.
    joint = restate_regions(joint)
    statement: Any = SBlockRealize(first_realize.iter_values, first_realize.predicate, joint)
    for old_loop in reversed(loops):
        statement = loop(old_loop.loop_var, old_loop.extent, statement, old_loop.kind, old_loop.min)
    return statement


def _nest(statement: Any) -> tuple[list[Any], Any]:
    nest = loop_nest(statement)
    assert nest is not None
    return nest


def _parts(body: Any) -> list[Any]:
    """A block's statements, each value bound before it is stored."""
    statements = statements_of(body)
    if any(isinstance(statement, tirx.Bind) for statement in statements):
        return statements
    parts = []
    for store in statements:
        value = tirx.Var(f"{store.buffer.name}_next", store.buffer.dtype)
        parts += [
            tirx.Bind(value, store.value),
            tirx.BufferStore(store.buffer, value, store.indices),
        ]
    return parts
