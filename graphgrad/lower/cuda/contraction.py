"""Contractions on a GPU: TVM's rule for tiles in shared memory, given only what it computes right.

TVM's rule looks at which axes are read, not at what is computed from them, pads with zeros, and
adds up all terms of an output one after the other. Here it is given sums of products only, and no
more than `_MAX_TERMS_PER_THREAD` terms at a time: longer sums, and those of few outputs, are cut
into parts, which a further launch adds up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import Schedule, dlight

from ...ir.kernel_structure import (
    Axis,
    Stage,
    buffer_of,
    statements_of,
    static,
    substitute_values,
    uses,
    volume,
)
from ...ir.loops import block, bound, index, serial, variable
from ...ir.visits import replace_nodes
from ..kernels.contraction import operands
from .threads import at_point, divisor

_MAX_TERMS_PER_THREAD = 2560
"""Terms that one thread adds up one after the other: more lose accuracy in float32."""

_MIN_TERMS_PER_PART = 256
"""Terms that a part must have for cutting a sum to be worth a launch."""

_MIN_BUSY_BLOCKS = 256
"""Blocks of threads that keep a large GPU busy."""

_TILE = (32, 64)
"""Rows and columns of outputs that a block of threads computes in TVM's rule."""

_OLD_GPU = tvm.target.Target({"kind": "cuda", "arch": "sm_60"})
"""The GPU that TVM's rule schedules for. It has no tensor cores: for these the rule would add up
in half precision."""


class _Tiles(dlight.gpu.Matmul):
    """TVM's rule for matrix products, with loops that the CUDA compiler unrolls, not TVM."""

    def get_configs(self, target: tvm.target.Target) -> Any:
        config = super().get_configs(target)
        config.unroll = 0
        return config


def cut_long_sums(sch: Schedule, stage: Stage) -> None:
    """Cut the sums of a contraction into parts, if they are long or outputs are few."""
    cut_sums(sch, stage, _least_parts(stage))


def cut_sums(sch: Schedule, stage: Stage, min_parts: int) -> None:
    """Cut the sums of a contraction into at least so many parts of equal length, if there are."""
    split = _sum_split(stage, min_parts)
    if split is None:
        return
    axes, parts = split
    sum_block = sch.get_sblock(stage.name)
    loops = sch.get_loops(sum_block)
    spatial_count = len(stage.spatial)
    terms = loops[spatial_count : spatial_count + axes]
    fused = sch.fuse(*terms) if axes > 1 else terms[0]
    part, _ = sch.split(fused, [parts, None])
    parts_block = sch.rfactor(part, 0)
    for two_stage_block in (parts_block, sum_block):
        outer = sch.get_loops(two_stage_block)  # in the order of the block's iterators
        sch.reorder(outer[spatial_count], *outer[:spatial_count])


def tiles(group: Sequence[Any], shared: Sequence[Any]) -> tuple[list[Any], list[Any]] | None:
    """A contraction's kernels, and its buffers; None if TVM's rule does not take it.

    Parameters
    ----------
    group : sequence of Stmt
        The stage of the contraction, with the maps to be computed in the same kernel.
    shared : sequence of Buffer
        The buffers that anything outside the group writes or reads.
    """
    used, written = used_buffers(group)
    internal = [
        buffer
        for buffer in written
        if not any(buffer.same_as(shared_buffer) for shared_buffer in shared)
    ]
    params = [buffer for buffer in used if not any(buffer.same_as(inner) for inner in internal)]
    func = tirx.PrimFunc(params, block("root", *group, buffers=internal))
    try:
        with _OLD_GPU:
            schedule = _Tiles().apply(func, _OLD_GPU, False)
    except Exception:  # TVM's rule raises whatever it likes where it does not fit
        return None
    if schedule is None:
        return None
    scheduled = schedule.mod["main"]
    kernels = [_on_one_axis(statement) for statement in statements_of(scheduled.body.block.body)]
    if None in kernels:
        return None  # a map is left that could not be computed inside
    params_of_scheduled = dict(zip(scheduled.params, params, strict=True))
    return [substitute_values(kernel, params_of_scheduled) for kernel in kernels], list(
        scheduled.body.block.alloc_buffers
    )


def _on_one_axis(kernel: Any) -> Any | None:
    """A kernel of TVM's rule with a grid of one axis; None for another statement.

    Along the second axis a grid has at most 65535 blocks, too few for many small products. And a
    grid without blocks, which a symbolic extent of 0 makes, is an error of the driver: it gets one
    block here, which does nothing.
    """
    if _tag(kernel) != "blockIdx.y" or _tag(kernel.body) != "blockIdx.x":
        return None
    outer, inner = kernel, kernel.body
    width = divisor(inner.extent)
    blocks = tvm.sym.Analyzer().simplify(divisor(outer.extent) * width)
    block_index = variable("block")
    inside = substitute_values(inner.body, at_point([outer, inner], block_index))
    # TVM computes quotients by an extent in front of the condition that it is not 0.
    inside = replace_nodes(inside, (tirx.FloorDiv, tirx.FloorMod), _with_divisor)
    points = tvm.sym.Analyzer().simplify(index(outer.extent) * index(inner.extent))
    if static(points) is not None:
        return bound(block_index, blocks, "blockIdx.x", inside)
    # A loop, since TVM synchronizes threads in no condition, not even in one that all threads of
    # a block share.
    body = serial(tirx.min(points, index(1)), lambda _: inside)
    return bound(block_index, blocks, "blockIdx.x", body)


def _with_divisor(quotient: Any) -> Any:
    """A quotient, or a remainder, that is not divided by an extent of 0."""
    if static(quotient.b) is not None:
        return quotient
    return type(quotient)(quotient.a, divisor(quotient.b))


def _tag(loop: Any) -> str | None:
    """The thread axis that a loop is bound to; None if it is bound to none."""
    threads = loop.thread_binding if isinstance(loop, tirx.For) else None
    return None if threads is None else str(threads.thread_tag)


def may_tile(stage: Stage) -> bool:
    """Whether a stage is a contraction that TVM's rule computes correctly."""
    pair = operands(stage)
    if pair is None or any(axis.extent == 0 for axis in stage.axes):
        return False
    _, left, right = _kinds(stage, pair)
    terms = [axis.extent for axis in stage.reduced]
    is_short = None in terms or math.prod(terms) <= _MAX_TERMS_PER_THREAD  # type: ignore[arg-type]
    return bool(left and right) and is_short


def _least_parts(stage: Stage) -> int:
    """Into how many parts to cut the sums of a contraction, at least; 1 for other stages."""
    pair = operands(stage)
    if pair is None or any(not axis.extent for axis in stage.axes):
        return 1
    batch, left, right = _kinds(stage, pair)
    rows, columns = (
        math.ceil(volume(side) / tile) for side, tile in zip((left, right), _TILE, strict=True)
    )
    terms = volume(stage.reduced)
    min_parts = min(
        math.ceil(_MIN_BUSY_BLOCKS / (volume(batch) * rows * columns)), terms // _MIN_TERMS_PER_PART
    )
    return max(min_parts, math.ceil(terms / _MAX_TERMS_PER_THREAD))


def _sum_split(stage: Stage, min_parts: int) -> tuple[int, int] | None:
    """How many leading reduced axes to cut, as one, and into how many parts; None for no cut."""
    if min_parts <= 1 or stage.axes[0].reduced:
        return None
    # Parts are of equal length. If there is no such number up to four times the least, the next
    # axis is taken in too.
    for axes in range(1, len(stage.reduced) + 1):
        length = volume(stage.reduced[:axes])
        even_splits = [
            parts
            for parts in range(min_parts, min(4 * min_parts, length) + 1)
            if length % parts == 0
        ]
        if even_splits:
            return axes, even_splits[0]
    return None


def _kinds(stage: Stage, pair: tuple[Any, Any]) -> tuple[list[Axis], list[Axis], list[Axis]]:
    """The output axes that both operands, only the left, and only the right one are read along."""
    dependences = [(axis, [uses(load, axis.var) > 0 for load in pair]) for axis in stage.spatial]
    return (
        [axis for axis, (left, right) in dependences if left and right],
        [axis for axis, (left, right) in dependences if left and not right and axis.extent != 1],
        [axis for axis, (left, right) in dependences if right and not left and axis.extent != 1],
    )


def used_buffers(statements: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The buffers that statements use, and those of them that they write."""
    used: list[Any] = []
    written: list[Any] = []

    def note(buffer: Any, into: list[Any]) -> None:
        if not any(buffer.same_as(noted) for noted in into):
            into.append(buffer)

    def visit(node: Any) -> None:
        if isinstance(node, tirx.BufferStore):
            note(node.buffer, written)
            note(node.buffer, used)
        elif isinstance(node, tvm.ir.TensorLoad):
            note(buffer_of(node), used)

    for statement in statements:
        tvm_ffi.structural_walk(statement, visit)
    return used, written
