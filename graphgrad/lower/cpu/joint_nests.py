"""Maps of the same points in one loop nest, where both call functions.

The gradients of log(eˣ + eʸ), or those of a gate and of what it multiplies, need the same
exponential at the same points. In one nest `vectorize_math` computes it once, and what both maps
read is read once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir import SBlockRealize

from ...ir.kernel_rewrite import replace_statements
from ...ir.kernel_structure import (
    Load,
    Stage,
    buffer_of,
    is_among,
    same_indices,
    statements_of,
    static,
    substitute_values,
)
from ...ir.loops import sequence, within
from ...ir.passes import Phase, compiler_pass
from ...ir.visits import nodes_in
from .vector_math import FUNCTIONS


@compiler_pass(
    Phase.SCHEDULED,
    over="kernel",
    targets=("llvm",),
    before={"donate": "it judges in what order a kernel reads and stores"},
    because="a schedule makes the loops, and makes the same of equal ones",
)
def join_nests(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Join neighboring loop nests of maps that go over the same points and call functions.

    Parameters
    ----------
    func : PrimFunc
        Scheduled; its vectorized loops are still loops.
    """
    if not isinstance(func.body, SBlockRealize) or func.body.block.iter_vars:
        return func
    root = func.body.block
    distinct = [*func.params, *root.alloc_buffers]
    joined: list[Any] = []
    for statement in statements_of(root.body):
        joint = _joint(joined[-1], statement, distinct) if joined else None
        joined[-1 if joint is not None else len(joined) :] = [statement if joint is None else joint]
    if len(joined) == len(statements_of(root.body)):
        return func
    return func.with_body(replace_statements(func.body, joined, root.alloc_buffers))


def share_functions(first: Stage, second: Stage) -> bool:
    """Whether two maps have the same points, read the same elements and call the same functions."""
    extents = [[axis.extent for axis in stage.axes] for stage in (first, second)]
    if first.reduced or second.reduced or extents[0] != extents[1] or None in extents[0]:
        return False
    pairs = zip(second.axes, first.axes, strict=True)
    axes = {own.var: other.var for own, other in pairs}
    loads = [substitute_values(load, axes) for load in second.loads]
    return bool(first.calls & second.calls & FUNCTIONS) and any(
        buffer_of(load).same_as(buffer_of(other)) and same_indices(load, other)
        for load in first.loads
        for other in loads
    )


def _joint(first: Any, second: Any, distinct: Sequence[Any]) -> Any | None:
    """One nest in the place of two; None where that cannot be, or shares no work."""
    loops, bodies = _map_nest(first)
    other_loops, other_bodies = _map_nest(second)
    if not bodies or not other_bodies or len(loops) != len(other_loops):
        return None
    pairs = list(zip(loops, other_loops, strict=True))
    if not all(_alike(own, other) for own, other in pairs):
        return None
    if not _are_independent(bodies, other_bodies, distinct):
        return None
    if not _functions(bodies) & _functions(other_bodies):
        return None
    names = {other.loop_var: own.loop_var for own, other in pairs}
    return within(loops, sequence(*bodies, *(substitute_values(b, names) for b in other_bodies)))


def _map_nest(statement: Any) -> tuple[list[Any], list[Any]]:
    """The loops of a nest whose innermost one is a vector, and the maps' blocks in that.

    Without blocks it is anything else.
    """
    loops: list[Any] = []
    while isinstance(statement, tirx.For):
        loops.append(statement)
        statement = statement.body
    bodies = statements_of(statement)
    is_nest = loops and loops[-1].kind == tirx.ForKind.VECTORIZED and all(map(_is_map, bodies))
    return loops, bodies if is_nest else []


def _is_map(body: Any) -> bool:
    return (
        isinstance(body, SBlockRealize)
        and static(body.predicate) == 1
        and body.block.init is None
        and not body.block.alloc_buffers
        and not body.block.match_buffers
        and isinstance(body.block.body, tirx.BufferStore)
    )


def _alike(loop: Any, other: Any) -> bool:
    return (
        loop.kind == other.kind
        and static(loop.extent) is not None
        and static(loop.extent) == static(other.extent)
        and static(loop.min) == static(other.min) == 0
        and not loop.annotations
        and not other.annotations
    )


def _are_independent(bodies: Sequence[Any], others: Sequence[Any], distinct: Sequence[Any]) -> bool:
    """Whether some maps and others access nothing that those of the other side store.

    All buffers must be among `distinct` ones, which share no memory.
    """
    (stored, loaded), (other_stored, other_loaded) = map(_accessed, (bodies, others))
    return all(is_among(buffer, distinct) for buffer in (*loaded, *other_loaded)) and not any(
        is_among(buffer, side)
        for stores, side in (
            (stored, [*other_stored, *other_loaded]),
            (other_stored, [*stored, *loaded]),
        )
        for buffer in stores
    )


def _accessed(bodies: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The buffers that maps store to, and those that they load from."""
    stored = [body.block.body.buffer for body in bodies]
    loads = [load for body in bodies for load in nodes_in(body.block.body, Load)]
    return stored, [buffer_of(load) for load in loads]


def _functions(bodies: Sequence[Any]) -> set[str]:
    """The names of the functions that maps call, of those that are written out."""
    calls = [call for body in bodies for call in nodes_in(body, tvm.ir.Call)]
    return {str(getattr(call.op, "name", "")) for call in calls} & FUNCTIONS
