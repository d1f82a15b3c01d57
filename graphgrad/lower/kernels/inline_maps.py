"""Inlining of maps into the stages that read them, so that their results are not stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule

from ...ir.kernel_structure import Load, Stage, buffer_of, refreshed, stages
from ...ir.visits import nodes_in
from .contraction import reuses_operands

MAX_INLINED_OPERATIONS = 256
"""Operations that inlining may collect in one stage: deeper expressions strain the compiler."""

_DIVISIONS = (tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod)

MayRepeat = Callable[[Stage, int], bool]
"""Whether a map of so many operations may be computed more often than it has elements."""


def inline_maps(sch: Schedule, may_repeat: MayRepeat, most_readers: int = 1) -> list[Stage]:
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

    Returns
    -------
    list of Stage
        The stages that are left, in order.
    """
    func = sch.mod["main"]
    internal = list(func.body.block.alloc_buffers)
    current = {stage.name: stage for stage in stages(func) or []}
    sizes = {name: stage.operations for name, stage in current.items()}
    for name, stage in list(current.items()):
        written = stage.stores[0].buffer
        if stage.reduced or not any(written.same_as(buffer) for buffer in internal):
            continue
        readers = [s for s in current.values() if _reads(s, written)]
        if not 1 <= len(readers) <= most_readers or not all(
            _may_inline(stage, reader, sizes, may_repeat, len(readers)) for reader in readers
        ):
            continue
        block = sch.get_sblock(name)
        sch.compute_inline(block)
        # Each read of the map became a copy of its expression.
        del current[name]
        for reader in readers:
            sizes[reader.name] += _reads(reader, written) * sizes[name]
            reader_block = sch.get(sch.get_sblock(reader.name))
            current[reader.name] = refreshed(reader, reader_block)
    return list(current.values())


def _may_inline(
    stage: Stage, reader: Stage, sizes: dict[str, int], may_repeat: MayRepeat, readers: int
) -> bool:
    """Whether a map may be inlined into one of its readers; `readers` is how many it has."""
    # A contraction reads its operands many times, and they must stay plain reads. Only a map
    # without loads, such as a constant, may go into it.
    if stage.loads and reuses_operands(reader):
        return False
    if _is_zero_divisor(stage, reader):
        return False
    reads = _reads(reader, stage.stores[0].buffer)
    if sizes[reader.name] + reads * sizes[stage.name] > MAX_INLINED_OPERATIONS:
        return False
    repeats = readers > 1 or reader.work > stage.work
    return not repeats or may_repeat(stage, sizes[stage.name])


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
