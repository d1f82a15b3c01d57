"""Sums along memory for neighboring results: a vector of partial sums for each, transposed at last.

    for each 16 neighbors w:
      for each vector of c:
        for j in 16:                          straight code
          sums[j][lanes] += a[i, c] * b[i + w + j, c]
      y[i, w] = the sums of the lanes         16 of each at once

Where results are no lanes, because what they read lies behind one another along the terms, adding
up the lanes of each result alone would take longer than its products.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial, reduce
from operator import add
from typing import Any

from tvm import tirx
from tvm.ir import prim

from ...ir.kernel_structure import Axis, Stage, static, stride, substitute_values
from ...ir.loops import (
    block,
    ceil_div,
    fused,
    index,
    load,
    loops,
    own_loop,
    scratch,
    sequence,
    store,
    variable,
)
from ...ir.visits import nodes_in
from ..kernels.blocked_sums import added_term, sum_in_blocks
from ..kernels.contraction import fixed_iterators
from .map import SMALL
from .register_transpose import SIDES, transposed
from .tuning import Processor


def nest_of(
    stage: Stage, blocks: Mapping[str, Any], processor: Processor, small: int = SMALL
) -> Any | None:
    """The statement that sums as a stage does; None if it is no sum of that kind.

    Parameters
    ----------
    stage : Stage
    blocks : dict
        The blocks (SBlockRealize) of the kernel, by name.
    processor : Processor
    small : int
        Points below which it is not worth other threads.
    """
    realize, lanes = blocks[stage.name], processor.lanes(stage.dtype)
    term = plain_term(stage, realize)
    if term is None or stage.work < small or not stage.spatial:
        return None
    if not SIDES[0] <= lanes <= SIDES[1]:
        return None
    across, along = stage.spatial[-1], stage.reduced[-1]
    distances = [(stride(read, across.var), stride(read, along.var)) for read in stage.loads]
    if (across.extent or 0) < lanes or (along.extent or 0) % lanes:
        return None
    if stride(stage.stores[0], across.var) != 1 or not _lie_along(distances):
        return None
    return _nest(stage, realize, term, lanes)


def plain_term(stage: Stage, realize: Any) -> Any | None:
    """What a stage adds up from zero in one statement, in loops of known extents; None otherwise.

    Parameters
    ----------
    stage : Stage
    realize : SBlockRealize
        Its block.
    """
    if stage.conditional or not stage.reduced or len(stage.stores) != 1:
        return None
    if stage.dtype not in ("float32", "float64") or static(realize.predicate) != 1:
        return None
    if any(axis.extent is None for axis in stage.axes):
        return None
    if len({str(axis.var.ty) for axis in stage.spatial}) > 1:  # they become one loop
        return None
    body = realize.block.body  # several statements, where a value is bound first
    if not isinstance(body, tirx.BufferStore) or nodes_in(body, prim.Let):
        return None
    return added_term(body) if _begins_at_zero(realize.block.init) else None


def _begins_at_zero(init: Any) -> bool:
    """Whether what a block begins with is a sum of nothing."""
    value = init.value if isinstance(init, tirx.BufferStore) else None
    return isinstance(value, tirx.FloatImm) and float(value.value) == 0


def _lie_along(distances: list[tuple[int | None, int | None]]) -> bool:
    """Whether all reads go along the terms, and some are far apart from result to result."""
    if not all(along in (0, 1) and across is not None for across, along in distances):
        return False
    return any(along == 1 and abs(across or 0) > 1 for across, along in distances)


def _nest(stage: Stage, realize: Any, term: Any, lanes: int) -> Any:
    """The nest, whose last square of results begins earlier where it would reach too far."""
    across, along = stage.spatial[-1], stage.reduced[-1]
    assert across.extent is not None and along.extent is not None
    dtype, along_dtype = str(across.var.ty), str(along.var.ty)
    values = fixed_iterators(realize)
    values |= {axis.var: variable(str(axis.var.name), str(axis.var.ty)) for axis in stage.axes}
    square = variable("square", dtype)
    vector, lane = variable("vector", along_dtype), variable("lane", along_dtype)
    start = square * index(lanes, dtype)
    if across.extent % lanes:
        start = tirx.min(start, index(across.extent - lanes, dtype))
    values[along.var] = vector * index(lanes, along_dtype) + lane
    sums = [scratch("sums", [lanes], stage.dtype) for _ in range(lanes)]
    each_lane = partial(own_loop, lane, lanes, kind=tirx.ForKind.VECTORIZED)
    begin = [each_lane(store(each, [lane], tirx.const(0, stage.dtype))) for each in sums]
    updates = []
    for number, each in enumerate(sums):
        at = values | {across.var: start + index(number, dtype)}
        added = load(each, [lane]) + substitute_values(term, at)
        updates.append(each_lane(store(each, [lane], added)))
    terms = [(values[axis.var], _extent(axis)) for axis in stage.reduced[:-1]]
    terms.append((vector, along.extent // lanes))
    summed = sum_in_blocks(loops(terms, sequence(*updates)))
    zero = index(0, dtype)
    ramp = tirx.Ramp(zero, index(1, dtype), lanes)
    statements, columns = transposed([tirx.BufferLoad(each, [ramp]) for each in sums])
    first = values | {across.var: start}
    *outer, last = (substitute_values(each, first) for each in stage.stores[0].indices)
    result_ramp = tirx.Ramp(last, index(1, dtype), lanes)
    result = store(stage.stores[0].buffer, [*outer, result_ramp], reduce(add, columns))
    body = block(stage.name, *begin, summed, *statements, result, buffers=sums)
    around = [(values[axis.var], _extent(axis)) for axis in stage.spatial[:-1]]
    around.append((square, ceil_div(across.extent, lanes)))
    return fused(around, body, tirx.ForKind.PARALLEL)


def _extent(axis: Axis) -> int:
    assert axis.extent is not None
    return axis.extent
