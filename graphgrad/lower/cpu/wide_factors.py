"""Factors of contractions in float32, where a kernel reads them in half precision.

A processor without products of half precision converts each element that it multiplies. A
contraction reads an element many times, so that is done once, in front of it. What is left is a
contraction of float32, which is scheduled as any other, with minimal filtering and all. What is to
be multiplied in pairs (`contraction/pairs.py`) stays.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import tirx
from tvm.ir import Range, prim
from tvm.s_tir import SBlock

from ...ir.kernel_rewrite import replace_block
from ...ir.kernel_structure import Load, Stage, buffer_of, stages, statements_of, static, volume
from ...ir.loops import over_axes
from ...ir.passes import Phase, compiler_pass
from ...ir.visits import replace_nodes
from ..kernels.contraction import operands, reuses_operands
from ..kernels.local_values import restate_regions
from .borders import borders_of
from .buffer_views import block_of, replace_nests
from .contraction import blocks_of, multiplies_pairs
from .tuning import Processor

_NARROW = ("bfloat16", "float16")
_WIDE = "float32"

_MIN_REUSE = 8
"""Multiply-adds for each element of a factor, below which a copy costs more than it saves."""


@compiler_pass(
    Phase.FUSED,
    over="kernel",
    targets=("llvm",),
    before={"schedule_loops": "it schedules contractions of float32"},
)
def widen_factors(func: tirx.PrimFunc, processor: Processor) -> tirx.PrimFunc:
    """Convert factors of half precision once, in front of the contractions that multiply them.

    Parameters
    ----------
    func : PrimFunc
    processor : Processor
    """
    kernel_stages = stages(func)
    if kernel_stages is None:
        return func
    narrow_of = {stage.name: _narrow_factors(stage) for stage in kernel_stages}
    if not any(narrow_of.values()):
        return func
    blocks, arguments = blocks_of(func.body), list(func.params)
    borders = borders_of(kernel_stages, list(func.body.block.alloc_buffers), blocks)
    wide: dict[Any, Any] = {}
    nests: list[Any] = []
    for stage, statement in zip(kernel_stages, statements_of(func.body.block.body), strict=True):
        narrow = narrow_of[stage.name]
        if narrow and multiplies_pairs(stage, blocks[stage.name], processor, borders, arguments):
            narrow = []
        for buffer in narrow:
            if buffer not in wide:
                wide[buffer] = tirx.decl_buffer(buffer.shape, _WIDE, f"{buffer.name}_wide")
                nests.append(_copy(buffer, wide[buffer]))
        nests.append(_of_wide(statement, wide) if narrow else statement)
    if not wide:
        return func
    return replace_nests(func, nests, [*func.body.block.alloc_buffers, *wide.values()])


def _narrow_factors(stage: Stage) -> list[Any]:
    """The buffers of half precision that a contraction of float32 reads often enough."""
    if stage.dtype != _WIDE or not reuses_operands(stage):
        return []
    buffers = dict.fromkeys(buffer_of(load) for load in operands(stage) or ())
    return [
        buffer
        for buffer in buffers
        if str(buffer.dtype) in _NARROW
        and all(static(extent) for extent in buffer.shape)
        and volume(stage.axes) >= _MIN_REUSE * math.prod(map(int, buffer.shape))
    ]


def _copy(narrow: Any, wide: Any) -> Any:
    """The map that converts a buffer."""
    axes = [
        tirx.IterVar(
            Range.from_min_extent(tirx.const(0, str(extent.ty)), extent),
            tirx.Var(f"i{number}", str(extent.ty)),
            tirx.IterVar.DataPar,
        )
        for number, extent in enumerate(narrow.shape)
    ]
    at = [axis.var for axis in axes]
    store = tirx.BufferStore(wide, prim.Cast(_WIDE, tirx.BufferLoad(narrow, at)), at)
    return over_axes(restate_regions(SBlock(axes, [], [], wide.name, store)))


def _of_wide(statement: Any, wide: dict[Any, Any]) -> Any:
    """A contraction that reads wide buffers in the place of those that they are copies of."""

    def widened(cast: Any) -> Any:
        load = cast.value
        if not isinstance(load, Load) or buffer_of(load) not in wide or str(cast.ty) != _WIDE:
            return cast
        return tirx.BufferLoad(wide[buffer_of(load)], load.indices)

    block = block_of(statement)
    body = replace_nodes(block.body, prim.Cast, widened)
    return over_axes(restate_regions(replace_block(block, body=body)))
