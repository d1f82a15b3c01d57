"""What a kernel with loops over time is made of: runs of stages, and loops of such.

A loop over time (see `graphgrad.fallback.lowering.scans`) is a block for one time in a serial loop.
The stages in it, and those in front of and behind the loop, are no kernel that a schedule takes,
but each run of such stages is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import tvm
from tvm import tirx
from tvm.s_tir import SBlock

from ...ir.kernel_structure import loop_nest, stage_of, statements_of
from ...ir.visits import nodes_in
from .rows import Inseparable, separate_rows

_OPAQUE = int(tirx.IterVar.Opaque)
"""The kind of a block's iterator that is a time."""


@dataclass(frozen=True)
class TimeLoop:
    """A serial loop around the block of one time."""

    loop: Any
    time: Any
    block: SBlock


@dataclass
class Run:
    """Stages that follow one another."""

    nests: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class Other:
    """A statement that stays as it is."""

    statement: Any


Part: TypeAlias = TimeLoop | Run | Other


def parts_of(outer: SBlock, times: Sequence[Any]) -> tuple[list[Part], list[Any]]:
    """What a block is made of, and the buffers that it and blocks without loops in it allocate.

    Parameters
    ----------
    outer : SBlock
    times : sequence of Var
        The times of all loops around it.
    """
    parts: list[Part] = []
    buffers = list(outer.alloc_buffers)
    for statement in statements_of(outer.body):
        inner_parts, inner_buffers = _parts_of_statement(statement, times)
        buffers += inner_buffers
        for part in inner_parts:
            if isinstance(part, Run) and parts and isinstance(parts[-1], Run):
                parts[-1].nests += part.nests
            else:
                parts.append(part)
    return parts, buffers


def _parts_of_statement(statement: Any, times: Sequence[Any]) -> tuple[list[Part], list[Any]]:
    """What a statement is made of, and the buffers that blocks without loops in it allocate."""
    nest = loop_nest(statement)
    if nest is None:
        return [Other(statement)], []
    loops, realize = nest
    if _is_sequence(loops, realize.block):
        return parts_of(realize.block, times)
    if _is_time_loop(loops, realize):
        return [TimeLoop(loops[0], realize.block.iter_vars[0].var, realize.block)], []
    return [Run([statement]) if _is_stage(statement, times) else Other(statement)], []


def _is_stage(nest: Any, times: Sequence[Any]) -> bool:
    """Whether a nest is a stage, if need be between rows of one buffer."""
    if stage_of(nest):
        return True
    found = loop_nest(nest)
    if found is None or not isinstance(found[1].block.body, tirx.BufferStore):
        return False
    try:
        (separate,) = separate_rows([nest], [], times).nests
    except Inseparable:
        return False
    return stage_of(separate) is not None


def _is_sequence(loops: Sequence[Any], outer: SBlock) -> bool:
    """Whether a block does nothing but to hold others."""
    return (
        not loops
        and not outer.iter_vars
        and not outer.match_buffers
        and outer.init is None
        and bool(nodes_in(outer.body, SBlock))
    )


def _is_time_loop(loops: Sequence[Any], realize: Any) -> bool:
    """Whether a nest is one serial loop around a block of one time."""
    outer = realize.block
    return (
        len(loops) == len(outer.iter_vars) == 1
        and loops[0].kind == tirx.ForKind.SERIAL
        and int(outer.iter_vars[0].iter_type) == _OPAQUE
        and realize.iter_values[0].same_as(loops[0].loop_var)
        and not outer.match_buffers
        and outer.init is None
        and bool(nodes_in(outer.body, SBlock))
    )


def own_buffers(
    buffers: Sequence[Any], mentioned: Sequence[Mapping[Any, None]], takes: Sequence[bool]
) -> tuple[list[list[Any]], list[Any]]:
    """The buffers that single parts have for themselves, and those that are left.

    Parameters
    ----------
    buffers : sequence of Buffer
    mentioned : sequence of mapping
        The variables that each part mentions, as keys.
    takes : sequence of bool
        Whether it may have buffers.
    """
    own: list[list[Any]] = [[] for _ in mentioned]
    left = []
    for buffer in buffers:
        users = [number for number, names in enumerate(mentioned) if buffer in names]
        if len(users) == 1 and takes[users[0]]:
            own[users[0]].append(buffer)
        else:
            left.append(buffer)
    return own, left


def variables_in(nests: Sequence[Any]) -> dict[Any, None]:
    """The variables that statements mention, buffers among them, as keys."""
    return dict.fromkeys(var for nest in nests for var in nodes_in(nest, tvm.ir.Var))
