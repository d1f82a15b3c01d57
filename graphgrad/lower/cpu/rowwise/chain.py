"""Stages that compute row by row, each from earlier ones' results of the same row.

The statistics of a norm, the maximum and the sum of a softmax are reductions of each row of a
tensor, and maps over rows lie around them. Where every stage reads of earlier ones its own row
alone, one loop over rows can do all stages, one row after the other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from ....ir.kernel_rewrite import replace_statements
from ....ir.kernel_structure import (
    Axis,
    Stage,
    buffer_of,
    is_among,
    loop_nest,
    statements_of,
    static,
    stride,
    substitute_values,
    uses,
    volume,
)
from ....ir.tensor import bits
from ...kernels.contraction import reuses_operands
from ...kernels.epilogue import Epilogue, epilogues_of
from ..map import SMALL, fusable_suffix
from ..vector_unit import VectorUnit
from .accumulation import Accumulation, accumulations_of, bound_values

_MIN_ROWS = 16
"""Rows that are enough for every core to have some."""

_MIN_ROW_VECTORS = 2
"""Vectors in a row below which other schedules do as well."""

_MIN_SUMMED_ROWS = 2048
"""Rows that several tasks can add up, each some."""

_MIN_LONG_ROW_VECTORS = 8
"""Vectors in a row whose sums wait neither for each other nor for memory."""

_MAX_ROW_BYTES = 1 << 19
"""Bytes of a row, of all tensors together, that stay in a cache until the last stage."""


class Role(Enum):
    """What a stage does with a row: a map, a reduction of it, or a sum over all rows."""

    MAP = "map"
    ALONG = "along"
    DOWN = "down"


@dataclass(frozen=True)
class Part:
    """A stage of a chain.

    Attributes
    ----------
    stage : Stage
    role : Role
    rows : list of Var
        Its variables that say which row.
    inner : list of Axis
        Its other axes that are longer than one, in loop order.
    walked : int
        How many of the innermost of these are walked through as if they were one.
    accumulations : list of Accumulation
        Of a reduction.
    value : Expr
        What a map stores.
    """

    stage: Stage
    role: Role
    rows: list[Any]
    inner: list[Axis]
    walked: int
    accumulations: list[Accumulation]
    value: Any


@dataclass(frozen=True)
class Chain:
    """Stages that follow each other in a kernel and can share a loop over rows.

    Attributes
    ----------
    extents : tuple of int
        Of the axes whose points are the rows.
    parts : list of Part
    places : dict
        By what the chain writes, which indices are the row; none of a sum over all rows.
    local : list of Buffer
        What nothing but the chain reads, so that one row of it has to be kept.
    endings : list of Epilogue
        Maps of sums over all rows, such as an addition to an accumulator.
    """

    extents: tuple[int, ...]
    parts: list[Part]
    places: dict[Any, list[int]]
    local: list[Any]
    endings: list[Epilogue]

    @property
    def rows(self) -> int:
        """The number of rows."""
        return math.prod(self.extents)

    def has(self, name: str) -> bool:
        """Whether a stage of this name is computed by the chain."""
        ends = [ending.stage for ending in self.endings]
        return any(stage.name == name for stage in (*(part.stage for part in self.parts), *ends))


def chain_of(
    found: Sequence[Stage], blocks: Mapping[str, Any], internal: Sequence[Any], unit: VectorUnit
) -> Chain | None:
    """The chain of a kernel; None if it has none, or none that pays.

    Parameters
    ----------
    found : sequence of Stage
        All of the kernel, in order.
    blocks : dict
        Their blocks (SBlockRealize), by name.
    internal : sequence of Buffer
        Those of the kernel's own.
    unit : VectorUnit
    """
    if any(axis.extent is None for stage in found for axis in stage.axes):
        return None
    for extents in _rows_of(found, unit):
        parts = [_part(one, blocks[one.name], extents, unit) for one in found]
        for candidates in (parts, _drop_parameters(parts)):
            chain = _checked(found, candidates, extents, internal)
            if chain is not None and _pays(chain, unit):
                return chain
    return None


def _drop_parameters(parts: Sequence[Part | None]) -> list[Part | None]:
    """The parts but maps to numbers that read none of the others' results.

    A parameter in another shape may have, by chance, as many elements as there are rows.
    """
    made = [store.buffer for part in parts if part is not None for store in part.stage.stores]
    return [
        part
        if part is not None
        and (part.inner or any(is_among(buffer_of(load), made) for load in part.stage.loads))
        else None
        for part in parts
    ]


def rows_reduced(
    found: Sequence[Stage], blocks: Mapping[str, Any], unit: VectorUnit
) -> list[tuple[int, ...]]:
    """The extents of rows that stages reduce, each once."""
    extents = []
    for stage in found:
        rows = tuple(_extents(_long_axes(stage.spatial)))
        if rows and stage.reduced and None not in _extents_known(stage):
            part = _part(stage, blocks[stage.name], rows, unit)
            if part is not None and part.role is Role.ALONG:
                extents.append(rows)
    return list(dict.fromkeys(extents))


def is_by_rows(
    stage: Stage, blocks: Mapping[str, Any], extents: tuple[int, ...], unit: VectorUnit
) -> bool:
    """Whether a stage could be part of a chain over rows of given extents."""
    if None in _extents_known(stage):
        return False
    return _part(stage, blocks[stage.name], extents, unit) is not None


def _extents_known(stage: Stage) -> list[int | None]:
    return [axis.extent for axis in stage.axes]


def _rows_of(found: Sequence[Stage], unit: VectorUnit) -> list[tuple[int, ...]]:
    """The extents of rows that stages may have in common, each once.

    Those are the axes that a reduction leaves; or those that it takes, if rows are many and long:
    column after column, as other schedules add them up, each row would be fetched again and again.
    (Of several results together that does not pay: each is fetched and stored with every row.)
    A single map has rows of its own where they are no whole vectors, which other schedules of maps
    ask for.
    """
    tried = [tuple(_extents(_long_axes(stage.spatial))) for stage in found if stage.reduced]
    tried += [
        tuple(_extents(_long_axes(stage.reduced)))
        for stage in found
        if len(stage.stores) == 1
        and volume(stage.reduced) >= _MIN_SUMMED_ROWS
        and volume(stage.spatial) >= _MIN_LONG_ROW_VECTORS * unit.lanes(stage.dtype)
    ]
    if len(found) == 1 and not found[0].reduced:
        axes = _long_axes(found[0].axes)
        walked = fusable_suffix(replace(found[0], axes=axes)) if axes else 0
        if volume(axes[-walked:]) % unit.lanes(found[0].dtype):
            tried.append(tuple(_extents(axes[:-walked])))
    return [extents for extents in dict.fromkeys(tried) if extents]


def _extents(axes: Sequence[Axis]) -> list[int]:
    return [axis.extent or 0 for axis in axes]


def _long_axes(axes: Sequence[Axis]) -> list[Axis]:
    return [axis for axis in axes if axis.extent != 1]


def _part(stage: Stage, realize: Any, extents: tuple[int, ...], unit: VectorUnit) -> Part | None:
    """A stage as part of a chain over rows of given extents; None if it cannot be."""
    count = len(extents)
    spatial, reduced = _long_axes(stage.spatial), _long_axes(stage.reduced)
    block = realize.block
    if not stage.reduced:
        if tuple(_extents(spatial[:count])) != extents:
            return None
        return _smooth_part(stage, block, Role.MAP, spatial[:count], spatial[count:], unit)
    if reuses_operands(stage):
        return None
    if tuple(_extents(spatial)) == extents and reduced:
        along = _smooth_part(stage, block, Role.ALONG, spatial, reduced, unit)
        if along is not None:
            return along
    if tuple(_extents(reduced)) == extents and spatial:
        return _smooth_part(stage, block, Role.DOWN, reduced, spatial, unit)
    return None


def _smooth_part(
    stage: Stage,
    block: Any,
    role: Role,
    rows: Sequence[Axis],
    inner: Sequence[Axis],
    unit: VectorUnit,
) -> Part | None:
    """A part whose accesses are vectors along its innermost axis; None if some are not."""
    accumulations = accumulations_of(stage, block) if stage.reduced else []
    if accumulations is None:
        return None
    walked = 0
    if inner:
        last = inner[-1].var
        accesses = [*stage.loads, *(() if role is Role.ALONG else stage.stores)]
        if stage.conditional or not all(stride(a, last) in (0, 1) for a in accesses):
            return None
        walked = min(fusable_suffix(replace(stage, axes=list(inner))), len(inner))
        if volume(inner[-walked:]) < _MIN_ROW_VECTORS * unit.lanes(stage.dtype):
            return None
    value = substitute_values(stage.stores[0].value, bound_values(block))
    names = [axis.var for axis in rows]
    return Part(stage, role, names, list(inner), walked, accumulations, value)


def _checked(
    found: Sequence[Stage],
    candidates: Sequence[Part | None],
    extents: tuple[int, ...],
    internal: Sequence[Any],
) -> Chain | None:
    """The chain that stages make, if it is proved to be one; None if it is not.

    Its stages are computed where the last of them stands. Others that stand between them come
    before, and so must neither read what the chain writes nor write what it reads.
    """
    chosen = [part for part in candidates if part is not None]
    others = [stage for stage, part in zip(found, candidates, strict=True) if part is None]
    rows: dict[Any, list[int]] = {}
    loaded: list[Any] = []
    left = len(chosen)
    for stage, part in zip(found, candidates, strict=True):
        stored = [store.buffer for store in stage.stores]
        if left and any(is_among(buffer, [*loaded, *rows]) for buffer in stored):
            return None
        if part is None:
            if left and any(is_among(buffer_of(load), rows) for load in stage.loads):
                return None
            continue
        left -= 1
        if not all(_reads_own_row(load, part, rows) for load in stage.loads):
            return None
        loaded += [buffer_of(load) for load in stage.loads]
        if any(is_among(buffer, loaded) for buffer in stored):
            return None
        for store in stage.stores:
            places = _row_places(store, part)
            if places is None:
                return None
            rows[store.buffer] = places
    endings = _endings(found, chosen, internal)
    others = [s for s in others if not any(s is ending.stage for ending in endings)]
    outside = [buffer_of(access) for s in others for access in (*s.loads, *s.stores)]
    local = [
        buffer
        for buffer, places in rows.items()
        if places and is_among(buffer, internal) and not is_among(buffer, outside)
    ]
    return Chain(extents, chosen, rows, local, endings)


def _endings(
    found: Sequence[Stage], parts: Sequence[Part], internal: Sequence[Any]
) -> list[Epilogue]:
    """The maps that take sums over all rows, and besides read what the kernel is given."""
    made = [store.buffer for stage in found for store in stage.stores]
    return [
        ending
        for part in parts
        if part.role is Role.DOWN
        for ending in epilogues_of(part.stage, found, internal)
        if ending.stage.values[0].same_as(ending.stage.stores[0].value)
        and all(
            not is_among(buffer_of(load), made) or buffer_of(load).same_as(ending.taken)
            for load in ending.stage.loads
        )
    ]


def _row_places(store: Any, part: Part) -> list[int] | None:
    """Which indices of a store are its row; None if that is not told by plain variables.

    A sum over all rows has none, and must not be read in the chain.
    """
    if part.role is Role.DOWN:
        return []
    places = []
    for var in part.rows:
        using = [i for i, index in enumerate(store.indices) if uses(index, var)]
        if len(using) != 1 or not store.indices[using[0]].same_as(var):
            return None
        places.append(using[0])
    return places


def _reads_own_row(load: Any, part: Part, rows: Mapping[Any, list[int]]) -> bool:
    """Whether a load of what the chain has written is of the row that is computed."""
    places = next((p for buffer, p in rows.items() if buffer.same_as(load.source)), None)
    if places is None:
        return True
    return len(places) == len(part.rows) and all(
        load.indices[place].same_as(var) for place, var in zip(places, part.rows, strict=True)
    )


def _pays(chain: Chain, unit: VectorUnit) -> bool:
    """Whether rows are many, long enough for vectors and short enough for a cache."""
    wide = [part for part in chain.parts if part.inner]
    work = sum(part.stage.work for part in wide)
    along = any(part.role is Role.ALONG for part in wide)
    return (
        (along or len(chain.parts) == 1)
        and work >= SMALL
        and chain.rows >= _MIN_ROWS
        and row_bytes(chain) <= _MAX_ROW_BYTES
    )


def row_bytes(chain: Chain) -> int:
    """The bytes of all that a chain touches for one row, each tensor once."""
    sizes: dict[Any, int] = {}
    for part in chain.parts:
        for access in (*part.stage.loads, *part.stage.stores):
            buffer = buffer_of(access)
            elements = math.prod(static(extent) or 1 for extent in buffer.shape)
            moved = any(uses(access, var) for var in part.rows)
            row = elements // chain.rows if moved else elements
            sizes[buffer] = max(sizes.get(buffer, 0), row * bits(str(buffer.dtype)) // 8)
    return sum(sizes.values())


def insert_chain(root: Any, chain: Chain, statement: Any) -> Any:
    """A kernel's root block in which a statement is where a chain's last stage was."""
    kept: list[Any] = []
    last = chain.parts[-1].stage.name
    for own in statements_of(root.block.body):
        nest = loop_nest(own)
        name = "" if nest is None else str(nest[1].block.name_hint)
        if not chain.has(name):
            kept.append(own)
        elif name == last:
            kept.append(statement)
    gone = [*chain.local, *(ending.taken for ending in chain.endings)]
    buffers = [b for b in root.block.alloc_buffers if not is_among(b, gone)]
    return replace_statements(root, kept, buffers)
