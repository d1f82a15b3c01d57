"""Inlining of maps into the stages that read them, so that their results are not stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call
from tvm.s_tir import Schedule

from ...ir.kernel_structure import Load, Stage, buffer_of, is_conditional, refreshed, stages
from ...ir.visits import nodes_in, visit_nodes
from .contraction import reuses_operands

MAX_INLINED_OPERATIONS = 256
"""Operations that inlining may collect in one stage: deeper expressions strain the compiler."""

MAX_CONDITION_DEPTH = 3
"""The most choices that inlining may put inside each other's conditions. TVM's simplifier takes 6
times as long for each further one: 3 ms for four of them, half a second for seven, in each pass."""

_DIVISIONS = (tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod)

MayRepeat = Callable[[Stage, int], bool]
"""Whether a map of so many operations may be computed more often than it has elements."""


def inline_maps(
    sch: Schedule,
    may_repeat: MayRepeat,
    most_readers: int = 1,
    into_contractions: Callable[[Stage], bool] = lambda _: False,
) -> list[Stage]:
    """Inline maps into their readers, where that repeats little work.

    Parameters
    ----------
    sch : Schedule
        The schedule of a function made of stages; it is changed.
    may_repeat : function
        Whether a map may be computed more often than it has elements. It gets the map, and its
        operations with those of the maps that were inlined into it.
    most_readers : int
        A map with more stages that read it stays as it is.
    into_contractions : function
        Whether a map may go into a contraction that is scheduled as other reductions are, which
        need no plain reads.

    Returns
    -------
    list of Stage
        The stages that are left, in order.
    """
    func = sch.mod["main"]
    internal = list(func.body.block.alloc_buffers)
    current = {stage.name: stage for stage in stages(func) or []}
    sizes = {name: stage.operations for name, stage in current.items()}
    crowded: list[tuple[str, Stage]] = []  # those with too many readers
    waiting = list(current.items())
    while waiting:
        name, stage = waiting.pop(0)
        written = stage.stores[0].buffer
        if stage.reduced or not any(written.same_as(buffer) for buffer in internal):
            continue
        readers = [s for s in current.values() if _reads(s, written)]
        if len(readers) > most_readers:
            crowded.append((name, stage))
        if not 1 <= len(readers) <= most_readers or not all(
            (
                not _reads_plainly(stage, reader)
                or (into_contractions(stage) and _index_types_agree(stage, reader))
            )
            and _may_inline(stage, reader, sizes, may_repeat, len(readers))
            for reader in readers
        ):
            continue
        # With what has been inlined into the map, which `stage` does not show.
        depth = condition_depth(current[name].values)
        if depth and any(
            condition_depth(reader.values, written, depth) > MAX_CONDITION_DEPTH
            for reader in readers
        ):
            continue
        block = sch.get_sblock(name)
        sch.compute_inline(block)
        # Each read of the map became a copy of its expression.
        del current[name]
        # Where a reader went into another reader of the same map, that has one reader less.
        waiting, crowded = [*waiting, *crowded], []
        for reader in readers:
            sizes[reader.name] += _reads(reader, written) * sizes[name]
            reader_block = sch.get(sch.get_sblock(reader.name))
            current[reader.name] = refreshed(reader, reader_block)
    return list(current.values())


def _reads_plainly(stage: Stage, reader: Stage) -> bool:
    """Whether a map must stay, for its reader to be a contraction of plain reads.

    That reads its operands many times. Only a map without loads, such as a constant, may go into
    it.
    """
    return bool(stage.loads) and reuses_operands(reader)


def _may_inline(
    stage: Stage, reader: Stage, sizes: dict[str, int], may_repeat: MayRepeat, readers: int
) -> bool:
    """Whether a map may be inlined into one of its readers; `readers` is how many it has."""
    if _is_zero_divisor(stage, reader):
        return False
    reads = _reads(reader, stage.stores[0].buffer)
    if sizes[reader.name] + reads * sizes[stage.name] > MAX_INLINED_OPERATIONS:
        return False
    repeats = readers > 1 or reader.work > stage.work
    return not repeats or may_repeat(stage, sizes[stage.name])


def condition_depth(values: Iterable[Any], inlined: Any | None = None, depth: int = 0) -> int:
    """How many choices stand inside each other's conditions, in the deepest of some expressions.

    Parameters
    ----------
    values : iterable of Expr
    inlined : Buffer, optional
        Its reads count as expressions of which the deepest has `depth`.
    depth : int
    """
    deepest = 0

    def visit(node: Any) -> Any:
        nonlocal deepest
        if isinstance(node, Load):
            inner = depth if inlined is not None and buffer_of(node).same_as(inlined) else 0
        elif isinstance(node, tirx.Select) or is_conditional(node):
            condition, *arms = (
                node.args
                if isinstance(node, Call)
                else (node.condition, node.true_value, node.false_value)
            )
            in_condition = 1 + condition_depth([condition], inlined, depth)
            inner = max(in_condition, condition_depth(arms, inlined, depth))
        else:
            return None
        deepest = max(deepest, inner)
        # What is inside of a choice has been counted; of a load, its indices are yet to come.
        return None if isinstance(node, Load) else tvm_ffi.WalkResult.SKIP

    for value in values:
        visit_nodes(value, (Load, tirx.Select, Call), visit, outer_first=True)
    return deepest


def _index_types_agree(stage: Stage, reader: Stage) -> bool:
    """Whether a map is read by indices of the type of its own, for TVM to put them in."""
    (written,) = stage.stores
    own = [str(at.ty) for at in written.indices]
    return all(
        [str(at.ty) for at in load.indices] == own
        for load in reader.loads
        if buffer_of(load).same_as(written.buffer)
    )


def _is_zero_divisor(stage: Stage, reader: Stage) -> bool:
    """Whether a map is the constant 0 and its reader divides by it, which TVM refuses to build."""
    store = stage.stores[0]
    if not isinstance(store.value, tirx.FloatImm | tirx.IntImm) or store.value.value:
        return False
    divisors = (
        node.b
        for reader_store in reader.stores
        for node in nodes_in(reader_store.value, _DIVISIONS)
    )
    loads = (load for divisor in divisors for load in nodes_in(divisor, Load))
    return any(buffer_of(load).same_as(store.buffer) for load in loads)


def _reads(stage: Stage, buffer: Any) -> int:
    return sum(buffer_of(load).same_as(buffer) for load in stage.loads)
