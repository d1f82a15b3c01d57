"""Reductions on a GPU: each result, and each part of a long one, by a thread of its own.

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
    statements_of,
    static,
    stride,
    substitute_values,
    volume,
)
from ...ir.loops import index, loop, sequence, variable
from ..kernels.epilogue import Epilogue
from .combiner import Combine, combiner
from .threads import at_point, one_thread_per_point

_MAX_TERMS_PER_THREAD = 1024
"""Terms that one thread adds up at most."""

_MAX_SINGLE_THREAD_TERMS = 128
"""Terms up to which a result takes one thread, however few results there are."""

_MIN_BUSY_THREADS = 1 << 17
"""Threads that keep a large GPU busy."""

_MIN_TERMS_PER_PART = 32
"""Terms that a part must have to be worth its thread."""

_UNKNOWN_PARTS = 1024
"""Parts of a reduction of unknown length, where there are few results."""

_MIN_WARP_PARTS = 32
"""Parts at least, if neighboring terms are neighbors in memory: a warp reads them together."""

Values = list[Any]


@dataclass(frozen=True)
class Target:
    """Where a result goes.

    Attributes
    ----------
    result : Buffer
        That of the reduction.
    store : BufferStore or None
        What is stored, of the result as it is read from that buffer; where there is an epilogue,
        into another one. None for a result that nobody reads.
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
    """What is reduced, apart from any loop nest.

    Attributes
    ----------
    spatial, reduced : list of For
        The loops over results and over terms; their bodies do not count.
    targets : list of Target
        More than one for a reduction of tuples.
    initial : list of Expr
        What each result is before the first term.
    update : function
        Of the results so far; returns them with the term at the reduced loops' variables.
    combine : function or None
        Of results of two parts, the earlier first; None if they cannot be reduced in parts.
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
    """The reduction that a stage is, with its loops' variables in place of the block's.

    Of a result that has an epilogue, that is stored instead; of one in `unread`, buffers that
    nobody reads, nothing is.
    """
    at = {axis.var: loop.loop_var for axis, loop in zip(stage.axes, loops, strict=True)}
    for iterator in block.iter_vars:
        at.setdefault(iterator.var, tirx.const(0, "int64"))
    bound = {s.var: s.value for s in statements_of(block.body) if isinstance(s, tirx.Bind)}
    values = [substitute_values(store.value, bound) for store in stage.stores]
    behind = {epilogue.taken: epilogue for epilogue in epilogues}
    targets = [
        Target(store.buffer, None)
        if any(store.buffer.same_as(buffer) for buffer in unread)
        else _target(store, at, behind.get(store.buffer))
        for store in stage.stores
    ]
    starts = {store.buffer: store.value for store in statements_of(block.init)}
    initial = [substitute_values(starts[store.buffer], at) for store in stage.stores]

    def update(accumulators: Values) -> Values:
        return [
            substitute_values(_read_accumulators(v, stage.stores, accumulators), at) for v in values
        ]

    kinds = list(zip(stage.axes, loops, strict=True))
    return Reduction(
        [loop for axis, loop in kinds if not axis.reduced],
        [loop for axis, loop in kinds if axis.reduced],
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
    rest, more = launches(second, name)
    return [_one_thread_each(first), *rest], [*buffers, *more]


def _parts(reduction: Reduction) -> int | None:
    """Into how many parts to cut the terms of each result; None for one."""
    extents = [static(loop.extent) for loop in reduction.reduced]
    if reduction.combine is None:
        return None
    results = _volume(reduction.spatial)
    wanted = math.ceil(_MIN_BUSY_THREADS / max(results, 1))
    if None in extents:
        return min(max(wanted, _MIN_WARP_PARTS), _UNKNOWN_PARTS)
    terms = math.prod(extents)  # type: ignore[arg-type]
    if terms <= _MAX_SINGLE_THREAD_TERMS:
        return None
    if reduction.along_terms:
        wanted = max(wanted, _MIN_WARP_PARTS)
    wanted = min(wanted, max(terms // _MIN_TERMS_PER_PART, 1))
    parts = max(wanted, math.ceil(terms / _MAX_TERMS_PER_THREAD))
    if parts == 1:
        return None
    return math.ceil(terms / math.ceil(terms / parts))  # so that no part is empty


def _split_in_parts(
    reduction: Reduction, parts: int, name: str
) -> tuple[Reduction, Reduction, list[Any]]:
    """The reduction of each part, that of the parts, and the buffers of the parts."""
    assert reduction.combine is not None
    part = _terms("part", parts)
    results = [loop.extent for loop in reduction.spatial]
    last = reduction.along_terms
    shape = [*results, parts] if last else [parts, *results]
    indices = [loop.loop_var for loop in reduction.spatial]
    place = [*indices, part.loop_var] if last else [part.loop_var, *indices]
    buffers = [
        tirx.decl_buffer(shape, target.result.dtype, f"{name}_parts")
        for target in reduction.targets
    ]
    loads = [tirx.BufferLoad(buffer, place) for buffer in buffers]
    first = _parts_reduction(
        reduction,
        part,
        parts,
        [
            Target(buffer, tirx.BufferStore(buffer, load, place))
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
        last,
    )
    return first, second, buffers


def _parts_reduction(
    reduction: Reduction, part: Any, parts: int, targets: list[Target]
) -> Reduction:
    """The reduction whose results are the parts.

    Terms are dealt out in turn, so that neighboring threads read neighbors; those of tuples in
    runs, which keeps their order: the index of the first maximum depends on it.
    """
    terms = math.prod(loop.extent for loop in reduction.reduced)
    each = tirx.floordiv(terms + (parts - 1), parts)
    step = _terms("term", _simplified(each))
    in_runs = len(targets) > 1
    term = (
        part.loop_var * each + step.loop_var if in_runs else step.loop_var * parts + part.loop_var
    )
    at = at_point(reduction.reduced, term)
    exact = static(terms) is not None and int(terms) % parts == 0

    def update(accumulators: Values) -> Values:
        values = [substitute_values(value, at) for value in reduction.update(accumulators)]
        if exact:
            return values
        pairs = zip(values, accumulators, strict=True)
        return [tirx.if_then_else(term < terms, value, kept) for value, kept in pairs]

    spatial = [*reduction.spatial, part] if reduction.along_terms else [part, *reduction.spatial]
    return Reduction(spatial, [step], targets, reduction.initial, update, None, False)


def _one_thread_each(reduction: Reduction) -> Any:
    """A kernel in which one thread computes one result, or one tuple of them."""
    held = [
        tirx.decl_buffer((1,), target.result.dtype, "held", scope="local")
        for target in reduction.targets
    ]
    zero = [tirx.const(0, "int32")]
    values = reduction.update([tirx.BufferLoad(buffer, zero) for buffer in held])
    fresh = [tirx.Var("next", value.ty) for value in values]
    body = sequence(
        *(tirx.Bind(var, value) for var, value in zip(fresh, values, strict=True)),
        *(tirx.BufferStore(buffer, var, zero) for buffer, var in zip(held, fresh, strict=True)),
    )
    for one in reversed(reduction.reduced):
        body = loop(one.loop_var, one.extent, body, start=one.min)
    return one_thread_per_point(
        reduction.spatial,
        sequence(
            *(tirx.AllocBuffer(buffer) for buffer in held),
            *(
                tirx.BufferStore(b, value, zero)
                for b, value in zip(held, reduction.initial, strict=True)
            ),
            body,
            *(
                statement
                for target, buffer in zip(reduction.targets, held, strict=True)
                for statement in target.stored(tirx.BufferLoad(buffer, zero))
            ),
        ),
    )


def _along_terms(stage: Stage) -> bool:
    """Whether terms that follow each other are neighbors in memory, and results are not."""
    if not stage.spatial:
        return True
    result, term = stage.spatial[-1].var, stage.reduced[-1].var
    return any(stride(load, term) == 1 and stride(load, result) != 1 for load in stage.loads)


def _read_accumulators(value: Any, targets: Sequence[Any], accumulators: Values) -> Any:
    """An expression that reads its results so far from accumulators."""

    def read(load: Any) -> Any:
        for target, accumulator in zip(targets, accumulators, strict=True):
            if load.source.same_as(target.buffer):
                return accumulator
        return load

    return tvm_ffi.structural_map(value, (Load, read))


def _target(store: Any, at: dict[Any, Any], epilogue: Epilogue | None) -> Target:
    """Where a result goes, with loops' variables in place of the blocks'."""
    result = store.buffer
    if epilogue is None:
        indices = [substitute_values(index, at) for index in store.indices]
        return Target(result, tirx.BufferStore(result, tirx.BufferLoad(result, indices), indices))
    there = {axis.var: tirx.const(0, str(axis.var.ty.dtype)) for axis in epilogue.stage.axes}
    there |= {taken.var: at[var] for var, taken in epilogue.along.items()}
    (behind,) = epilogue.stage.stores
    indices = [substitute_values(index, there) for index in behind.indices]
    value = substitute_values(behind.value, there)
    return Target(result, tirx.BufferStore(behind.buffer, value, indices))


def _terms(name: str, extent: Any) -> Any:
    """A loop over terms, of which nothing but its range is used."""
    return loop(variable(name), index(extent), tirx.Evaluate(0))


def _volume(loops: Sequence[Any]) -> int:
    return volume(Axis(loop.loop_var, static(loop.extent), False) for loop in loops)


def _simplified(value: Any) -> Any:
    return tvm.sym.Analyzer().simplify(value) if isinstance(value, tvm.ir.Expr) else value
