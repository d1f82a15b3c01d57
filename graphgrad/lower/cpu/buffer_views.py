"""Buffers that stand for parts or other views of a buffer while a kernel is scheduled.

Schedules want one writer of each buffer, which stores at plain loop variables. Where a kernel is
better computed otherwise (phase by phase, group by group) its stages are restated over other axes,
and store to buffers that have these as dimensions. After scheduling each access goes to its place
in the buffer that is meant.
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
from ...ir.kernel_structure import Load, is_conditional, loop_nest, static, substitute_values
from ...ir.loops import over_axes

Places = Callable[[Sequence[Any]], list[Any]]
"""From the indices of an element to its indices in another buffer; none falls where one grows."""


@dataclass(frozen=True)
class BufferView:
    """A buffer that stands for another one, or for a part of it.

    Attributes
    ----------
    own : Buffer
        What is accessed while the kernel is scheduled.
    whole : Buffer
        What is meant.
    places : function
        From indices of the first to those of the second.
    """

    own: Any
    whole: Any
    places: Places

    def keeps_addresses(self) -> bool:
        """Whether each element is where it would be if both had the same memory."""
        names = [tvm.ir.Var("i", str(extent.ty.dtype)) for extent in self.own.shape]
        own = _address(self.own, names)
        whole = _address(self.whole, self.places(names))
        return bool(tvm.sym.Analyzer().can_prove_equal(own, whole))


def _address(buffer: Any, indices: Sequence[Any]) -> Any:
    """How many elements an access is behind the first one."""
    address = indices[0]
    for index, extent in zip(indices[1:], list(buffer.shape)[1:], strict=True):
        address = address * extent + index
    return address


def joined(body: Any, stand_ins: Sequence[BufferView]) -> Any:
    """A kernel's body, scheduled, in which all accesses are of the buffers that are meant.

    Parameters
    ----------
    body : Stmt
    stand_ins : sequence of BufferView
        One may stand for another that comes before it.
    """
    for stand_in in reversed(stand_ins):
        body = _merge_view(body, stand_in)
    return body


def restated(
    block: SBlock,
    axes: Sequence[tuple[Any, Range, int]],
    values: Mapping[Any, Any],
    moved: Mapping[Any, tuple[Any, Places]],
    name: str,
) -> Any:
    """A loop nest that does what a block does, over other axes.

    Parameters
    ----------
    block : SBlock
        Whose statement is one store, and whose initial statement is another if it reduces.
    axes : sequence of (Var, Range, int)
        The new axes: the variable of each, its range and its kind as TVM numbers them.
    values : dict
        The block's variables in terms of the new ones.
    moved : dict
        From a buffer to the one that is accessed in its place, and the indices there.
    name : str
        Of the new block.
    """
    analyzer = tvm.sym.Analyzer()
    for var, dom, _ in axes:
        analyzer.bind(var, dom)
    body = _simplified(substitute_values(block.body, values), moved, analyzer)
    init = block.init
    init = None if init is None else _simplified(substitute_values(init, values), moved, analyzer)
    iterators = [tirx.IterVar(dom, var, kind) for var, dom, kind in axes]
    new = SBlock(iterators, [], [], name, body, init)
    reads, writes, _ = get_sblock_access_region(new, _buffers(body))
    return over_axes(replace_block(new, reads=reads, writes=writes))


def replace_nests(
    func: tirx.PrimFunc, nests: Sequence[Any], buffers: Sequence[Any]
) -> tirx.PrimFunc:
    """A kernel made of other nests, with other buffers of its own."""
    return func.with_body(replace_statements(func.body, nests, buffers))


def block_of(nest: Any) -> SBlock:
    """The block inside the loops of a stage."""
    found = loop_nest(nest)
    assert found is not None
    return found[1].block


def _simplified(
    statement: Any, moved: Mapping[Any, tuple[Any, Places]], analyzer: tvm.sym.Analyzer
) -> Any:
    """A statement with simple indices, and without branches that are never taken.

    Its arithmetic is left as it is.
    """

    def branch(node: Any) -> Any:
        if not is_conditional(node):
            return node
        condition = static(analyzer.simplify(node.args[0]))
        return node if condition is None else node.args[1 if condition else 2]

    def place(buffer: Any, indices: Sequence[Any]) -> tuple[Any, list[Any]]:
        simple = [analyzer.simplify(index) for index in indices]
        if buffer not in moved:
            return buffer, simple
        other, places = moved[buffer]
        return other, [analyzer.simplify(index) for index in places(simple)]

    def load(node: Any) -> Any:
        return tirx.BufferLoad(*place(node.source, node.indices))

    def store(node: Any) -> Any:
        buffer, indices = place(node.buffer, node.indices)
        return tirx.BufferStore(buffer, node.value, indices)

    changes = [(tvm.ir.Call, branch), (Load, load), (tirx.BufferStore, store)]
    return tvm_ffi.structural_map(statement, changes)


def _merge_view(body: Any, stand_in: BufferView) -> Any:
    own, whole = stand_in.own, stand_in.whole

    def store(node: Any) -> Any:
        if not node.buffer.same_as(own):
            return node
        return tirx.BufferStore(whole, node.value, stand_in.places(node.indices))

    def load(node: Any) -> Any:
        if not node.source.same_as(own):
            return node
        return tirx.BufferLoad(whole, stand_in.places(node.indices))

    def block(node: Any) -> Any:
        return replace_block(
            node,
            reads=[_region(region, stand_in) for region in node.reads],
            writes=[_region(region, stand_in) for region in node.writes],
            alloc_buffers=[buffer for buffer in node.alloc_buffers if not buffer.same_as(own)],
        )

    changes = [(tirx.BufferStore, store), (Load, load), (SBlock, block)]
    return tvm_ffi.structural_map(body, changes)


def _region(region: Any, stand_in: BufferView) -> Any:
    if not region.source.same_as(stand_in.own):
        return region
    first = stand_in.places([one.min for one in region.region])
    last = stand_in.places([one.min + one.extent - 1 for one in region.region])
    ranges = [Range.from_min_extent(a, b - a + 1) for a, b in zip(first, last, strict=True)]
    return tvm.ir.TensorRegion(stand_in.whole, ranges, region.ty)


def _buffers(store: Any) -> dict[Any, Any]:
    """The buffers that a store reads and writes."""
    found = {store.buffer: store.buffer}
    tvm_ffi.structural_walk(store, (Load, lambda node: found.update({node.source: node.source})))
    return found
