"""Contractions on a GPU: TVM's tiles in shared memory, after checks that TVM leaves out.

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
    substitute_values,
    uses,
    volume,
)
from ...ir.loops import block, bound, variable
from ..kernels.contraction import operands
from .threads import at_point, divisor

_MAX_TERMS_PER_THREAD = 2560
"""Terms that one thread adds up one after the other: more lose accuracy in float32."""

_MIN_TERMS_PER_PART = 256
"""Terms that a part must have for cutting a sum to be worth a launch."""

_MIN_BUSY_BLOCKS = 256
"""Blocks of threads that keep a large GPU busy."""

_TILE = (32, 64)
"""Outputs of a block of threads in TVM's rule."""

_OLD_GPU = tvm.target.Target({"kind": "cuda", "arch": "sm_60"})
"""TVM's rule is told of an old GPU: its tensor-core code adds up in half precision if it may."""


class _Tiles(dlight.gpu.Matmul):
    """TVM's rule for matrix products, with loops that the CUDA compiler unrolls, not TVM."""

    def get_configs(self, target: tvm.target.Target) -> Any:
        config = super().get_configs(target)
        config.unroll = 0
        return config


def cut_long_sums(sch: Schedule, stage: Stage) -> None:
    """Cut the sums of a contraction into parts, if they are long or outputs are few."""
    found = _sum_split(stage)
    if found is None:
        return
    axes, parts = found
    whole = sch.get_sblock(stage.name)
    loops = sch.get_loops(whole)
    first = len(stage.spatial)
    terms = loops[first : first + axes]
    fused = sch.fuse(*terms) if axes > 1 else terms[0]
    part, _ = sch.split(fused, [parts, None])
    partial = sch.rfactor(part, 0)
    for stage_of_two in (partial, whole):
        outer = sch.get_loops(stage_of_two)  # in the order of the block's iterators
        sch.reorder(outer[first], *outer[:first])


def tiles(group: Sequence[Any], shared: Sequence[Any]) -> tuple[list[Any], list[Any]] | None:
    """A contraction's kernel, and its buffers; None if TVM's rule does not take it.

    Parameters
    ----------
    group : sequence of Stmt
        The stage of the contraction, with the maps to be computed in the same kernel.
    shared : sequence of Buffer
        Those that others than the group write or read.
    """
    used, written = used_buffers(group)
    own = [b for b in written if not any(b.same_as(s) for s in shared)]
    params = [b for b in used if not any(b.same_as(o) for o in own)]
    func = tirx.PrimFunc(params, block("root", *group, buffers=own))
    try:
        with _OLD_GPU:
            schedule = _Tiles().apply(func, _OLD_GPU, False)
    except Exception:  # TVM's rule raises whatever it likes where it does not fit
        return None
    if schedule is None:
        return None
    done = schedule.mod["main"]
    kernels = [_on_one_axis(statement) for statement in statements_of(done.body.block.body)]
    if None in kernels:
        return None  # a map is left that could not be computed inside
    renamed = dict(zip(done.params, params, strict=True))
    return [substitute_values(kernel, renamed) for kernel in kernels], list(
        done.body.block.alloc_buffers
    )


def _on_one_axis(kernel: Any) -> Any | None:
    """A kernel of TVM's rule with a grid of one axis; None for another statement.

    Along the second axis a grid has at most 65535 blocks, too few for many small products; and a
    grid without blocks, which a symbolic extent of 0 makes, is an error of the driver: it gets one,
    all of whose outputs are padding.
    """
    if _tag(kernel) != "blockIdx.y" or _tag(kernel.body) != "blockIdx.x":
        return None
    outer, inner = kernel, kernel.body
    width = divisor(inner.extent)
    blocks = tvm.sym.Analyzer().simplify(divisor(outer.extent) * width)
    number = variable("block")
    body = substitute_values(inner.body, at_point([outer, inner], number))
    return bound(number, blocks, "blockIdx.x", body)


def _tag(loop: Any) -> str | None:
    """Which threads a loop runs over."""
    threads = loop.thread_binding if isinstance(loop, tirx.For) else None
    return None if threads is None else str(threads.thread_tag)


def may_tile(stage: Stage) -> bool:
    """Whether a stage is a contraction that TVM's rule computes as it is meant."""
    pair = operands(stage)
    if pair is None or any(axis.extent == 0 for axis in stage.axes):
        return False
    both, left, right = _kinds(stage, pair)
    if any(axis.extent is None for axis in both):
        return False  # TVM's rule pads the others alone, and an empty grid gets one block
    terms = [axis.extent for axis in stage.reduced]
    short = None in terms or math.prod(terms) <= _MAX_TERMS_PER_THREAD  # type: ignore[arg-type]
    return bool(left and right) and short


def _sum_split(stage: Stage) -> tuple[int, int] | None:
    """How many leading reduced axes to cut, as one, and into how many parts."""
    pair = operands(stage)
    if pair is None or stage.axes[0].reduced or any(not axis.extent for axis in stage.axes):
        return None
    both, left, right = _kinds(stage, pair)
    rows, columns = (math.ceil(volume(a) / t) for a, t in zip((left, right), _TILE, strict=True))
    terms = volume(stage.reduced)
    wanted = min(
        math.ceil(_MIN_BUSY_BLOCKS / (volume(both) * rows * columns)), terms // _MIN_TERMS_PER_PART
    )
    wanted = max(wanted, math.ceil(terms / _MAX_TERMS_PER_THREAD))
    if wanted <= 1:
        return None
    for axes in range(1, len(stage.reduced) + 1):
        length = volume(stage.reduced[:axes])
        exact = [d for d in range(wanted, min(4 * wanted, length) + 1) if length % d == 0]
        if exact:
            return axes, exact[0]
    return None


def _kinds(stage: Stage, pair: tuple[Any, Any]) -> tuple[list[Axis], list[Axis], list[Axis]]:
    """The axes of the outputs that both operands are read along, or one of them."""
    along = [(axis, [uses(load, axis.var) > 0 for load in pair]) for axis in stage.spatial]
    return (
        [axis for axis, (left, right) in along if left and right],
        [axis for axis, (left, right) in along if left and not right and axis.extent != 1],
        [axis for axis, (left, right) in along if right and not left and axis.extent != 1],
    )


def used_buffers(statements: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The buffers that statements use, and those of them that they write."""
    used: list[Any] = []
    written: list[Any] = []

    def note(buffer: Any, into: list[Any]) -> None:
        if not any(buffer.same_as(seen) for seen in into):
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
