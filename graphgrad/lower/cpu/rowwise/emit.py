"""The loop over rows that computes all stages of a chain.

    tasks                             in parallel; each has neighboring rows
      rows
        stage after stage             in vectors; the end of a row in shorter ones
    sums over all rows                of the tasks' partial sums

A row's intermediate results stay in buffers of one row, and so in the cache. How rows are divided
into tasks, and terms into partial sums, depends on shapes and the vector unit alone. So results do
not depend on the number of cores.
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
from ....ir.loops import MIN_HEAP_BYTES, block, loop, loops, sequence, unravel, variable
from ....ir.tensor import bits
from ..map import MIN_PARALLEL_TRIPS
from ..tuning import Processor
from .accumulation import Accumulation
from .chain import Chain, Part, Role
from .group import groups

_MAP_VECTORS = 2
"""The number of vectors of a map that are computed side by side."""

_MIN_TASK_ROWS = 32
"""The least number of rows of a task that keeps partial sums over rows."""

_Body = Callable[[list[Any], Any, Any], list[Any]]
"""The body of a walk along a row: given the inner axes' values, the position in the row that they
give, and the lane, returns the statements for one element."""


def emit(chain: Chain, processor: Processor, rigid: Sequence[Any] = ()) -> Any:
    """The statement that computes a chain's stages.

    Parameters
    ----------
    chain : Chain
    processor : Processor
    rigid : sequence of Buffer
        The buffers that must be accessed inside their bounds along each axis, because their layout
        may change. In others, several axes are walked through by an index of the last one that goes
        beyond its end.
    """
    return _Emitter(chain, processor, rigid).nest()


class _Emitter:
    """Writes the loops around the stages of one chain."""

    def __init__(self, chain: Chain, processor: Processor, rigid: Sequence[Any]):
        self._chain, self._processor, self._rigid = chain, processor, rigid
        self._dtype = str(chain.parts[0].rows[0].ty.dtype)
        has_row_sums = any(part.role is Role.DOWN for part in chain.parts)
        max_tasks = chain.rows // _MIN_TASK_ROWS if has_row_sums else chain.rows
        self._each = -(-chain.rows // max(min(max_tasks, MIN_PARALLEL_TRIPS), 1))
        # Fewer than were asked for, where these rounded-up tasks cover the rows sooner.
        self._tasks = -(-chain.rows // self._each)
        self._task = variable("task", self._dtype)
        self._row = variable("row", self._dtype)
        self._of_row: list[Any] = []
        self._of_task: list[Any] = []
        self._partial: list[tuple[Part, Accumulation, Any]] = []
        self._kept = {b: self._row_buffer(b) for b in chain.row_dimensions if self._is_kept(b)}

    def nest(self) -> Any:
        """The loops over tasks and rows, and then the sums of the tasks' partial sums."""
        # A buffer that one vectorized loop alone writes and reads, TVM would shrink to one element.
        vectors = [buffer for buffer in self._of_row if int(buffer.shape[0]) > 1]
        touches = map(self._first_touch, vectors)
        body = sequence(*touches, *map(self._group, groups(self._chain)))
        task_rows = self._number(self._each)
        trips = task_rows
        if self._tasks * self._each != self._chain.rows:
            # The last task has fewer rows.
            trips = tirx.min(self._number(self._chain.rows) - self._task * task_rows, task_rows)
        rows = loop(self._row, trips, block("row", body, buffers=self._of_row))
        starts = [self._first_touch(buffer) for buffer in self._of_task]
        starts += [self._clear_sums(*sums) for sums in self._partial]
        task = block("task", *starts, rows, buffers=self._of_task)
        tasks = loop(self._task, self._tasks, task, ForKind.PARALLEL)
        totals = [self._total(*sums) for sums in self._partial]
        return block("rows", tasks, *totals, buffers=[buffer for _, _, buffer in self._partial])

    def _number(self, value: int) -> Any:
        return tirx.const(value, self._dtype)

    def _is_kept(self, buffer: Any) -> bool:
        """Whether a row of a buffer is kept in a buffer of its own; single numbers always are."""
        row_dimensions = self._chain.row_dimensions[buffer]
        row_shape = [n for i, n in enumerate(buffer.shape) if i not in row_dimensions]
        is_number = bool(row_dimensions) and all(static(extent) == 1 for extent in row_shape)
        return is_number or is_among(buffer, self._chain.local)

    def _row_buffer(self, buffer: Any) -> Any:
        """A new buffer for one row of another one, flattened."""
        row_dimensions = self._chain.row_dimensions[buffer]
        length = math.prod(int(n) for i, n in enumerate(buffer.shape) if i not in row_dimensions)
        size = length * bits(str(buffer.dtype)) // 8
        row_buffer = tirx.decl_buffer([self._number(length)], str(buffer.dtype), "row")
        # What is on the heap is allocated once for a task, not for each row.
        (self._of_row if size < MIN_HEAP_BYTES else self._of_task).append(row_buffer)
        return row_buffer

    def _first_touch(self, buffer: Any) -> Any:
        """A store that makes TVM allocate all of a buffer here, not in the loops below."""
        zero = tirx.const(0, str(buffer.dtype))
        return tirx.BufferStore(buffer, zero, [self._number(0)])

    def _group(self, parts: Sequence[Part]) -> Any:
        """The statement that computes the stages of a group, which share a loop along the row."""
        if not parts[0].inner:
            return sequence(*(self._number_of_row(part) for part in parts))
        width = self._width(parts)
        bodies = []
        before, behind = [], []
        for part in parts:
            if part.role is Role.MAP:
                bodies.append(self._mapped(part))
            elif part.role is Role.DOWN:
                bodies += [self._accumulate_down(part, a) for a in part.accumulations]
            else:
                sums = [self._accumulator(a, width) for a in part.accumulations]
                pairs = list(zip(part.accumulations, sums, strict=True))
                before += [self._vector(width, _start_accumulator(*pair)) for pair in pairs]
                bodies += [self._accumulate_along(part, *pair) for pair in pairs]
                behind += self._combine_lanes(part, pairs, width)

        def body(inner: list[Any], position: Any, lane: Any) -> Any:
            return [statement for write in bodies for statement in write(inner, position, lane)]

        return sequence(*before, self._walk(parts, width, body), *behind)

    def _number_of_row(self, part: Part) -> Any:
        """The statement that computes one number of a row from others."""
        (store,) = part.stage.stores
        return sequence(*self._stored(part, store, self._with(part, [], part.value), []))

    def _mapped(self, part: Part) -> _Body:
        """The body that stores an element of a map."""
        (store,) = part.stage.stores
        return lambda inner, _, __: self._stored(
            part, store, self._with(part, inner, part.value), inner
        )

    def _accumulator(self, accumulation: Accumulation, width: int) -> Any:
        """A new buffer for the lanes' partial results of a reduction along a row."""
        buffer = tirx.decl_buffer(
            [self._number(width)], str(accumulation.store.buffer.dtype), "partial"
        )
        self._of_row.append(buffer)
        return buffer

    def _accumulate_along(self, part: Part, accumulation: Accumulation, buffer: Any) -> _Body:
        """The body that combines an element of the row with its lane's partial result."""

        def added(inner: list[Any], _: Any, lane: Any) -> list[Any]:
            return [
                _combined(accumulation, buffer, lane, self._with(part, inner, accumulation.element))
            ]

        return added

    def _combine_lanes(
        self, part: Part, pairs: Sequence[tuple[Accumulation, Any]], width: int
    ) -> list[Any]:
        """The statements that reduce each accumulator's lanes to one, by halves, and store it.

        The last step has two lanes if it can, the second of which nothing reads: a choice between
        single numbers would be a branch, which no processor predicts.
        """

        def folding(accumulation: Accumulation, buffer: Any, half: int) -> Callable[[Any], Any]:
            def folded(lane: Any) -> Any:
                return _combined(accumulation, buffer, lane, tirx.BufferLoad(buffer, [lane + half]))

            return folded

        steps = []
        half = width // 2
        while half:
            lanes = max(half, min(2, width // 2))
            steps += [self._vector(lanes, folding(*pair, half)) for pair in pairs]
            half //= 2
        for accumulation, buffer in pairs:
            steps += self._stored(
                part, accumulation.store, tirx.BufferLoad(buffer, [self._number(0)]), []
            )
        return steps

    def _accumulate_down(self, part: Part, accumulation: Accumulation) -> _Body:
        """The body that adds an element of the row to the task's partial sum over rows."""
        shape = [self._tasks, volume(part.inner)]
        dtype = str(accumulation.store.buffer.dtype)
        sums = tirx.decl_buffer(list(map(self._number, shape)), dtype, "partial_sums")
        self._partial.append((part, accumulation, sums))

        def added(inner: list[Any], position: Any, _: Any) -> list[Any]:
            indices = [self._task, position]
            element = self._with(part, inner, accumulation.element)
            value = accumulation.combine(tirx.BufferLoad(sums, indices), element)
            return [tirx.BufferStore(sums, value, indices)]

        return added

    def _clear_sums(self, part: Part, accumulation: Accumulation, sums: Any) -> Any:
        """The statement that gives the task's partial sums their first values."""

        def cleared(_: list[Any], position: Any, __: Any) -> list[Any]:
            return [tirx.BufferStore(sums, accumulation.start, [self._task, position])]

        return self._walk([part], self._width([part]), cleared)

    def _total(self, part: Part, accumulation: Accumulation, sums: Any) -> Any:
        """The statement that adds up the partial sums, task after task, and stores the results.

        Each result is stored by one statement alone, so that an accumulator may be overwritten.
        """
        task = variable("task", self._dtype)
        zero = self._number(0)

        # The partial sums of task 0 become the totals.
        def added(_: list[Any], position: Any, __: Any) -> list[Any]:
            so_far = tirx.BufferLoad(sums, [zero, position])
            of_task = tirx.BufferLoad(sums, [task + 1, position])
            return [tirx.BufferStore(sums, accumulation.combine(so_far, of_task), [zero, position])]

        inner = [variable("inner", self._dtype) for _ in part.inner]
        position = zero
        for name, axis in zip(inner, part.inner, strict=True):
            position = position * volume([axis]) + name
        store = self._ended(part, accumulation, inner, tirx.BufferLoad(sums, [zero, position]))
        trips = [volume([axis]) for axis in part.inner]
        stored = loops(zip(inner, trips, strict=True), store)
        if self._tasks == 1:
            return stored
        walk = self._walk([part], self._width([part]), added)
        return sequence(loop(task, self._tasks - 1, walk), stored)

    def _ended(self, part: Part, accumulation: Accumulation, inner: list[Any], value: Any) -> Any:
        """The store of a sum over all rows, or of what its epilogue computes from it."""
        values = self._values(part, inner)
        ending = next(
            (e for e in self._chain.endings if e.taken.same_as(accumulation.store.buffer)),
            None,
        )
        if ending is None:
            indices = [substitute_values(index, values) for index in accumulation.store.indices]
            return tirx.BufferStore(accumulation.store.buffer, value, indices)
        (store,) = ending.stage.stores
        # The epilogue's axes of extent one stay at 0; the others are those of the sum.
        ending_values = {axis.var: self._number(0) for axis in ending.stage.axes}
        ending_values.update({to.var: values[var] for var, to in ending.along.items()})

        def total(load: Any) -> Any:
            return value if load.source.same_as(ending.taken) else load

        result = substitute_values(
            tvm_ffi.structural_map(ending.stage.values[0], (Load, total)), ending_values
        )
        return tirx.BufferStore(
            store.buffer,
            result,
            [substitute_values(index, ending_values) for index in store.indices],
        )

    def _width(self, parts: Sequence[Part]) -> int:
        """The number of elements to compute side by side: one or more whole vectors."""
        # The widest type decides: fewest of its elements fit into a register.
        lanes = min(self._processor.lanes(part.stage.dtype) for part in parts)
        length = volume(parts[0].inner[-self._walked(parts) :])
        calls_nothing = not any(part.stage.calls for part in parts)
        reduces = any(part.role is Role.ALONG for part in parts)
        sums = reduces and calls_nothing
        vectors = self._processor.sum_vectors if sums else _MAP_VECTORS
        while vectors > 1 and vectors * lanes > length:
            vectors //= 2
        return vectors * lanes

    def _walk(self, parts: Sequence[Part], width: int, body: _Body) -> Any:
        """Loops over the inner axes of parts around statements, in vectors of some width.

        Of axes that are walked through as one, all but the last stay at 0, and the index of the
        last goes on beyond its end: that gives the same addresses, without divisions.
        """
        inner, fused_count = parts[0].inner, self._walked(parts)
        outer, walked = inner[: len(inner) - fused_count], inner[len(inner) - fused_count :]
        outer_variables = [variable("inner", self._dtype) for _ in outer]
        outer_position = self._number(0)
        for name, axis in zip(outer_variables, outer, strict=True):
            outer_position = outer_position * volume([axis]) + name
        length = volume(walked)

        def step(last_index: Any, lane: Any) -> Any:
            values = [*outer_variables, *[self._number(0)] * (fused_count - 1), last_index]
            return sequence(*body(values, outer_position * length + last_index, lane))

        steps = self._vectors(length, width, step)
        trips = [volume([axis]) for axis in outer]
        return loops(zip(outer_variables, trips, strict=True), sequence(*steps))

    def _walked(self, parts: Sequence[Part]) -> int:
        """The number of innermost axes through which all parts walk as if they were one.

        The result of a reduction of the row does not count: it does not move along these axes.
        """
        accesses = [load for part in parts for load in part.stage.loads]
        accesses += [s for part in parts if part.role is not Role.ALONG for s in part.stage.stores]
        if any(is_among(buffer_of(access), self._rigid) for access in accesses):
            return 1
        return min(part.walked for part in parts)

    def _vectors(self, length: int, width: int, body: Callable[[Any, Any], Any]) -> list[Any]:
        """Loops over a number of elements in vectors: of a width, then of its half, and so on."""
        steps = []
        start = 0
        while start < length:
            count = (length - start) // width
            if count:
                vector = variable("vector", self._dtype)
                offset = start + (vector * width if count > 1 else self._number(0))
                step = self._vector(width, partial(_offset_body, body, offset))
                steps.append(loop(vector, count, step) if count > 1 else step)
            start += count * width
            width //= 2
        return steps

    def _vector(self, width: int, body: Callable[[Any], Any]) -> Any:
        """A loop over the lanes of a vector, around a block.

        TVM's schedules make loops of this form, and `vector_math` looks for it.
        """
        lane = variable("lane", self._dtype)
        return loop(lane, width, block("vector", body(lane)), ForKind.VECTORIZED)

    def _with(self, part: Part, inner: list[Any], value: Any) -> Any:
        """A value of a part's stage in the current row, given its inner axes' values."""

        def from_row(load: Any) -> Any:
            if load.source not in self._kept:
                return load
            return tirx.BufferLoad(self._kept[load.source], self._in_row(load.source, load.indices))

        value = tvm_ffi.structural_map(value, (Load, from_row))
        return substitute_values(value, self._values(part, inner))

    def _stored(self, part: Part, store: Any, value: Any, inner: list[Any]) -> list[Any]:
        """The stores of a result: to the buffer of its row, to memory, or to both."""
        buffer, values = store.buffer, self._values(part, inner)
        indices = [substitute_values(index, values) for index in store.indices]
        if buffer not in self._kept:
            return [tirx.BufferStore(buffer, value, indices)]
        row_buffer, row_indices = self._kept[buffer], self._in_row(buffer, indices)
        row_store = tirx.BufferStore(row_buffer, value, row_indices)
        if is_among(buffer, self._chain.local):
            return [row_store]
        return [
            row_store,
            tirx.BufferStore(buffer, tirx.BufferLoad(row_buffer, row_indices), indices),
        ]

    def _in_row(self, buffer: Any, indices: Sequence[Any]) -> list[Any]:
        """The index, in a buffer's row buffer, of an element with given indices."""
        row_dimensions = self._chain.row_dimensions[buffer]
        position = self._number(0)
        for dimension, (index, extent) in enumerate(zip(indices, buffer.shape, strict=True)):
            if dimension not in row_dimensions:
                position = position * extent + index
        return [position]

    def _values(self, part: Part, inner: list[Any]) -> dict[Any, Any]:
        """The values of a part's variables in the current row, given its inner axes' values.

        Without these the result holds no inner axes: a reduction's store does not depend on them.
        """
        row = self._task * self._each + self._row
        row_axes = [a for a in part.stage.axes if any(a.var.same_as(v) for v in part.rows)]
        values = {axis.var: self._number(0) for axis in part.stage.axes if axis.extent == 1}
        indices = unravel(row, [volume([axis]) for axis in row_axes])
        values.update(zip(part.rows, indices, strict=True))
        values.update(zip((axis.var for axis in part.inner), inner, strict=False))
        return values


def _offset_body(body: Callable[[Any, Any], Any], offset: Any, lane: Any) -> Any:
    """The statements of one lane of the vector that begins at an offset."""
    return body(offset + lane, lane)


def _start_accumulator(accumulation: Accumulation, buffer: Any) -> Callable[[Any], Any]:
    """The body that stores the first value in a lane of an accumulator."""

    def started(lane: Any) -> Any:
        return tirx.BufferStore(buffer, accumulation.start, [lane])

    return started


def _combined(accumulation: Accumulation, buffer: Any, lane: Any, element: Any) -> Any:
    """The statement that combines an element with one lane of an accumulator."""
    value = accumulation.combine(tirx.BufferLoad(buffer, [lane]), element)
    return tirx.BufferStore(buffer, value, [lane])
