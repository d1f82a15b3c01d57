"""Sums along memory for few results that share what they read: a vector of partial sums for each.

    for c:
      for n, y, each vector of x:
        for r, s:                                       straight code
          sums[r, s][lanes] += a[n, c, y, x] * b[n, c, y + r, x + s]
      y[c, r, s] = the sum of the lanes

So is the gradient of a depthwise convolution by its weights. Channels are far apart in memory, and
the results of one of them fill no vector.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

from tvm import tirx

from ...fallback.guarded import balanced
from ...ir.kernel_structure import Axis, Stage, stride, substitute_values, uses, volume
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
from ..kernels.blocked_sums import sum_in_blocks
from ..kernels.contraction import fixed_iterators
from .dot_products import plain_term
from .map import SMALL
from .tuning import Processor

_SPARE_REGISTERS = 7
"""Registers that hold no sums, but what is read and chosen."""


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
    if term is None or stage.work < small or len(stage.loads) != 2:
        return None
    along = stage.reduced[-1]
    if (along.extent or 0) < lanes:
        return None
    few = _few_results(stage)
    if not 1 < volume(few) <= processor.registers - _SPARE_REGISTERS:
        return None
    if (few[-1].extent or 0) >= lanes:  # `dot_products` stores whole vectors of results
        return None
    if any(stride(read, along.var) != 1 for read in stage.loads):
        return None
    return _nest(stage, realize, term, few, lanes)


def _few_results(stage: Stage) -> list[Axis]:
    """The axes of results for which one of two loads is the same; none if no load is."""
    axes = [axis for axis in stage.spatial if axis.extent != 1]
    others = [[a for a in axes if not uses(read, a.var)] for read in stage.loads]
    # One load is of all of them, the other of none.
    shared = max(others, key=len)
    return shared if min(map(len, others)) == 0 else []


def _nest(stage: Stage, realize: Any, term: Any, few: Sequence[Axis], lanes: int) -> Any:
    along = stage.reduced[-1]
    assert along.extent is not None
    values = fixed_iterators(realize)
    values |= {axis.var: variable(str(axis.var.name), str(axis.var.ty)) for axis in stage.axes}
    dtype = str(along.var.ty)
    vector, lane = variable("vector", dtype), variable("lane", dtype)
    begin = start = vector * index(lanes, dtype)
    is_whole = along.extent % lanes == 0
    if not is_whole:
        # The last vector reaches back into the one before it, whose elements it leaves out.
        start = tirx.min(begin, index(along.extent - lanes, dtype))
    values[along.var] = start + lane
    each_lane = partial(own_loop, lane, lanes, kind=tirx.ForKind.VECTORIZED)
    zero = tirx.const(0, stage.dtype)
    sums, updates, results = [], [], []
    for place in product(*(range(axis.extent or 0) for axis in few)):
        at = values | {
            axis.var: index(position, str(axis.var.ty))
            for axis, position in zip(few, place, strict=True)
        }
        total = scratch("sums", [lanes], stage.dtype)
        added = substitute_values(term, at)
        if not is_whole:
            added = tirx.Select(start + lane >= begin, added, zero)
        sums.append(total)
        updates.append(each_lane(store(total, [lane], load(total, [lane]) + added)))
        indices = [substitute_values(each, at) for each in stage.stores[0].indices]
        lane_values = [load(total, [index(n, dtype)]) for n in range(lanes)]
        results.append(store(stage.stores[0].buffer, indices, balanced(lane_values)))
    zeros = [each_lane(store(total, [lane], zero)) for total in sums]
    terms = [(values[axis.var], axis.extent) for axis in stage.reduced[:-1]]
    terms.append((vector, ceil_div(along.extent, lanes)))
    summed = sum_in_blocks(loops(terms, sequence(*updates)))
    body = block(stage.name, *zeros, summed, *results, buffers=sums)
    around = [
        (values[axis.var], axis.extent)
        for axis in stage.spatial
        if not any(axis is each for each in few)
    ]
    return fused(around, body, tirx.ForKind.PARALLEL)
