"""Loops over lanes, and in them loops over time.

Where steps never read across lanes (see `lanes.py`), such as the batch, each thread takes some of
them through all times: in one loop, with the maps in front of it of which a step reads a row; or in
all loops and maps of a kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from ...ir.kernel_structure import is_among, stage_of
from .buffer_views import BufferView, block_of
from .lanes import Split, has_lanes, split_into_vectors, split_lanes
from .map import SMALL, is_smooth
from .rows import Inseparable, Rows, separate_rows
from .sink_maps import Sunk, sink_maps
from .step_parts import Part, Run, TimeLoop, own_buffers, parts_of, variables_in
from .tuning import Processor


@dataclass(frozen=True)
class LanePart:
    """What a thread does for its lanes at one time after the other, or once.

    Attributes
    ----------
    loop : TimeLoop or None
        The loop over time.
    rows : Rows
        The stages of its step.
    """

    loop: TimeLoop | None
    rows: Rows


@dataclass(frozen=True)
class Lanes:
    """What each thread does for some lanes, in loops over time and around them.

    Attributes
    ----------
    split : Split
    parts : list of LanePart
    buffers : list of Buffer
        What the parts hand to one another.
    views : list of BufferView
        What these access of the lanes of other buffers.
    """

    split: Split
    parts: list[LanePart]
    buffers: list[Any] = field(default_factory=list)
    views: list[BufferView] = field(default_factory=list)


@dataclass(frozen=True)
class _Group:
    """Stages that follow one another, in a loop over time or in none; and buffers of theirs."""

    loop: TimeLoop | None
    nests: list[Any]
    buffers: list[Any]

    @property
    def times(self) -> list[Any]:
        """The time of the loop."""
        return [self.loop.time] if self.loop else []


def all_in_lanes(
    parts: Sequence[Part], buffers: Sequence[Any], processor: Processor
) -> Lanes | None:
    """A kernel of maps and of loops over time, all of which a thread goes through for some lanes.

    It pays where a map outside of the loops moves the times or the lanes to another dimension, and
    so goes through memory in strides: what it accesses of a few lanes stays in a cache meanwhile.
    None if there is no such map, or there are no lanes.
    """
    groups = [_group_of(part) for part in parts]
    known = [group for group in groups if group]
    if len(known) < len(groups) or not _move_times(known):
        return None
    split = split_into_vectors([nest for group in known for nest in group.nests], processor)
    if split is None:
        return None
    internal = [*buffers, *(buffer for group in known for buffer in group.buffers)]
    try:
        lanes = separate_rows(split.nests, internal, [], split.tiles)
        cut = dict(zip(internal, lanes.internal, strict=True))
        nests = iter(lanes.nests)
        groups_in_lanes = [
            _Group(g.loop, list(islice(nests, len(g.nests))), [cut[b] for b in g.buffers])
            for g in known
        ]
        mentioned = [variables_in(group.nests) for group in groups_in_lanes]
        takes = [group.loop is None for group in groups_in_lanes]
        own, shared = own_buffers([cut[b] for b in buffers], mentioned, takes)
        return Lanes(
            split,
            [
                LanePart(g.loop, separate_rows(g.nests, [*g.buffers, *owned], g.times))
                for g, owned in zip(groups_in_lanes, own, strict=True)
            ],
            shared,
            lanes.views,
        )
    except Inseparable:
        return None


def _group_of(part: Part) -> _Group | None:
    """The stages of a part that is one run of these, in a loop over time or not."""
    if isinstance(part, Run):
        return _Group(None, part.nests, [])
    if not isinstance(part, TimeLoop):
        return None
    inner, buffers = parts_of(part.block, [part.time])
    runs = [each.nests for each in inner if isinstance(each, Run)]
    return _Group(part, runs[0], buffers) if len(runs) == len(inner) == 1 else None


def _move_times(groups: Sequence[_Group]) -> bool:
    """Whether there are only maps, and of those outside of loops a long one runs in no vectors."""
    if any(block_of(nest).init is not None for group in groups for nest in group.nests):
        return False
    loops = [group for group in groups if group.loop]
    maps = [stage_of(nest) for group in groups if not group.loop for nest in group.nests]
    return (
        bool(loops)
        and None not in maps
        and any(stage and stage.work >= SMALL and not is_smooth(stage) for stage in maps)
    )


def with_lanes(
    parts: Sequence[Part], buffers: Sequence[Any], processor: Processor
) -> tuple[list[Part | Lanes], list[Any]]:
    """Parts in which loops over time whose lanes are independent are over these, if that pays.

    Behind them what is still allocated of some buffers: maps in front of such a loop are computed
    in its steps.
    """
    result: list[Part | Lanes] = list(parts)
    left = list(buffers)
    for number, part in enumerate(parts):
        if not isinstance(part, TimeLoop):
            continue
        front = result[number - 1] if number else None
        nests = front.nests if isinstance(front, Run) else []
        others = [p for p in result if p is not part and p is not front]
        used_elsewhere = {var for other in others for var in names_of(other)}
        movable = [buffer for buffer in left if buffer not in used_elsewhere]
        found = _in_lanes(part, nests, movable, processor)
        if found is None:
            continue
        result[number], sunk = found
        if isinstance(front, Run):
            front.nests = sunk.left
        left = [buffer for buffer in left if not is_among(buffer, sunk.unused)]
    return [p for p in result if not isinstance(p, Run) or p.nests], left


def _in_lanes(
    part: TimeLoop, front: Sequence[Any], movable: Sequence[Any], processor: Processor
) -> tuple[Lanes, Sunk] | None:
    """A loop over time that is over lanes, and what became of the stages in front of it."""
    parts, buffers = parts_of(part.block, [part.time])
    if len(parts) != 1 or not isinstance(parts[0], Run):
        return None
    if not has_lanes(parts[0].nests, [part.time], processor):
        return None
    sunk = sink_maps(front, parts[0].nests, part.time, movable)
    split = split_lanes(sunk.step, [part.time], processor)
    if split is None:
        return None
    try:
        rows = separate_rows(split.nests, [*buffers, *sunk.rows], [part.time], split.tiles)
    except Inseparable:
        return None
    return Lanes(split, [LanePart(part, rows)]), sunk


def names_of(part: Part | Lanes) -> dict[Any, None]:
    """The variables that a part mentions, buffers among them."""
    if isinstance(part, Run):
        nests = part.nests
    elif isinstance(part, Lanes):
        rows = [inner.rows for inner in part.parts]
        nests = [n for each in rows for n in (*each.nests, *(view.base for view in each.views))]
    else:
        nests = [part.block.body if isinstance(part, TimeLoop) else part.statement]
    return variables_in(nests)
