"""The loop over rows that does all stages of a chain.

    tasks                             in parallel: of neighboring rows
      rows
        stage after stage             in vectors; what is left of a row in shorter ones
    sums over all rows                of the tasks' partial sums

A row's intermediate results stay in buffers of one row, and so in the cache. How rows are cut into
tasks, and terms into partial sums, depends on shapes and the vector unit alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.tirx import ForKind

from ....ir.kernel_structure import Load, buffer_of, is_among, static, substitute_values, volume
from ....ir.loops import block, loop, loops, sequence, unravel, variable
from ....ir.tensor import bits
from ..map import MIN_PARALLEL_TRIPS
from ..vector_unit import VectorUnit
from .accumulation import Accumulation
from .chain import Chain, Part, Role
from .group import groups

_SUM_VECTORS = 4
"""Independent partial results, in vectors: hides the latency of an addition."""

_MAP_VECTORS = 2
"""Vectors of a map that are computed side by side."""

_MIN_TASK_ROWS = 32
"""Rows of a task, at least, where it keeps partial sums over rows."""

_MIN_HEAP_BYTES = 1024
"""Bytes from which on TVM allocates a buffer where it is used, and not on the stack."""

_Body = Callable[[list[Any], Any, Any], list[Any]]
"""From the inner axes' values, the position that they make and the lane, to statements."""


def emit(chain: Chain, unit: VectorUnit, rigid: Sequence[Any] = ()) -> Any:
    """The statement that computes a chain's stages.

    Parameters
    ----------
    chain : Chain
    unit : VectorUnit
    rigid : sequence of Buffer
        What must be accessed inside its bounds along each axis: a walk along several axes is not
        one along the last that goes beyond its end.
    """
    return _Emitter(chain, unit, rigid).nest()


class _Emitter:
    """Writes the loops around the stages of one chain."""

    def __init__(self, chain: Chain, unit: VectorUnit, rigid: Sequence[Any]):
        self._chain, self._unit, self._rigid = chain, unit, rigid
        self._dtype = str(chain.parts[0].rows[0].ty.dtype)
        sums = any(part.role is Role.DOWN for part in chain.parts)
        most = chain.rows // _MIN_TASK_ROWS if sums else chain.rows
        self._each = -(-chain.rows // max(min(most, MIN_PARALLEL_TRIPS), 1))
        self._tasks = -(-chain.rows // self._each)
        self._task = variable("task", self._dtype)
        self._row = variable("row", self._dtype)
        self._of_row: list[Any] = []
        self._of_task: list[Any] = []
        self._partial: list[tuple[Part, Accumulation, Any]] = []
        self._kept = {b: self._row_buffer(b) for b in chain.places if self._is_kept(b)}

    def nest(self) -> Any:
        """The loops, and the sums of what the tasks have added up."""
        # What one vectorized loop alone writes and reads, TVM would shrink to one element of it.
        vectors = [buffer for buffer in self._of_row if int(buffer.shape[0]) > 1]
        touched = map(self._first_touch, vectors)
        body = sequence(*touched, *map(self._group, groups(self._chain)))
        each = self._number(self._each)
        trips = each
        if self._tasks * self._each != self._chain.rows:
            trips = tirx.min(self._number(self._chain.rows) - self._task * each, each)
        rows = loop(self._row, trips, block("row", body, buffers=self._of_row))
        started = [self._first_touch(buffer) for buffer in self._of_task]
        started += [self._clear_sums(*one) for one in self._partial]
        task = block("task", *started, rows, buffers=self._of_task)
        tasks = loop(self._task, self._tasks, task, ForKind.PARALLEL)
        totals = [self._total(*one) for one in self._partial]
        return block("rows", tasks, *totals, buffers=[buffer for _, _, buffer in self._partial])

    def _number(self, value: int) -> Any:
        return tirx.const(value, self._dtype)

    def _is_kept(self, buffer: Any) -> bool:
        """Whether a row of a buffer is read from a copy; numbers always are."""
        places = self._chain.places[buffer]
        rest = [e for i, e in enumerate(buffer.shape) if i not in places]
        is_number = bool(places) and all(static(extent) == 1 for extent in rest)
        return is_number or is_among(buffer, self._chain.local)

    def _row_buffer(self, buffer: Any) -> Any:
        """A buffer for one row of what another one holds."""
        places = self._chain.places[buffer]
        length = math.prod(int(n) for i, n in enumerate(buffer.shape) if i not in places)
        size = length * bits(str(buffer.dtype)) // 8
        kept = tirx.decl_buffer([self._number(length)], str(buffer.dtype), "row")
        (self._of_row if size < _MIN_HEAP_BYTES else self._of_task).append(kept)
        return kept

    def _first_touch(self, buffer: Any) -> Any:
        """A store that makes TVM allocate all of a buffer here, not in the loops below."""
        zero = tirx.const(0, str(buffer.dtype))
        return tirx.BufferStore(buffer, zero, [self._number(0)])

    def _group(self, parts: Sequence[Part]) -> Any:
        """The statement that computes stages that share a walk along the row."""
        if not parts[0].inner:
            return sequence(*(self._number_of_row(part) for part in parts))
        width = self._width(parts)
        bodies = []
        before, behind = [], []
        for part in parts:
            if part.role is Role.MAP:
                bodies.append(self._mapped(part))
            elif part.role is Role.DOWN:
                bodies += [self._accumulate_down(part, one) for one in part.accumulations]
            else:
                sums = [self._accumulator(one, width) for one in part.accumulations]
                pairs = list(zip(part.accumulations, sums, strict=True))
                before += [self._vector(width, _start_accumulator(*pair)) for pair in pairs]
                bodies += [self._accumulate_along(part, *pair) for pair in pairs]
                behind += self._combine_lanes(part, pairs, width)

        def body(at: list[Any], position: Any, lane: Any) -> Any:
            return [statement for one in bodies for statement in one(at, position, lane)]

        return sequence(*before, self._walk(parts, width, body), *behind)

    def _number_of_row(self, part: Part) -> Any:
        """The statement that computes one number of a row from others."""
        (store,) = part.stage.stores
        return sequence(*self._stored(part, store, self._with(part, [], part.value), []))

    def _mapped(self, part: Part) -> _Body:
        (store,) = part.stage.stores
        return lambda at, _, __: self._stored(part, store, self._with(part, at, part.value), at)

    def _accumulator(self, one: Accumulation, width: int) -> Any:
        buffer = tirx.decl_buffer([self._number(width)], str(one.store.buffer.dtype), "partial")
        self._of_row.append(buffer)
        return buffer

    def _accumulate_along(self, part: Part, one: Accumulation, buffer: Any) -> _Body:
        def added(at: list[Any], _: Any, lane: Any) -> list[Any]:
            return [_combined(one, buffer, lane, self._with(part, at, one.element))]

        return added

    def _combine_lanes(
        self, part: Part, pairs: Sequence[tuple[Accumulation, Any]], width: int
    ) -> list[Any]:
        """The statement that reduces each accumulator's lanes to one, by halves, and stores it.

        The last step has two lanes if it can: a choice between single numbers would be a branch,
        which no processor foresees.
        """

        def folding(one: Accumulation, buffer: Any, half: int) -> Callable[[Any], Any]:
            def folded(lane: Any) -> Any:
                return _combined(one, buffer, lane, tirx.BufferLoad(buffer, [lane + half]))

            return folded

        steps = []
        half = width // 2
        while half:
            lanes = max(half, min(2, width // 2))
            steps += [self._vector(lanes, folding(*pair, half)) for pair in pairs]
            half //= 2
        for one, buffer in pairs:
            steps += self._stored(part, one.store, tirx.BufferLoad(buffer, [self._number(0)]), [])
        return steps

    def _accumulate_down(self, part: Part, one: Accumulation) -> _Body:
        """The statement that adds a row to the task's partial sums over rows."""
        shape = [self._tasks, volume(part.inner)]
        dtype = str(one.store.buffer.dtype)
        sums = tirx.decl_buffer(list(map(self._number, shape)), dtype, "partial_sums")
        self._partial.append((part, one, sums))

        def added(at: list[Any], position: Any, _: Any) -> list[Any]:
            place = [self._task, position]
            element = self._with(part, at, one.element)
            value = one.combine(tirx.BufferLoad(sums, place), element)
            return [tirx.BufferStore(sums, value, place)]

        return added

    def _clear_sums(self, part: Part, one: Accumulation, sums: Any) -> Any:
        def first(_: list[Any], position: Any, __: Any) -> list[Any]:
            return [tirx.BufferStore(sums, one.start, [self._task, position])]

        return self._walk([part], self._width([part]), first)

    def _total(self, part: Part, one: Accumulation, sums: Any) -> Any:
        """The statement that adds up the partial sums, task after task, and stores the results.

        Each is stored at one place of the program, so that an accumulator may be overwritten.
        """
        task = variable("task", self._dtype)
        first = self._number(0)

        def added(_: list[Any], position: Any, __: Any) -> list[Any]:
            so_far = tirx.BufferLoad(sums, [first, position])
            more = tirx.BufferLoad(sums, [task + 1, position])
            return [tirx.BufferStore(sums, one.combine(so_far, more), [first, position])]

        names = [variable("inner", self._dtype) for _ in part.inner]
        position = first
        for name, axis in zip(names, part.inner, strict=True):
            position = position * volume([axis]) + name
        store = self._ended(part, one, names, tirx.BufferLoad(sums, [first, position]))
        trips = [volume([axis]) for axis in part.inner]
        stored = loops(zip(names, trips, strict=True), store)
        if self._tasks == 1:
            return stored
        walk = self._walk([part], self._width([part]), added)
        return sequence(loop(task, self._tasks - 1, walk), stored)

    def _ended(self, part: Part, one: Accumulation, at: list[Any], value: Any) -> Any:
        """The store of a sum over all rows, or of what a map makes of it."""
        values = self._values(part, at)
        ending = next(
            (e for e in self._chain.endings if e.taken.same_as(one.store.buffer)),
            None,
        )
        if ending is None:
            place = [substitute_values(index, values) for index in one.store.indices]
            return tirx.BufferStore(one.store.buffer, value, place)
        (store,) = ending.stage.stores
        taken = {axis.var: self._number(0) for axis in ending.stage.axes}
        taken.update({to.var: values[var] for var, to in ending.along.items()})

        def total(load: Any) -> Any:
            return value if load.source.same_as(ending.taken) else load

        made = substitute_values(
            tvm_ffi.structural_map(ending.stage.values[0], (Load, total)), taken
        )
        return tirx.BufferStore(
            store.buffer, made, [substitute_values(index, taken) for index in store.indices]
        )

    def _width(self, parts: Sequence[Part]) -> int:
        """How many elements to compute side by side: some whole vectors."""
        lanes = min(self._unit.lanes(part.stage.dtype) for part in parts)
        length = volume(parts[0].inner[-self._walked(parts) :])
        plain = not any(part.stage.calls for part in parts)
        reduces = any(part.role is Role.ALONG for part in parts)
        most = _SUM_VECTORS if reduces and plain else _MAP_VECTORS
        while most > 1 and most * lanes > length:
            most //= 2
        return most * lanes

    def _walk(self, parts: Sequence[Part], width: int, body: _Body) -> Any:
        """Loops over the inner axes of parts around statements, in vectors of some width.

        Axes that are walked through as one stand still but the last, which goes on beyond its end:
        to the same addresses, without divisions.
        """
        inner, count = parts[0].inner, self._walked(parts)
        outer, walked = inner[: len(inner) - count], inner[len(inner) - count :]
        names = [variable("inner", self._dtype) for _ in outer]
        before = self._number(0)
        for name, axis in zip(names, outer, strict=True):
            before = before * volume([axis]) + name
        length = volume(walked)

        def at(place: Any, lane: Any) -> Any:
            values = [*names, *[self._number(0)] * (count - 1), place]
            return sequence(*body(values, before * length + place, lane))

        steps = self._vectors(length, width, at)
        trips = [volume([axis]) for axis in outer]
        return loops(zip(names, trips, strict=True), sequence(*steps))

    def _walked(self, parts: Sequence[Part]) -> int:
        """How many of the innermost axes all parts walk through as if they were one.

        The result of a row stands still meanwhile.
        """
        accesses = [load for part in parts for load in part.stage.loads]
        accesses += [s for part in parts if part.role is not Role.ALONG for s in part.stage.stores]
        if any(is_among(buffer_of(access), self._rigid) for access in accesses):
            return 1
        return min(part.walked for part in parts)

    def _vectors(self, length: int, width: int, body: Callable[[Any, Any], Any]) -> list[Any]:
        """Loops over some elements in vectors: of a width, then of halves of it."""
        steps = []
        start = 0
        while start < length:
            count = (length - start) // width
            if count:
                number = variable("vector", self._dtype)
                first = start + (number * width if count > 1 else self._number(0))
                step = self._vector(width, partial(_offset_body, body, first))
                steps.append(loop(number, count, step) if count > 1 else step)
            start += count * width
            width //= 2
        return steps

    def _vector(self, width: int, body: Callable[[Any], Any]) -> Any:
        """A loop over the lanes of a vector, in a block, as those of schedules are."""
        lane = variable("lane", self._dtype)
        return loop(lane, width, block("vector", body(lane)), ForKind.VECTORIZED)

    def _with(self, part: Part, at: list[Any], value: Any) -> Any:
        """A value of a part's stage for a row and its inner axes' values."""

        def kept(load: Any) -> Any:
            if load.source not in self._kept:
                return load
            return tirx.BufferLoad(self._kept[load.source], self._in_row(load.source, load.indices))

        value = tvm_ffi.structural_map(value, (Load, kept))
        return substitute_values(value, self._values(part, at))

    def _stored(self, part: Part, store: Any, value: Any, at: list[Any]) -> list[Any]:
        """The stores of a result: to the buffer of a row, to memory, or to both."""
        buffer, values = store.buffer, self._values(part, at)
        place = [substitute_values(index, values) for index in store.indices]
        if buffer not in self._kept:
            return [tirx.BufferStore(buffer, value, place)]
        kept, inside = self._kept[buffer], self._in_row(buffer, place)
        own = tirx.BufferStore(kept, value, inside)
        if is_among(buffer, self._chain.local):
            return [own]
        return [own, tirx.BufferStore(buffer, tirx.BufferLoad(kept, inside), place)]

    def _in_row(self, buffer: Any, indices: Sequence[Any]) -> list[Any]:
        """Indices of a buffer as that of its row, in which all other axes are one."""
        places = self._chain.places[buffer]
        position = self._number(0)
        for place, (index, extent) in enumerate(zip(indices, buffer.shape, strict=True)):
            if place not in places:
                position = position * extent + index
        return [position]

    def _values(self, part: Part, at: list[Any]) -> dict[Any, Any]:
        """The values of a part's variables in a row, given its inner axes' values, if it has."""
        row = self._task * self._each + self._row
        rows = [axis for axis in part.stage.axes if any(axis.var.same_as(v) for v in part.rows)]
        values = {axis.var: self._number(0) for axis in part.stage.axes if axis.extent == 1}
        indices = unravel(row, [volume([axis]) for axis in rows])
        values.update(zip(part.rows, indices, strict=True))
        values.update(zip((axis.var for axis in part.inner), at, strict=False))
        return values


def _offset_body(body: Callable[[Any, Any], Any], first: Any, lane: Any) -> Any:
    return body(first + lane, lane)


def _start_accumulator(one: Accumulation, buffer: Any) -> Callable[[Any], Any]:
    def started(lane: Any) -> Any:
        return tirx.BufferStore(buffer, one.start, [lane])

    return started


def _combined(one: Accumulation, buffer: Any, lane: Any, element: Any) -> Any:
    """The statement that combines an element with one of several accumulators."""
    value = one.combine(tirx.BufferLoad(buffer, [lane]), element)
    return tirx.BufferStore(buffer, value, [lane])
