"""Reductions in which neighboring results are neighbors in memory: threads with some results each.

Threads never wait for each other. Where there are few results with many terms, each thread reduces
a part of the terms, and further launches reduce the parts.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import tvm
from tvm import tirx

from ...ir.kernel_structure import static, stride, substitute_values
from ...ir.loops import loop, registers, sequence, variable
from ..kernels.blocked_sums import sum_in_blocks
from .lanes import each_lane, lanes_of, split_lanes
from .reduction import MAX_TERMS_PER_THREAD, Reduction, Step, Target, parts_of, results_of, terms
from .threads import at_point, one_thread_per_point

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


def columns_step(reduction: Reduction, name: str) -> Step:
    """The launch that computes a reduction, or parts of it, with threads that do not wait."""
    parts = _parts(reduction)
    if parts is None:
        return Step(_one_thread_each(reduction), [], None)
    is_last_axis = reduction.along_terms
    part, targets, rest, buffers = parts_of(reduction, parts, name, is_last_axis)
    first = _parts_reduction(reduction, part, parts, targets)
    return Step(_one_thread_each(first), buffers, rest)


def _parts(reduction: Reduction) -> int | None:
    """Into how many parts to cut the terms of each result; None if they stay together."""
    extents = [static(loop.extent) for loop in reduction.reduced]
    if reduction.combine is None:
        return None
    results = results_of(reduction)
    wished_parts = math.ceil(_MIN_BUSY_THREADS / max(results, 1))
    if None in extents:
        return min(max(wished_parts, _MIN_WARP_PARTS), _UNKNOWN_PARTS)
    count = math.prod(extents)  # type: ignore[arg-type]
    if count <= _MAX_SINGLE_THREAD_TERMS:
        return None
    if reduction.along_terms:
        wished_parts = max(wished_parts, _MIN_WARP_PARTS)
    wished_parts = min(wished_parts, max(count // _MIN_TERMS_PER_PART, 1))
    # Accuracy goes first: the bound on the terms of a thread holds whatever the parts are worth.
    parts = max(wished_parts, math.ceil(count / MAX_TERMS_PER_THREAD))
    if parts == 1:
        return None
    return math.ceil(count / math.ceil(count / parts))  # so that no part is empty


def _parts_reduction(
    reduction: Reduction, part: Any, parts: int, targets: list[Target]
) -> Reduction:
    """The reduction whose results are the parts.

    Part p of n gets the terms p, p + n, p + 2n ..., so that neighboring threads read neighboring
    terms. Where results depend on each other, parts get runs of terms, which keeps their order: the
    index of the first maximum depends on it.
    """
    count = math.prod(loop.extent for loop in reduction.reduced)
    terms_per_part = tirx.floordiv(count + (parts - 1), parts)
    # The last terms of some parts would lie beyond the end: these parts have fewer.
    if reduction.are_apart:
        first, distance = part.loop_var, parts
        length = tirx.floordiv(count - first + (parts - 1), parts)
    else:
        first, distance = part.loop_var * terms_per_part, 1
        length = tirx.min(terms_per_part, count - first)
    is_even = static(count) is not None and int(count) % parts == 0
    step = terms("term", _simplified(terms_per_part if is_even else length))
    loop_values = at_point(reduction.reduced, first + step.loop_var * distance)

    def update(accumulators: list[Any]) -> list[Any]:
        return [substitute_values(value, loop_values) for value in reduction.update(accumulators)]

    spatial = [*reduction.spatial, part] if reduction.along_terms else [part, *reduction.spatial]
    return replace(
        reduction, spatial=spatial, reduced=[step], targets=targets, update=update, combine=None
    )


def _one_thread_each(reduction: Reduction) -> Any:
    """A kernel in which one thread computes one result, or some that are neighbors.

    Of tuples it computes all components.
    """
    lanes = _lanes(reduction)
    spatial, lane = reduction.spatial, variable("lane")
    values: dict[Any, Any] = {}
    if lanes > 1:
        spatial, lane, values = split_lanes(reduction.spatial, lanes)

    def each(statements: list[Any]) -> Any:
        """Statements for each result of the thread."""
        return each_lane(lane, lanes, [substitute_values(sequence(*statements), values)])

    held = [registers("held", (lanes,), str(t.result.dtype)) for t in reduction.targets]
    so_far = [tirx.BufferLoad(buffer, [lane]) for buffer in held]
    starts = [
        tirx.BufferStore(buffer, value, [lane])
        for buffer, value in zip(held, reduction.initial, strict=True)
    ]
    stores = [
        statement
        for target, value in zip(reduction.targets, so_far, strict=True)
        for statement in target.stored(value)
    ]
    body = each(_updates(reduction, held, so_far, lane))
    for term_loop in reversed(reduction.reduced):
        body = loop(term_loop.loop_var, term_loop.extent, body, start=term_loop.min)
    body = sum_in_blocks(body, scope="local", total=None)
    allocated = [tirx.AllocBuffer(buffer) for buffer in held]
    return one_thread_per_point(spatial, sequence(*allocated, each(starts), body, each(stores)))


def _updates(reduction: Reduction, held: list[Any], so_far: list[Any], lane: Any) -> list[Any]:
    """The statements that take one term in."""
    updated = reduction.update(so_far)
    if reduction.are_apart:
        return [tirx.BufferStore(b, v, [lane]) for b, v in zip(held, updated, strict=True)]
    # All results are computed before any is stored: in a tuple, one reads another's accumulator.
    next_values = [tirx.Var("next", value.ty) for value in updated]
    binds = [tirx.Bind(var, value) for var, value in zip(next_values, updated, strict=True)]
    stores = [tirx.BufferStore(b, v, [lane]) for b, v in zip(held, next_values, strict=True)]
    return [*binds, *stores]


def _lanes(reduction: Reduction) -> int:
    """How many neighboring results a thread computes."""
    if not reduction.spatial or reduction.along_terms or not reduction.are_apart:
        return 1
    result = reduction.spatial[-1].loop_var
    if not any(stride(load, result) == 1 for load in reduction.loads):
        return 1
    stores = [target.store for target in reduction.targets if target.store is not None]
    return lanes_of(reduction.spatial, [*reduction.loads, *stores])


def _simplified(value: Any) -> Any:
    return tvm.sym.Analyzer().simplify(value) if isinstance(value, tvm.ir.Expr) else value
