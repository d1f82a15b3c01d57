"""Values that one stage keeps and another computes again, read instead.

Where a gradient is fused behind the function that it is of, both may compute the same exponential:
of each element the first keeps it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Range
from tvm.s_tir import SBlock

from ...ir.kernel_rewrite import replace_block
from ...ir.kernel_structure import (
    Load,
    Stage,
    is_among,
    is_conditional,
    stages,
    substitute_values,
)
from ...ir.visits import nodes_in, replace_nodes


def share_values(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Have no stage compute a function that a map before it keeps.

    Parameters
    ----------
    func : PrimFunc
        It is left as it is if it is not made of stages.
    """
    kernel_stages = stages(func) or []
    kept = [stage for stage in kernel_stages if _keeps_function(stage)]
    # What one stage alone reads is inlined there, and not kept.
    kept = [stage for stage in kept if _is_stored(stage, kernel_stages, func.params)]
    if not kept or len(kernel_stages) == 1:
        return func
    position = {stage.name: number for number, stage in enumerate(kernel_stages)}
    axes = {stage.name: stage.axes for stage in kernel_stages}

    def changed(block: SBlock) -> SBlock:
        number = position.get(str(block.name_hint), 0)
        earlier = [stage for stage in kept if position[stage.name] < number]
        own = {axis.var: axis.extent for axis in axes.get(str(block.name_hint), ())}
        reads = list(block.reads)

        def shared(call: Any) -> Any:
            for stage in earlier:
                if indices := _indices(stage, call, own):
                    buffer = stage.stores[0].buffer
                    points = [Range.from_min_extent(i, tirx.const(1, str(i.ty))) for i in indices]
                    reads.append(tirx.BufferRegion(buffer, points))
                    return tirx.BufferLoad(buffer, indices)
            return call

        body = replace_nodes(block.body, tvm.ir.Call, shared) if earlier and own else block.body
        return block if body.same_as(block.body) else replace_block(block, body=body, reads=reads)

    return func.with_body(replace_nodes(func.body, SBlock, changed))


def _keeps_function(stage: Stage) -> bool:
    """Whether a stage is a map that stores a function of each of its elements as it is."""
    (value, *others), indices = stage.values, list(stage.stores[0].indices)
    return (
        not stage.reduced
        and not others
        and isinstance(value, tvm.ir.Call)
        and not is_conditional(value)
        and len(indices) == len(stage.axes)
        and all(i.same_as(axis.var) for i, axis in zip(indices, stage.axes, strict=True))
        and not is_among(stage.stores[0].buffer, [load.source for load in stage.loads])
    )


def _is_stored(stage: Stage, kernel_stages: Sequence[Stage], params: Sequence[Any]) -> bool:
    """Whether a stage's result is in memory in any case: it is an output, or several read it."""
    buffer = stage.stores[0].buffer
    readers = [s for s in kernel_stages if is_among(buffer, [load.source for load in s.loads])]
    return is_among(buffer, params) or len(readers) > 1


def _indices(stage: Stage, call: Any, own: dict[Any, int | None]) -> list[Any] | None:
    """The element of a map's result that a call computes again; None if it is another value.

    `own` are the extents of the iterators of the stage that the call is in.
    """
    mapped: Any = stage.values[0]
    if not mapped.op.same_as(call.op) or str(mapped.ty) != str(call.ty):
        return None
    theirs, ours = nodes_in(mapped, Load), nodes_in(call, Load)
    if len(theirs) != len(ours) or not theirs:
        return None
    bound: dict[Any, Any] = {}
    for a, b in zip(theirs, ours, strict=True):
        for index, other in zip(a.indices, b.indices, strict=False):
            if any(index.same_as(axis.var) for axis in stage.axes):
                bound.setdefault(index, other)
    if any(
        axis.var not in bound or axis.extent is None or own.get(bound[axis.var]) != axis.extent
        for axis in stage.axes
    ):
        return None
    if not tvm_ffi.structural_equal(substitute_values(mapped, bound), call):
        return None
    return [bound[axis.var] for axis in stage.axes]
