"""Buffers that stand for parts or other views of a buffer while a kernel is scheduled.

Schedules want one writer of each buffer, which stores at plain loop variables. Where a kernel is
better computed otherwise (phase by phase, group by group) its stages are restated over other axes,
and store to buffers that have these as dimensions. After scheduling each access is redirected to
its element of the real buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Range
from tvm.s_tir import SBlock
from tvm.s_tir.analysis import get_sblock_access_region

from ...ir.kernel_rewrite import replace_block, replace_statements
from ...ir.kernel_structure import (
    Load,
    Stage,
    is_conditional,
    loop_nest,
    stages,
    statements_of,
    static,
    substitute_values,
)
from ...ir.loops import over_axes
from ...ir.visits import nodes_in

IndexMap = Callable[[Sequence[Any]], list[Any]]
"""Maps the indices of an element to the indices of the same element in another buffer."""


@dataclass(frozen=True)
class BufferView:
    """A buffer that stands for another one, or for a part of it.

    Attributes
    ----------
    buffer : Buffer
        What is accessed while the kernel is scheduled.
    base : Buffer
        The real buffer, which is accessed afterwards (NumPy: the base of a view).
    to_base : function
        From indices of `buffer` to those of `base`. It is monotone: where an index grows, no result
        falls.
    """

    buffer: Any
    base: Any
    to_base: IndexMap

    def keeps_addresses(self) -> bool:
        """Whether each element of `buffer` has the same offset as its element of `base`."""
        indices = [tvm.ir.Var("i", str(extent.ty.dtype)) for extent in self.buffer.shape]
        own = address(self.buffer, indices)
        in_base = address(self.base, self.to_base(indices))
        return bool(tvm.sym.Analyzer().can_prove_equal(own, in_base))


def address(buffer: Any, indices: Sequence[Any]) -> Any:
    """The offset of an element, in elements, of a buffer in row-major order."""
    offset = indices[0]
    for at, extent in zip(indices[1:], list(buffer.shape)[1:], strict=True):
        offset = offset * extent + at
    return offset


def joined(body: Any, views: Sequence[BufferView]) -> Any:
    """A scheduled kernel's body in which all accesses are of the real buffers.

    Parameters
    ----------
    body : Stmt
    views : sequence of BufferView
        The `base` of one may be the `buffer` of another that comes before it.
    """
    # Backwards, because a view may stand for an earlier view.
    for view in reversed(views):
        body = _merge_view(body, view)
    return body


def restated(
    block: SBlock,
    axes: Sequence[tuple[Any, Range, int]],
    values: Mapping[Any, Any],
    moved: Mapping[Any, tuple[Any, IndexMap]],
    name: str,
) -> Any:
    """A loop nest that computes what a block does, over other axes.

    Parameters
    ----------
    block : SBlock
        Its body is one store; if it reduces, its initial statement is one store too.
    axes : sequence of (Var, Range, int)
        The new axes: the variable of each, its range and its kind as TVM numbers them.
    values : dict
        The block's variables in terms of the new ones.
    moved : dict
        From a buffer to the one that is accessed instead, and the map from indices of the first
        to those of the second.
    name : str
        The new block's name.
    """
    analyzer = tvm.sym.Analyzer()
    for var, dom, _ in axes:
        analyzer.bind(var, dom)
    body = _simplified(substitute_values(block.body, values), moved, analyzer)
    init = block.init
    init = None if init is None else _simplified(substitute_values(init, values), moved, analyzer)
    iterators = [tirx.IterVar(dom, var, kind) for var, dom, kind in axes]
    new_block = SBlock(iterators, [], [], name, body, init)
    reads, writes, _ = get_sblock_access_region(new_block, _buffers(body))
    return over_axes(replace_block(new_block, reads=reads, writes=writes))


def replace_nests(
    func: tirx.PrimFunc, nests: Sequence[Any], buffers: Sequence[Any]
) -> tirx.PrimFunc:
    """The kernel with its nests, and the buffers that it allocates, replaced."""
    return func.with_body(replace_statements(func.body, nests, buffers))


def replace_by_parts(
    func: tirx.PrimFunc, parts_of: Callable[[Stage, Any], Sequence[tuple[BufferView, Any]]]
) -> tuple[tirx.PrimFunc, list[BufferView]]:
    """The kernel with stages replaced by others for parts of their results.

    Parameters
    ----------
    func : PrimFunc
        Made of stages, not scheduled yet.
    parts_of : callable
        Maps a stage and its nest to the parts of its result, each with the nest that computes it;
        to none if it stays.

    Returns
    -------
    (PrimFunc, list of BufferView)
        The views are joined after scheduling (`joined`): until then each nest stores to a buffer of
        its own.
    """
    views: list[BufferView] = []
    nests: list[Any] = []
    for stage, nest in zip(stages(func) or [], statements_of(func.body.block.body), strict=True):
        parts = parts_of(stage, nest)
        views += [view for view, _ in parts]
        nests += [part_nest for _, part_nest in parts] or [nest]
    if not views:
        return func, []
    internal = [*func.body.block.alloc_buffers, *(view.buffer for view in views)]
    return replace_nests(func, nests, internal), views


def stores_at_iterators(block: SBlock) -> bool:
    """Whether a block is one store, at the block's iterators in their order."""
    if not isinstance(block.body, tirx.BufferStore):
        return False
    iterators, indices = list(block.iter_vars), list(block.body.indices)
    return len(iterators) == len(indices) and all(
        index.same_as(iterator.var) for index, iterator in zip(indices, iterators, strict=True)
    )


def block_of(nest: Any) -> SBlock:
    """The block inside the loops of a stage."""
    loops_and_block = loop_nest(nest)
    assert loops_and_block is not None
    return loops_and_block[1].block


def _simplified(
    statement: Any, moved: Mapping[Any, tuple[Any, IndexMap]], analyzer: tvm.sym.Analyzer
) -> Any:
    """A statement with buffers moved, indices simplified and choices of known outcome resolved.

    All other arithmetic is left as it is.
    """

    def branch(node: Any) -> Any:
        if not is_conditional(node):
            return node
        condition = static(analyzer.simplify(node.args[0]))
        return node if condition is None else node.args[1 if condition else 2]

    def moved_access(buffer: Any, indices: Sequence[Any]) -> tuple[Any, list[Any]]:
        simplified = [analyzer.simplify(index) for index in indices]
        if buffer not in moved:
            return buffer, simplified
        target, index_map = moved[buffer]
        return target, [analyzer.simplify(index) for index in index_map(simplified)]

    def load(node: Any) -> Any:
        return tirx.BufferLoad(*moved_access(node.source, node.indices))

    def store(node: Any) -> Any:
        buffer, indices = moved_access(node.buffer, node.indices)
        return tirx.BufferStore(buffer, node.value, indices)

    changes = [(tvm.ir.Call, branch), (Load, load), (tirx.BufferStore, store)]
    return tvm_ffi.structural_map(statement, changes)


def _merge_view(body: Any, view: BufferView) -> Any:
    """A body in which accesses of one view are of its real buffer, and it is not allocated."""
    view_buffer, base = view.buffer, view.base

    def store(node: Any) -> Any:
        if not node.buffer.same_as(view_buffer):
            return node
        return tirx.BufferStore(base, node.value, view.to_base(node.indices))

    def load(node: Any) -> Any:
        if not node.source.same_as(view_buffer):
            return node
        return tirx.BufferLoad(base, view.to_base(node.indices))

    def block(node: Any) -> Any:
        return replace_block(
            node,
            reads=[_region(region, view) for region in node.reads],
            writes=[_region(region, view) for region in node.writes],
            alloc_buffers=[
                buffer for buffer in node.alloc_buffers if not buffer.same_as(view_buffer)
            ],
        )

    changes = [(tirx.BufferStore, store), (Load, load), (SBlock, block)]
    return tvm_ffi.structural_map(body, changes)


def _region(region: Any, view: BufferView) -> Any:
    """A region that a block reads or writes, in the real buffer."""
    if not region.source.same_as(view.buffer):
        return region
    # The indices are monotone, so the first and the last element bound the region.
    first = view.to_base([axis.min for axis in region.region])
    last = view.to_base([axis.min + axis.extent - 1 for axis in region.region])
    ranges = [Range.from_min_extent(a, b - a + 1) for a, b in zip(first, last, strict=True)]
    return tvm.ir.TensorRegion(view.base, ranges, region.ty)


def _buffers(store: Any) -> dict[Any, Any]:
    """The buffers that a store reads and writes."""
    buffers = [store.buffer, *(load.source for load in nodes_in(store, Load))]
    return dict(zip(buffers, buffers, strict=True))
