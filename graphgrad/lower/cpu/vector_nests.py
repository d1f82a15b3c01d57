"""Nests in vectors for what TVM's primitives do not vectorize, such as reads where data choose.

    for i, j:                              for i in parallel, for each vector of j:
      sums[i, j] = 0                         total[lanes] = 0
      for k:                                 for k:
        cell = place(x[i, j]) + k              cell[lanes] = place(x[i, lanes]) + k
        if cell < n:                           total[lanes] += select(cell < n, t[i, cell'], 0)
          sums[i, j] += t[i, cell]           sums[i, lanes] = total[lanes]

with cell' = select(cell < n, cell, 0). Neighboring results are computed side by side, whatever
their block keeps in local memory and however it reads (see `vector_values.py`). Loops over terms
whose variables choose places stand outside of the others, so that places are found once.
"""

from __future__ import annotations

import contextlib
import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlock

from ...fallback.indices.conditions import conjuncts
from ...fallback.indices.linear_system import analyzer_of
from ...ir.kernel_structure import (
    Load,
    Stage,
    buffer_of,
    is_among,
    is_conditional,
    loop_nest,
    statements_of,
    static,
    stride,
    substitute_values,
    uses,
)
from ...ir.loops import block, fused, loop, loops, sequence, variable
from ...ir.visits import nodes_in, replace_nodes
from ..kernels.blocked_sums import added_term, sum_in_blocks
from ..kernels.independent_loops import are_plain, trip_count, writes_its_own
from .clamps import choose_where_clamped, is_clamped, unclamped
from .map import has_uniform_conditions, leading_count
from .residue_indices import residue_of
from .tuning import Processor
from .vector_values import (
    NotInVectors,
    VectorValues,
    axes_of,
    common_conditions,
    distinct,
    lanes_of,
    under,
)

_SPATIAL = int(tirx.IterVar.DataPar)

_MAX_UNROLLED = 8
"""The most terms that become straight code."""

_MANY = 16
"""Terms that are not few: those of a sum over no window of a pooling."""

_MIN_OPERATIONS = 8
"""Operations for each read that is collected lane by lane, below which vectors do not pay."""


@dataclass(frozen=True)
class _Loops:
    """The loops of a nest, each as its variable and number of trips.

    Attributes
    ----------
    outer : list
        Over results, in order, without the one over lanes.
    lane : tuple
        Over results that are neighbors in memory.
    reduced : list
        Over terms, those first by which places are chosen.
    """

    outer: list[tuple[Any, int]]
    lane: tuple[Any, int]
    reduced: list[tuple[Any, int]]


def serves(stage: Stage, processor: Processor) -> bool:
    """Whether a stage is better computed by a nest in vectors than by TVM's primitives.

    It reads at places that data choose, or neighbors under a condition that tells them apart or at
    an index that is clamped. Or data select what it adds up, or reads, of a window.
    """
    by_data = any(map(_chosen_by_data, stage.loads))
    clamped = any(map(is_clamped, stage.loads))
    last = stage.spatial[-1] if stage.spatial else None
    selected = _selects_by_data(stage, processor)
    # Most stages are neither; these questions are cheap, those below are not.
    if not (by_data or stage.conditional or clamped or selected) or last is None:
        return False
    if last.extent is None:
        return False
    strides = {stride(unclamped(load, last.var), last.var) for load in stage.loads}
    is_smooth = strides == {stride(load, last.var) for load in stage.loads} <= {
        0,
        1,
    } and has_uniform_conditions(stage, last)
    if (selected or by_data) and is_smooth:  # whole vectors are left to TVM's primitives
        return bool(last.extent % processor.lanes(stage.dtype))
    if selected:
        return True
    if by_data:
        collected = [a for a in distinct(stage.loads) if stride(a, last.var) not in (0, 1)]
        return stage.operations >= _MIN_OPERATIONS * len(collected)
    # A map under a condition on data would read one by one: no vector is without that condition.
    by_data = not stage.reduced and bool(nodes_in(_conditions(stage.values), Load))
    return strides <= {0, 1} and 1 in strides and not is_smooth and not by_data


def _selects_by_data(stage: Stage, processor: Processor) -> bool:
    """Whether a stage adds up, or spreads, those elements of a small window that data select.

    LLVM vectorizes sums over windows by itself, but not selections of their terms.
    """
    last = stage.spatial[-1] if stage.spatial else None
    if last is None or math.prod(axis.extent or _MANY for axis in stage.reduced) >= _MANY:
        return False
    if not stage.reduced and all(stride(load, last.var) is not None for load in stage.loads):
        return False
    is_wide = (last.extent or 0) >= processor.lanes("float32") // 2
    selections = [node for value in stage.values for node in nodes_in(value, tirx.Select)]
    return is_wide and any(nodes_in(node.condition, Load) for node in selections)


def _chosen_by_data(load: Any) -> bool:
    return any(nodes_in(index, Load) for index in load.indices)


def _gathers(body: Any, around: Mapping[Any, int]) -> bool:
    """Whether an index of what a body reads is more than an expression in variables of loops."""
    indices = [index for load in nodes_in(body, Load) for index in load.indices]
    variables = [var for index in indices for var in nodes_in(index, tvm.ir.Var)]
    return any(nodes_in(index, Load) for index in indices) or not all(
        var in around for var in variables
    )


def vector_nest(statement: Any, processor: Processor, small: int) -> Any | None:
    """The statement of a nest around one block, with neighboring results as lanes of vectors.

    None if it has fewer points than `small`, or cannot be computed so.
    """
    nest = loop_nest(statement)
    if nest is None:
        return None
    loops, realize = nest
    inside = realize.block
    if inside.match_buffers or inside.alloc_buffers or not are_plain(loops):
        return None
    around = {each.loop_var: int(each.extent) for each in loops}
    values = dict(zip([axis.var for axis in inside.iter_vars], realize.iter_values, strict=True))
    if trip_count(loops) < small or not all(
        static(v) is not None or v in around for v in values.values()
    ):
        return None
    body = substitute_values(inside.body, values)
    init = substitute_values(inside.init, values) if inside.init is not None else None
    if init is not None and not all(isinstance(s, tirx.BufferStore) for s in statements_of(init)):
        return None
    axes = [axis for axis in inside.iter_vars if int(axis.iter_type) == _SPATIAL]
    axes = [axis for axis in axes if values[axis.var] in around]
    if not all(writes_its_own(inside, axis.var) for axis in axes):
        return None
    spatial = dict.fromkeys(values[axis.var] for axis in axes)
    try:
        return _Nest(inside, body, init, around, spatial, processor).statement()
    except NotInVectors:
        return None


def _chooses_places(body: Any, var: Any) -> bool:
    """Whether a variable is anything else than an index of its own."""
    indices = [index for load in nodes_in(body, Load) for index in load.indices]
    return uses(body, var) > sum(index.same_as(var) for index in indices)


def _conditions(body: Any) -> list[Any]:
    """The conditions on which a body branches or chooses what to evaluate."""
    choices = [call.args[0] for call in nodes_in(body, tvm.ir.Call) if is_conditional(call)]
    return choices + [branch.condition for branch in nodes_in(body, tirx.IfThenElse)]


def _one_element_each(accesses: Sequence[Any]) -> bool:
    """Whether all accesses to a buffer are to the same element."""
    return all(
        not buffer_of(a).same_as(buffer_of(b))
        or all(map(tvm_ffi.structural_equal, a.indices, b.indices))
        for a, b in combinations(accesses, 2)
    )


def _updated(store: Any, condition: Any) -> Any:
    """A new total where a condition holds, else the old one; of a sum, with 0 as its term."""
    total, term = tirx.BufferLoad(store.buffer, store.indices), added_term(store)
    if term is None:
        return tirx.Select(condition, store.value, total)
    # So it is recognized as a sum, whose blocks keep rounding errors small.
    return total + tirx.Select(condition, term, tirx.const(0, str(total.ty)))


class _Nest:
    """Writes the nest of one block.

    Parameters
    ----------
    inside : SBlock
    body, init : Stmt
        What it does, in terms of the loops around; `init` may be None.
    around : dict
        The number of trips of these, by variable.
    spatial : dict
        Those over results, as keys.
    processor : Processor
    """

    def __init__(
        self,
        inside: SBlock,
        body: Any,
        init: Any | None,
        around: dict[Any, int],
        spatial: Mapping[Any, None],
        processor: Processor,
    ):
        self._name, self._body, self._init = str(inside.name_hint), body, init
        self._local = [node.buffer for node in nodes_in(body, tirx.AllocBuffer)]
        stores = [
            s for s in nodes_in(body, tirx.BufferStore) if not is_among(s.buffer, self._local)
        ]
        if not stores or nodes_in(body, tirx.Evaluate):  # a call may do anything
            raise NotInVectors
        self._written = list(dict.fromkeys(store.buffer for store in stores))
        reads = [load for load in nodes_in(body, Load) if is_among(load.source, self._written)]
        if not _one_element_each([*stores, *reads]) or (init is None and reads):
            raise NotInVectors
        self._stores = [next(s for s in stores if s.buffer.same_as(b)) for b in self._written]
        self._around = around
        self._is_gather = _gathers(body, around)
        self._loops = self._split(stores, spatial)
        self._body = choose_where_clamped(body, self._loops.lane[0])
        # The vectors of the widest type are registers, of others parts of one.
        dtypes = ["int32", *(str(buffer.dtype) for buffer in self._written)]  # as conditions are
        widest = min(map(processor.lanes, dtypes))
        lanes = lanes_of(self._loops.lane[1], widest)
        if lanes == 1:
            raise NotInVectors
        self._lane_counts = [lanes]
        if (
            init is not None
            and self._loops.lane[1] >= processor.sum_vectors * widest
            and not self._is_gather
        ):
            self._lane_counts.insert(0, lanes * processor.sum_vectors)

    def _split(self, stores: Sequence[Any], spatial: Mapping[Any, None]) -> _Loops:
        (lane, *_) = [v for v in spatial if all(stride(s, v) == 1 for s in stores)] or [None]
        if lane is None:
            raise NotInVectors
        reduced = [var for var in self._around if var not in spatial]
        if bool(reduced) != (self._init is not None):
            raise NotInVectors
        if len({str(var.ty) for var in spatial}) > 1:  # some become one loop
            raise NotInVectors
        reduced.sort(key=lambda var: not _chooses_places(self._body, var))
        pairs = list(self._around.items())
        return _Loops(
            [(var, trips) for var, trips in pairs if var in spatial and not var.same_as(lane)],
            (lane, self._around[lane]),
            [(var, self._around[var]) for var in reduced],
        )

    def statement(self) -> Any:
        """The nest, its outer loops in parallel."""
        (var, trips), outer = self._loops.lane, list(self._loops.outer)
        lanes, spans = self._lanes_and_spans()
        vectors, left = divmod(trips, lanes)
        dtype, parts = str(var.ty), []
        for first, end in spans:
            number = variable("vector", dtype)
            start = number * tirx.const(lanes, dtype)
            body = self._vector(lanes, start, {number: (first, end)})
            if len(spans) == 1 and not left:
                outer.append((number, vectors))
                parts.append(body)
            else:
                # Without loops around, those over vectors are what threads share.
                kind = tirx.ForKind.SERIAL if outer else tirx.ForKind.PARALLEL
                parts.append(loop(number, end - first, body, kind, first))
        if left:
            parts.append(self._vector(left, tirx.const(vectors * lanes, dtype), {}))
        count = leading_count([extent for _, extent in outer])
        inner = loops(outer[count:], sequence(*parts))
        return fused(outer[:count], inner, tirx.ForKind.PARALLEL)

    def _lanes_and_spans(self) -> tuple[int, list[tuple[int, int]]]:
        """The lanes of a vector, as many as there are spans for, and the spans."""
        *more, least = self._lane_counts
        for lanes in more:
            with contextlib.suppress(NotInVectors):
                return lanes, self._spans(lanes)
        return least, self._spans(least)

    def _spans(self, lanes: int) -> list[tuple[int, int]]:
        """The vectors, divided into those in which all choices are known for all terms, and others.

        The choices are those that differ from lane to lane and by indices alone.
        """
        var, trips = self._loops.lane
        vectors = trips // lanes
        parts = [part for c in _conditions(self._body) for part in conjuncts(c)]
        conditions = [c for c in parts if uses(c, var) and not nodes_in(c, Load)]
        # Remainders differ in any vector: a mask chooses, and both sides are read at other places.
        conditions = [c for c in conditions if residue_of(c) is None]
        if not conditions:
            return [(0, vectors)]

        def known_in(number: int) -> bool:
            ranges = {v: (0, trips) for v, trips in self._around.items()}
            ranges[var] = (number * lanes, (number + 1) * lanes)
            analyzer = analyzer_of(axes_of(ranges))
            return all(analyzer.can_prove(c) or analyzer.can_prove(tirx.Not(c)) for c in conditions)

        # Borders are at both ends, so what is inside is looked for from the middle.
        inside = next(
            (n for n in (vectors // 2, vectors // 4, 3 * vectors // 4) if known_in(n)), None
        )
        if inside is None and not self._is_gather:
            raise NotInVectors
        if inside is None:
            return [(0, vectors)]
        first = bisect_left(range(inside), True, key=known_in)
        last = bisect_left(range(inside, vectors), True, key=lambda n: not known_in(n))
        if 2 * (inside + last - first) < vectors and not self._is_gather:
            raise NotInVectors  # most neighbors would be read one by one
        cuts = [0, first, inside + last, vectors]
        return [(start, end) for start, end in pairwise(cuts) if start < end]

    def _vector(self, lanes: int, start: Any, numbers: Mapping[Any, tuple[int, int]]) -> Any:
        """The statement that computes one vector of results; `numbers` are those of vectors."""
        var, _ = self._loops.lane
        lane = variable("lane", str(var.ty))
        ranges = {v: (0, trips) for v, trips in self._around.items() if not v.same_as(var)}
        values = VectorValues(lane, lanes, {**ranges, **numbers}, self._local)
        position = {var: start + lane}
        if self._init is None:
            stores = values.run(substitute_values(self._body, position))
            if any(condition is not None for _, condition in stores):
                raise NotInVectors
            results = [values.each_lane(store) for store, _ in stores]
            return self._block(values.used([s for s, _ in stores]), results, values.buffers)
        return self._reduction(values, lane, position)

    def _reduction(self, values: VectorValues, lane: Any, position: Any) -> Any:
        totals = [values.vector(str(buffer.dtype)) for buffer in self._written]

        def in_totals(node: Any) -> Any:
            for buffer, total in zip(self._written, totals, strict=True):
                if buffer_of(node).same_as(buffer):
                    if isinstance(node, Load):
                        return tirx.BufferLoad(total, [lane])
                    return tirx.BufferStore(total, node.value, [lane])
            return node

        kinds = (Load, tirx.BufferStore)
        begin = [
            values.each_lane(substitute_values(replace_nodes(store, kinds, in_totals), position))
            for store in nodes_in(self._init, tirx.BufferStore)
        ]
        alike, body = common_conditions(self._body, self._loops.lane[0], self._local)
        step = substitute_values(replace_nodes(body, kinds, in_totals), position)
        updates = []
        for store, condition in values.run(step):
            value = store.value if condition is None else _updated(store, condition)
            updates.append(tirx.BufferStore(store.buffer, value, [lane]))
        term = sequence(*values.used(updates), *map(values.each_lane, updates))
        if alike:
            term = under(alike, term)
        points = math.prod(trips for _, trips in self._loops.reduced)
        kind = tirx.ForKind.UNROLLED if points <= _MAX_UNROLLED else tirx.ForKind.SERIAL
        for var, trips in reversed(self._loops.reduced):
            term = loop(var, trips, term, kind)
        results = [
            values.each_lane(
                tirx.BufferStore(
                    store.buffer,
                    tirx.BufferLoad(total, [lane]),
                    [substitute_values(index, position) for index in store.indices],
                )
            )
            for store, total in zip(self._stores, totals, strict=True)
        ]
        return self._block([*begin, sum_in_blocks(term)], results, [*values.buffers, *totals])

    def _block(self, statements: Sequence[Any], results: Sequence[Any], buffers: Any) -> Any:
        return block(self._name, *statements, *results, buffers=list(dict.fromkeys(buffers)))
