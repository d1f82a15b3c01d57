"""Stages that compute row by row, each from earlier ones' results of the same row.

The statistics of a norm, the maximum and the sum of a softmax are reductions of each row of a
tensor, and maps over rows lie around them. Where every stage reads only its own row of earlier
stages' results, one loop over rows can do all stages, one row after the other. Where another stage
comes in between, such as a product that mixes columns, there is a chain in front of it and one
behind it.

In a step of a loop over time threads wait for one another after each stage, so that maps alone are
worth a chain there, and few rows are.
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
    bound_values,
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
from ..buffer_views import BufferView
from ..map import SMALL, fusable_suffix, is_step
from ..tuning import Processor
from .accumulation import Accumulation, accumulations_of

_MIN_ROWS = 16
"""The least number of rows: every core should have some."""

MIN_STEP_ROWS = 4
"""The same in a step of a loop over time."""

_MIN_ROW_VECTORS = 2
"""The number of vectors in a row below which other schedules do as well."""

_MIN_SUMMED_ROWS = 2048
"""The least number of rows of a sum over rows, to which several tasks can contribute."""

_MIN_LONG_ROW_VECTORS = 8
"""The least number of vectors in a row of a sum over rows: with so many, additions wait neither for
each other nor for memory."""


class Role(Enum):
    """The relation of a stage to rows.

    MAP computes elements of a row, ALONG reduces each row, DOWN reduces over all rows.
    """

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
        The stage's variables that are the index of the row.
    inner : list of Axis
        The stage's other axes that are longer than one, in loop order.
    walked : int
        How many of the innermost of these can be fused: all accesses walk through them as one.
    accumulations : list of Accumulation
        The accumulations of a reduction; empty for a map.
    value : Expr
        The value that a map stores.
    """

    stage: Stage
    role: Role
    rows: list[Any]
    inner: list[Axis]
    walked: int
    accumulations: list[Accumulation]
    value: Any


@dataclass(frozen=True)
class Accesses:
    """What accesses of views are of: the real buffers, and the elements of these.

    Attributes
    ----------
    views : sequence of BufferView
        The `base` of one may be the `buffer` of another that comes before it.
    """

    views: Sequence[BufferView] = ()

    def real(self, buffer: Any, indices: Sequence[Any]) -> tuple[Any, list[Any]]:
        """The real buffer that an access is of, and the indices in it."""
        indices = list(indices)
        for view in reversed(self.views):
            if buffer.same_as(view.buffer):
                buffer, indices = view.base, view.to_base(indices)
        return buffer, indices

    def real_buffer(self, buffer: Any) -> Any:
        """The real buffer that a buffer is, or a view of."""
        for view in reversed(self.views):
            buffer = view.base if buffer.same_as(view.buffer) else buffer
        return buffer

    def loaded(self, stage: Stage) -> list[Any]:
        """The real buffers that a stage reads."""
        return [self.real_buffer(buffer_of(load)) for load in stage.loads]

    def stored(self, stage: Stage) -> list[Any]:
        """The real buffers that a stage writes."""
        return [self.real_buffer(store.buffer) for store in stage.stores]


@dataclass(frozen=True)
class Chain:
    """Stages that follow each other in a kernel and can share a loop over rows.

    Attributes
    ----------
    extents : tuple of int
        The extents of the axes whose points are the rows.
    parts : list of Part
    row_dimensions : dict
        By buffer that the chain writes, the dimensions that are the index of the row; empty for a
        sum over all rows.
    local : list of Buffer
        The buffers that nothing but the chain reads: a buffer for one row replaces each.
    endings : list of Epilogue
        Maps of sums over all rows, such as an addition to an accumulator.
    accesses : Accesses
    """

    extents: tuple[int, ...]
    parts: list[Part]
    row_dimensions: dict[Any, list[int]]
    local: list[Any]
    endings: list[Epilogue]
    accesses: Accesses

    @property
    def rows(self) -> int:
        """The number of rows."""
        return math.prod(self.extents)

    def has(self, name: str) -> bool:
        """Whether a stage of this name is computed by the chain."""
        ends = [ending.stage for ending in self.endings]
        return any(stage.name == name for stage in (*(part.stage for part in self.parts), *ends))


def chains_of(
    kernel_stages: Sequence[Stage],
    blocks: Mapping[str, Any],
    internal: Sequence[Any],
    processor: Processor,
    small: int = SMALL,
    accesses: Accesses | None = None,
) -> list[Chain]:
    """The chains of a kernel that pay, in order; they have the same rows.

    Parameters
    ----------
    kernel_stages : sequence of Stage
        All stages of the kernel, in order.
    blocks : dict
        Their blocks (SBlockRealize), by name.
    internal : sequence of Buffer
        The buffers that the kernel allocates, without views.
    processor : Processor
    small : int
        Points of all stages below which none pays.
    accesses : Accesses, optional
        What the kernel has views of.
    """
    if any(axis.extent is None for stage in kernel_stages for axis in stage.axes):
        return []  # How rows are cut into tasks and vectors is decided here, by extents.
    accesses = accesses or Accesses()
    alone = len(kernel_stages) == 1
    best: list[Chain] = []
    for extents in _rows_of(kernel_stages, processor, is_step(small)):
        parts = [_part(s, blocks[s.name], extents, processor) for s in kernel_stages]
        for candidates in (parts, _drop_parameters(parts, accesses)):
            chains = _cut(kernel_stages, candidates, extents, internal, accesses)
            paying = [chain for chain in chains if _pays(chain, processor, small, alone)]
            if len(chains) == 1 and paying:
                return paying
            several = [chain for chain in paying if len(chain.parts) > 1]
            if _work(several) > _work(best):
                best = several
    return best


def _work(chains: Sequence[Chain]) -> int:
    """How often the blocks of chains run."""
    return sum(part.stage.work for chain in chains for part in chain.parts)


def _drop_parameters(parts: Sequence[Part | None], accesses: Accesses) -> list[Part | None]:
    """The parts, with None for maps of one number per row that read no other part's result.

    Such a map may be a reshaped parameter that has, by chance, as many elements as there are rows.
    """
    written = [b for part in parts if part is not None for b in accesses.stored(part.stage)]
    return [
        part
        if part is not None
        and (part.inner or any(is_among(b, written) for b in accesses.loaded(part.stage)))
        else None
        for part in parts
    ]


def rows_reduced(
    kernel_stages: Sequence[Stage], blocks: Mapping[str, Any], processor: Processor
) -> list[tuple[int, ...]]:
    """The extents of the rows that stages reduce, without repetitions."""
    extents = []
    for stage in kernel_stages:
        rows = tuple(_extents(_long_axes(stage.spatial)))
        if rows and stage.reduced and None not in _extents_known(stage):
            part = _part(stage, blocks[stage.name], rows, processor)
            if part is not None and part.role is Role.ALONG:
                extents.append(rows)
    return list(dict.fromkeys(extents))


def is_by_rows(
    stage: Stage, blocks: Mapping[str, Any], extents: tuple[int, ...], processor: Processor
) -> bool:
    """Whether a stage could be part of a chain over rows of given extents."""
    if None in _extents_known(stage):
        return False
    return _part(stage, blocks[stage.name], extents, processor) is not None


def _extents_known(stage: Stage) -> list[int | None]:
    """The extents of a stage's axes, None for one that is symbolic."""
    return [axis.extent for axis in stage.axes]


def _rows_of(
    kernel_stages: Sequence[Stage], processor: Processor, in_step: bool
) -> list[tuple[int, ...]]:
    """The extents of rows that stages may have in common, without repetitions.

    They are those of a reduction's spatial axes, or of its reduced axes if rows are many and long:
    column by column, as other schedules add them up, each row would be fetched again and again.
    (For a reduction with several results that does not pay: every row fetches and stores all of
    them.) A single map is a chain too if its rows are no whole vectors, which the other schedule of
    maps asks for. In a step of a loop over time they may be those of maps, too: the first axis.
    """
    candidates = [
        tuple(_extents(_long_axes(stage.spatial))) for stage in kernel_stages if stage.reduced
    ]
    candidates += [
        tuple(_extents(_long_axes(stage.reduced)))
        for stage in kernel_stages
        if len(stage.stores) == 1
        and volume(stage.reduced) >= _MIN_SUMMED_ROWS
        and volume(stage.spatial) >= _MIN_LONG_ROW_VECTORS * processor.lanes(stage.dtype)
    ]
    if len(kernel_stages) == 1 and not kernel_stages[0].reduced:
        axes = _long_axes(kernel_stages[0].axes)
        walked = fusable_suffix(replace(kernel_stages[0], axes=axes)) if axes else 0
        if volume(axes[-walked:]) % processor.lanes(kernel_stages[0].dtype):
            candidates.append(tuple(_extents(axes[:-walked])))
    if in_step:
        of_maps = [_long_axes(s.axes) for s in kernel_stages if not s.reduced]
        candidates += [tuple(_extents(axes[:1])) for axes in of_maps if len(axes) > 1]
    return [extents for extents in dict.fromkeys(candidates) if extents]


def _extents(axes: Sequence[Axis]) -> list[int]:
    return [axis.extent or 0 for axis in axes]


def _long_axes(axes: Sequence[Axis]) -> list[Axis]:
    """The axes without those of extent one."""
    return [axis for axis in axes if axis.extent != 1]


def _part(
    stage: Stage, realize: Any, extents: tuple[int, ...], processor: Processor
) -> Part | None:
    """A stage as part of a chain over rows of given extents; None if it cannot be."""
    count = len(extents)
    spatial, reduced = _long_axes(stage.spatial), _long_axes(stage.reduced)
    block = realize.block
    if not stage.reduced:
        if tuple(_extents(spatial[:count])) != extents:
            return None
        return _smooth_part(stage, block, Role.MAP, spatial[:count], spatial[count:], processor)
    if reuses_operands(stage):
        return None  # Contractions have schedules of their own, which reuse what they read.
    if tuple(_extents(spatial)) == extents and reduced:
        along = _smooth_part(stage, block, Role.ALONG, spatial, reduced, processor)
        if along is not None:
            return along
    if tuple(_extents(reduced)) == extents and spatial and not processor.is_gpu:
        return _smooth_part(stage, block, Role.DOWN, reduced, spatial, processor)
    return None


def _smooth_part(
    stage: Stage,
    block: Any,
    role: Role,
    rows: Sequence[Axis],
    inner: Sequence[Axis],
    processor: Processor,
) -> Part | None:
    """A part whose accesses are vectors along its innermost axis.

    None if some are not, if rows are too short, or if the reduction is not recognized.
    """
    accumulations = accumulations_of(stage, block) if stage.reduced else []
    if accumulations is None:
        return None
    walked = 0
    if inner:
        last = inner[-1].var
        # A reduction along the row stores one number, which does not move along the inner axes.
        accesses = [*stage.loads, *(() if role is Role.ALONG else stage.stores)]
        if stage.conditional or not all(stride(access, last) in (0, 1) for access in accesses):
            return None
        walked = min(fusable_suffix(replace(stage, axes=list(inner))), len(inner))
        if volume(inner[-walked:]) < _MIN_ROW_VECTORS * processor.lanes(stage.dtype):
            return None
    value = substitute_values(stage.stores[0].value, bound_values(block.body))
    row_variables = [axis.var for axis in rows]
    return Part(stage, role, row_variables, list(inner), walked, accumulations, value)


def _cut(
    kernel_stages: Sequence[Stage],
    candidates: Sequence[Part | None],
    extents: tuple[int, ...],
    internal: Sequence[Any],
    accesses: Accesses,
) -> list[Chain]:
    """The chains that stages are proved to make, each as long as can be."""
    parts = [part for part in candidates if part is not None]
    endings = _endings(kernel_stages, parts, internal, accesses)
    segments: list[_Proof] = [_Proof(accesses)]
    for stage, part in zip(kernel_stages, candidates, strict=True):
        if any(stage is ending.stage for ending in endings):
            segments[-1].end(stage)
        elif not segments[-1].accepts(stage, part):
            segments.append(_Proof(accesses))
            segments[-1].accepts(stage, part)
    return [
        _chain(kernel_stages, segment, extents, internal, endings)
        for segment in segments
        if segment.parts
    ]


class _Proof:
    """That stages, one after the other, are a chain.

    All of them are computed where the last of them was. So stages in between that are not in the
    chain run before all of it: they must neither read nor write what it writes, nor write what it
    reads.

    Attributes
    ----------
    parts : list of Part
        The stages of the chain so far.
    row_dimensions : dict
        As in `Chain`, of real buffers and of views; empty, too, for a buffer of which no rows are
        known.
    """

    def __init__(self, accesses: Accesses):
        self.parts: list[Part] = []
        self.row_dimensions: dict[Any, list[int]] = {}
        self.accesses = accesses
        self._loaded: list[Any] = []
        self._whole: list[Any] = []  # what is stored not by views

    def end(self, stage: Stage) -> None:
        """Note an epilogue of a sum over all rows: what it stores is complete when all rows are."""
        self.row_dimensions |= {buffer: [] for buffer in self.accesses.stored(stage)}

    def accepts(self, stage: Stage, part: Part | None) -> bool:
        """Whether a stage may follow, in the chain or, where it is no part, beside it."""
        loaded, stored = self.accesses.loaded(stage), self.accesses.stored(stage)
        written = list(self.row_dimensions)
        if part is None:
            return not any(is_among(b, [*self._loaded, *written]) for b in stored) and not any(
                is_among(b, written) for b in loaded
            )
        whole = [b for b, s in zip(stored, stage.stores, strict=True) if b.same_as(s.buffer)]
        # One view of a buffer may be stored behind another.
        if any(is_among(buffer, written) for buffer in whole):
            return False
        if any(is_among(b, [*self._whole, *self._loaded, *loaded]) for b in stored):
            return False
        # Rows run after each other and on several cores, so a stage can rely on its own row only.
        if not all(self._reads_own_row(load, part) for load in stage.loads):
            return False
        dimensions: dict[Any, list[int]] = {}
        for store in stage.stores:
            own = _row_dimensions(store.indices, part)
            if own is None:
                return False
            real, indices = self.accesses.real(store.buffer, store.indices)
            found = _row_dimensions(indices, part)
            # Where views have rows that the buffer has not, it can be read behind the chain alone.
            is_same = found is not None and self.row_dimensions.get(real, found) == found
            dimensions |= {real: found if found and is_same else [], store.buffer: own}
        self.row_dimensions |= dimensions
        self._loaded += loaded
        self._whole += whole
        self.parts.append(part)
        return True

    def _reads_own_row(self, load: Any, part: Part) -> bool:
        """Whether a load reads the current row, or a buffer that the chain has not written yet."""
        real, indices = self.accesses.real(load.source, load.indices)
        dimensions = self.row_dimensions.get(real)
        if dimensions is None:
            return True
        # Of a sum over all rows, which has no row dimensions, nothing can be read before the end.
        return len(dimensions) == len(part.rows) and all(
            indices[dimension].same_as(var)
            for dimension, var in zip(dimensions, part.rows, strict=True)
        )


def _chain(
    kernel_stages: Sequence[Stage],
    proof: _Proof,
    extents: tuple[int, ...],
    internal: Sequence[Any],
    endings: Sequence[Epilogue],
) -> Chain:
    """The chain of which there is a proof."""
    accesses, parts = proof.accesses, proof.parts
    direct = [store.buffer for part in parts for store in part.stage.stores]
    own_endings = [ending for ending in endings if is_among(ending.taken, direct)]
    inside = [part.stage for part in parts] + [ending.stage for ending in own_endings]
    outside = [
        buffer
        for stage in kernel_stages
        if not any(stage is other for other in inside)
        for buffer in (*accesses.loaded(stage), *accesses.stored(stage))
    ]
    # A buffer with views is accessed in memory.
    based = [view.base for view in accesses.views]
    row_dimensions = {buffer: proof.row_dimensions[buffer] for buffer in direct}
    local = [
        buffer
        for buffer, dimensions in row_dimensions.items()
        if dimensions and is_among(buffer, internal) and not is_among(buffer, [*outside, *based])
    ]
    return Chain(extents, parts, row_dimensions, local, own_endings, accesses)


def _endings(
    kernel_stages: Sequence[Stage],
    parts: Sequence[Part],
    internal: Sequence[Any],
    accesses: Accesses,
) -> list[Epilogue]:
    """The epilogues of sums over all rows that read, besides the sum, arguments alone.

    They are computed where the chain is, so what they store nothing accesses between the sum and
    them.
    """
    written = [buffer for stage in kernel_stages for buffer in accesses.stored(stage)]
    return [
        ending
        for part in parts
        if part.role is Role.DOWN
        for ending in epilogues_of(part.stage, kernel_stages, internal)
        if ending.stage.values[0].same_as(ending.stage.stores[0].value)
        and all(
            not is_among(buffer, written) or buffer.same_as(ending.taken)
            for buffer in accesses.loaded(ending.stage)
        )
        and not any(
            is_among(buffer, [*accesses.loaded(between), *accesses.stored(between)])
            for between in _between(part.stage, ending.stage, kernel_stages)
            for buffer in accesses.stored(ending.stage)
        )
    ]


def _between(first: Stage, last: Stage, kernel_stages: Sequence[Stage]) -> list[Stage]:
    """The stages behind one and in front of another."""
    names = [stage.name for stage in kernel_stages]
    return list(kernel_stages[names.index(first.name) + 1 : names.index(last.name)])


def _row_dimensions(indices: Sequence[Any], part: Part) -> list[int] | None:
    """The dimensions that are the index of the row, in the order of the row's variables.

    None if these are not plain variables, each in one dimension. What a sum over all rows stores
    has no such dimensions: the list is empty, and the chain must not read the sum.
    """
    if part.role is Role.DOWN:
        return []
    dimensions = []
    for var in part.rows:
        dependent = [dimension for dimension, index in enumerate(indices) if uses(index, var)]
        if len(dependent) != 1 or not indices[dependent[0]].same_as(var):
            return None
        dimensions.append(dependent[0])
    return dimensions


def _pays(chain: Chain, processor: Processor, small: int, alone: bool) -> bool:
    """Whether rows are many, long enough for vectors and, where several stages or walks share them,
    short enough for a cache.

    `alone` says that the kernel has one stage.
    """
    with_rows = [part for part in chain.parts if part.inner]
    work = sum(part.stage.work for part in with_rows)
    reduces_rows = any(part.role is Role.ALONG for part in with_rows)
    in_step = is_step(small)
    # Several stages are fused for a reduction along rows; a single one may be of a kind that other
    # schedules do badly (`_rows_of`). A map behind another stage is an epilogue rather.
    if in_step:
        is_worth_a_loop = len(with_rows) > 1
    else:
        is_worth_a_loop = len(chain.parts) == 1 and (chain.parts[0].role is not Role.MAP or alone)
    # What a single map reads and writes of a row, it does once.
    is_one_map = len(chain.parts) == 1 and chain.parts[0].role is Role.MAP
    return (
        (reduces_rows or is_worth_a_loop)
        and work >= small
        and chain.rows >= (MIN_STEP_ROWS if in_step else _MIN_ROWS)
        and (is_one_map or row_bytes(chain) <= processor.row_bytes)
    )


def row_bytes(chain: Chain) -> int:
    """The bytes of all that a chain accesses for one row, each tensor counted once."""
    sizes: dict[Any, int] = {}
    for part in chain.parts:
        for access in (*part.stage.loads, *part.stage.stores):
            buffer = buffer_of(access)
            elements = math.prod(static(extent) or 1 for extent in buffer.shape)
            depends_on_row = any(uses(access, var) for var in part.rows)
            # What is the same for each row, such as a scale by channel, counts as a whole.
            row_elements = elements // chain.rows if depends_on_row else elements
            sizes[buffer] = max(sizes.get(buffer, 0), row_elements * bits(str(buffer.dtype)) // 8)
    return sum(sizes.values())


def insert_chain(root: Any, chain: Chain, statement: Any) -> Any:
    """A kernel's root block in which a statement replaces a chain, where its last stage was."""
    statements: list[Any] = []
    last = chain.parts[-1].stage.name
    for old in statements_of(root.block.body):
        nest = loop_nest(old)
        name = "" if nest is None else str(nest[1].block.name_hint)
        if not chain.has(name):
            statements.append(old)
        elif name == last:
            statements.append(statement)
    dropped = [*chain.local, *(ending.taken for ending in chain.endings)]
    buffers = [b for b in root.block.alloc_buffers if not is_among(b, dropped)]
    return replace_statements(root, statements, buffers)
