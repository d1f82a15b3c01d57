"""Reductions on a GPU: each result, or each part of a long one, is computed by one thread.

Where there are few results with many terms, threads reduce parts of the terms first, and further
launches reduce the parts. Threads never wait for each other, and which terms make a part depends on
the shape alone: every run adds in the same order. No thread adds more than
`_MAX_TERMS_PER_THREAD` terms where extents are known, which bounds the rounding of a sum in
float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ...ir.kernel_structure import (
    Axis,
    Load,
    Stage,
    bound_values,
    statements_of,
    static,
    stride,
    substitute_values,
    volume,
)
from ...ir.loops import index, loop, sequence, variable
from ..kernels.blocked_sums import sum_in_blocks
from ..kernels.epilogue import Epilogue
from .combiner import Combine, combiner
from .threads import at_point, one_thread_per_point

_MAX_TERMS_PER_THREAD = 1024
"""Terms that one thread adds up at most."""

_MAX_SINGLE_THREAD_TERMS = 128
"""Terms up to which one thread computes a result, however few results there are."""

_MIN_BUSY_THREADS = 1 << 17
"""Threads that keep a large GPU busy."""

_MIN_TERMS_PER_PART = 32
"""Terms that a part must have to be worth its thread."""

_UNKNOWN_PARTS = 1024
"""Parts, at most, of a reduction of unknown length."""

_MIN_WARP_PARTS = 32
"""Parts at least, if neighboring terms are neighbors in memory: the 32 threads of a warp read them
together."""

Values = list[Any]


@dataclass(frozen=True)
class Target:
    """How a finished result is stored.

    Attributes
    ----------
    result : Buffer
        The buffer of the reduction's result.
    store : BufferStore or None
        The store of the finished result, whose value reads `result`. With an epilogue it computes
        the map, and stores to the map's buffer. None for a result that nothing reads.
    """

    result: Any
    store: Any

    def stored(self, result: Any) -> list[Any]:
        """The statements that store a result: one, or none."""
        if self.store is None:
            return []

        def read(load: Any) -> Any:
            return result if load.source.same_as(self.result) else load

        value = tvm_ffi.structural_map(self.store.value, (Load, read))
        return [tirx.BufferStore(self.store.buffer, value, list(self.store.indices))]


@dataclass(frozen=True)
class Reduction:
    """A reduction as expressions, independent of the loop nest that computes it.

    Attributes
    ----------
    spatial, reduced : list of For
        The loops over results and over terms; only their variables and ranges are used.
    targets : list of Target
        One for each result; more than one for a reduction of tuples.
    initial : list of Expr
        The results before the first term.
    update : function
        Takes the results so far; returns them with the term at the reduced loops' variables.
    combine : function or None
        Takes the results of two parts, the earlier first, and returns those of both; None if the
        reduction cannot be done in parts.
    along_terms : bool
        Whether neighboring terms are neighbors in memory, rather than neighboring results.
    """

    spatial: list[Any]
    reduced: list[Any]
    targets: list[Target]
    initial: Values
    update: Callable[[Values], Values]
    combine: Combine | None
    along_terms: bool


def reduction_of(
    stage: Stage,
    loops: Sequence[Any],
    block: Any,
    epilogues: Sequence[Epilogue] = (),
    unread: Sequence[Any] = (),
) -> Reduction:
    """The reduction of a stage, with its loops' variables in place of the block's.

    A result that has an epilogue is not stored, but the map of it. `unread` are buffers that
    nothing reads: these results are not stored at all.
    """
    index_values = {axis.var: loop.loop_var for axis, loop in zip(stage.axes, loops, strict=True)}
    # Iterators of one element may have no loop: they are 0.
    for iterator in block.iter_vars:
        index_values.setdefault(iterator.var, tirx.const(0, "int64"))
    bound = bound_values(block.body)
    values = [substitute_values(store.value, bound) for store in stage.stores]
    epilogue_of_buffer = {epilogue.taken: epilogue for epilogue in epilogues}
    targets = [
        Target(store.buffer, None)
        if any(store.buffer.same_as(buffer) for buffer in unread)
        else _target(store, index_values, epilogue_of_buffer.get(store.buffer))
        for store in stage.stores
    ]
    start_values = {store.buffer: store.value for store in statements_of(block.init)}
    initial = [
        substitute_values(start_values[store.buffer], index_values) for store in stage.stores
    ]

    def update(accumulators: Values) -> Values:
        return [
            substitute_values(_read_accumulators(value, stage.stores, accumulators), index_values)
            for value in values
        ]

    axes_and_loops = list(zip(stage.axes, loops, strict=True))
    return Reduction(
        [loop for axis, loop in axes_and_loops if not axis.reduced],
        [loop for axis, loop in axes_and_loops if axis.reduced],
        targets,
        initial,
        update,
        combiner(values, stage.stores, initial),
        _along_terms(stage),
    )


def launches(reduction: Reduction, name: str) -> tuple[list[Any], list[Any]]:
    """The kernels that compute a reduction, in order, and the buffers between them."""
    parts = _parts(reduction)
    if parts is None:
        return [_one_thread_each(reduction)], []
    first, second, buffers = _split_in_parts(reduction, parts, name)
    # The reduction of the parts may be long itself, and is then cut once more.
    further_kernels, further_buffers = launches(second, name)
    return [_one_thread_each(first), *further_kernels], [*buffers, *further_buffers]


def _parts(reduction: Reduction) -> int | None:
    """Into how many parts to cut the terms of each result; None if they stay together."""
    extents = [static(loop.extent) for loop in reduction.reduced]
    if reduction.combine is None:
        return None
    results = _volume(reduction.spatial)
    wished_parts = math.ceil(_MIN_BUSY_THREADS / max(results, 1))
    if None in extents:
        return min(max(wished_parts, _MIN_WARP_PARTS), _UNKNOWN_PARTS)
    terms = math.prod(extents)  # type: ignore[arg-type]
    if terms <= _MAX_SINGLE_THREAD_TERMS:
        return None
    if reduction.along_terms:
        wished_parts = max(wished_parts, _MIN_WARP_PARTS)
    wished_parts = min(wished_parts, max(terms // _MIN_TERMS_PER_PART, 1))
    # Accuracy goes first: the bound on the terms of a thread holds whatever the parts are worth.
    parts = max(wished_parts, math.ceil(terms / _MAX_TERMS_PER_THREAD))
    if parts == 1:
        return None
    return math.ceil(terms / math.ceil(terms / parts))  # so that no part is empty


def _split_in_parts(
    reduction: Reduction, parts: int, name: str
) -> tuple[Reduction, Reduction, list[Any]]:
    """The reduction that computes the parts, the one that combines them, and the parts' buffers.

    The axis of the parts is last where neighboring terms are neighbors in memory, else first, so
    that neighboring threads read neighboring elements.
    """
    assert reduction.combine is not None
    part = _terms("part", parts)
    results = [loop.extent for loop in reduction.spatial]
    is_last_axis = reduction.along_terms
    shape = [*results, parts] if is_last_axis else [parts, *results]
    indices = [loop.loop_var for loop in reduction.spatial]
    part_indices = [*indices, part.loop_var] if is_last_axis else [part.loop_var, *indices]
    buffers = [
        tirx.decl_buffer(shape, target.result.dtype, f"{name}_parts")
        for target in reduction.targets
    ]
    loads = [tirx.BufferLoad(buffer, part_indices) for buffer in buffers]
    first = _parts_reduction(
        reduction,
        part,
        parts,
        [
            Target(buffer, tirx.BufferStore(buffer, load, part_indices))
            for buffer, load in zip(buffers, loads, strict=True)
        ],
    )
    combine = reduction.combine
    second = Reduction(
        reduction.spatial,
        [part],
        reduction.targets,
        reduction.initial,
        lambda accumulators: combine(accumulators, loads),
        combine,
        is_last_axis,
    )
    return first, second, buffers


def _parts_reduction(
    reduction: Reduction, part: Any, parts: int, targets: list[Target]
) -> Reduction:
    """The reduction whose results are the parts.

    Part p of n gets the terms p, p + n, p + 2n ..., so that neighboring threads read neighboring
    terms. Parts of tuples get runs of terms, which keeps their order: the index of the first
    maximum depends on it.
    """
    terms = math.prod(loop.extent for loop in reduction.reduced)
    terms_per_part = tirx.floordiv(terms + (parts - 1), parts)
    # The last terms of some parts would lie beyond the end: these parts have fewer.
    if len(targets) > 1:
        first, distance = part.loop_var * terms_per_part, 1
        count = tirx.min(terms_per_part, terms - first)
    else:
        first, distance = part.loop_var, parts
        count = tirx.floordiv(terms - first + (parts - 1), parts)
    is_even = static(terms) is not None and int(terms) % parts == 0
    step = _terms("term", _simplified(terms_per_part if is_even else count))
    loop_values = at_point(reduction.reduced, first + step.loop_var * distance)

    def update(accumulators: Values) -> Values:
        return [substitute_values(value, loop_values) for value in reduction.update(accumulators)]

    spatial = [*reduction.spatial, part] if reduction.along_terms else [part, *reduction.spatial]
    return Reduction(spatial, [step], targets, reduction.initial, update, None, False)


def _one_thread_each(reduction: Reduction) -> Any:
    """A kernel in which one thread computes one result, or one tuple of them."""
    accumulators = [
        tirx.decl_buffer((1,), target.result.dtype, "held", scope="local")
        for target in reduction.targets
    ]
    zero = [tirx.const(0, "int32")]
    values = reduction.update([tirx.BufferLoad(buffer, zero) for buffer in accumulators])
    next_values = [tirx.Var("next", value.ty) for value in values]
    # All results are computed before any is stored: in a tuple, one reads another's accumulator.
    body = sequence(
        *(tirx.Bind(var, value) for var, value in zip(next_values, values, strict=True)),
        *(
            tirx.BufferStore(buffer, var, zero)
            for buffer, var in zip(accumulators, next_values, strict=True)
        ),
    )
    for term_loop in reversed(reduction.reduced):
        body = loop(term_loop.loop_var, term_loop.extent, body, start=term_loop.min)
    body = sum_in_blocks(body, scope="local")
    return one_thread_per_point(
        reduction.spatial,
        sequence(
            *(tirx.AllocBuffer(buffer) for buffer in accumulators),
            *(
                tirx.BufferStore(b, value, zero)
                for b, value in zip(accumulators, reduction.initial, strict=True)
            ),
            body,
            *(
                statement
                for target, buffer in zip(reduction.targets, accumulators, strict=True)
                for statement in target.stored(tirx.BufferLoad(buffer, zero))
            ),
        ),
    )


def _along_terms(stage: Stage) -> bool:
    """Whether consecutive terms are neighbors in memory, and consecutive results are not."""
    if not stage.spatial:
        return True
    result_var, term_var = stage.spatial[-1].var, stage.reduced[-1].var
    return any(
        stride(load, term_var) == 1 and stride(load, result_var) != 1 for load in stage.loads
    )


def _read_accumulators(value: Any, targets: Sequence[Any], accumulators: Values) -> Any:
    """An expression that reads the results so far from accumulators, not from the targets."""

    def read(load: Any) -> Any:
        for target, accumulator in zip(targets, accumulators, strict=True):
            if load.source.same_as(target.buffer):
                return accumulator
        return load

    return tvm_ffi.structural_map(value, (Load, read))


def _target(store: Any, index_values: dict[Any, Any], epilogue: Epilogue | None) -> Target:
    """How a result is stored, with loops' variables in place of the blocks'."""
    result = store.buffer
    if epilogue is None:
        indices = [substitute_values(index, index_values) for index in store.indices]
        return Target(result, tirx.BufferStore(result, tirx.BufferLoad(result, indices), indices))
    # Axes of the map that run along none of the reduction's have one element, at 0.
    map_index_values = {
        axis.var: tirx.const(0, str(axis.var.ty.dtype)) for axis in epilogue.stage.axes
    }
    map_index_values |= {
        map_axis.var: index_values[var] for var, map_axis in epilogue.along.items()
    }
    (map_store,) = epilogue.stage.stores
    indices = [substitute_values(index, map_index_values) for index in map_store.indices]
    value = substitute_values(map_store.value, map_index_values)
    return Target(result, tirx.BufferStore(map_store.buffer, value, indices))


def _terms(name: str, extent: Any) -> Any:
    """A loop over terms, whose variable and range alone are used; its body is empty."""
    return loop(variable(name), index(extent), tirx.Evaluate(0))


def _volume(loops: Sequence[Any]) -> int:
    return volume(Axis(loop.loop_var, static(loop.extent), False) for loop in loops)


def _simplified(value: Any) -> Any:
    return tvm.sym.Analyzer().simplify(value) if isinstance(value, tvm.ir.Expr) else value
