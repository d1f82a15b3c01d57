"""Sibling reductions of one kernel, as one block.

The sums that the gradient of a norm asks for, or a mean and a mean square, run over the same loops.
Such siblings become one block that keeps several results, as TVM writes a reduction of tuples; all
schedules of reductions know that form.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from ...ir.kernel_rewrite import replace_realized, replace_statements
from ...ir.kernel_structure import (
    Stage,
    buffer_of,
    is_among,
    loop_nest,
    stages,
    statements_of,
    substitute_values,
)
from ...ir.loops import loop, sequence
from ...ir.passes import Phase, compiler_pass
from .contraction import reuses_operands

_MOST = 4
"""Results of one reduction: they are kept in registers, several vectors of each."""


@compiler_pass(Phase.FUSED, over="kernel", targets=("llvm",))
def join_reductions(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Make one block of the sibling reductions of a kernel that is made of stages.

    Siblings have the same loops, read a tensor together, and do not depend on each other. Sums of
    products are left alone: contractions have schedules of their own.
    """
    found = stages(func)
    if found is None:
        return func
    statements = dict(
        zip([s.name for s in found], statements_of(func.body.block.body), strict=True)
    )
    order = [stage.name for stage in found]
    current = {stage.name: stage for stage in found}
    for name in list(order):
        first = _earlier_sibling(name, order, current)
        if first is None:
            continue
        statements[first] = _joint(statements[first], statements[name])
        (current[first],) = stages(_kernel_of(func, statements[first])) or []
        order.remove(name)
    if len(order) == len(found):
        return func
    body = [statements[name] for name in order]
    return func.with_body(replace_statements(func.body, body, func.body.block.alloc_buffers))


def _kernel_of(func: tirx.PrimFunc, statement: Any) -> tirx.PrimFunc:
    return func.with_body(replace_statements(func.body, [statement], func.body.block.alloc_buffers))


def _earlier_sibling(name: str, order: list[str], current: dict[str, Stage]) -> str | None:
    """The reduction that another can be computed with, before what stands between them."""
    stage = current[name]
    if not may_join(stage):
        return None
    before = order[: order.index(name)]
    for first in before:
        other = current[first]
        between = [current[n] for n in before[before.index(first) :]]
        written = [store.buffer for s in between for store in s.stores]
        if (
            may_join(other)
            and are_siblings(other, stage)
            and not any(is_among(buffer_of(load), written) for load in stage.loads)
        ):
            return first
    return None


def may_join(stage: Stage) -> bool:
    """Whether a stage is a reduction that may share its block.

    The values of such a block are bound, and TVM takes the bits of bfloat16 for an integer there.
    """
    accesses = [*stage.loads, *stage.stores]
    return (
        bool(stage.reduced)
        and bool(stage.spatial)
        and not reuses_operands(stage)
        and not any(str(buffer_of(access).dtype).startswith("bfloat") for access in accesses)
    )


def are_siblings(one: Stage, other: Stage) -> bool:
    """Whether two reductions have the same loops, and read a tensor together."""
    loops = [[(axis.extent, axis.reduced) for axis in stage.axes] for stage in (one, other)]
    known = all(extent is not None for extent, _ in loops[0])
    shared = any(is_among(buffer_of(load), map(buffer_of, other.loads)) for load in one.loads)
    few = len(one.stores) + len(other.stores) <= _MOST
    return known and loops[0] == loops[1] and shared and few


def _joint(one: Any, other: Any) -> Any:
    """The loops of one reduction around the blocks of two."""
    loops, first = _nest(one)
    _, second = _nest(other)
    pairs = zip(second.block.iter_vars, first.block.iter_vars, strict=True)
    values = {theirs.var: ours.var for theirs, ours in pairs}
    block, added = first.block, second.block

    def ours(node: Any) -> Any:
        return substitute_values(node, values)

    body = [*_parts(block.body), *map(ours, _parts(added.body))]
    binds = [part for part in body if isinstance(part, tirx.Bind)]
    stores = [part for part in body if isinstance(part, tirx.BufferStore)]
    statement = replace_realized(
        first,
        reads=[*block.reads, *map(ours, added.reads)],
        writes=[*block.writes, *map(ours, added.writes)],
        body=sequence(*binds, *stores),
        init=sequence(*statements_of(block.init), *map(ours, statements_of(added.init))),
    )
    for outer in reversed(loops):
        statement = loop(outer.loop_var, outer.extent, statement, outer.kind, outer.min)
    return statement


def _nest(statement: Any) -> tuple[list[Any], Any]:
    found = loop_nest(statement)
    assert found is not None
    return found


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
