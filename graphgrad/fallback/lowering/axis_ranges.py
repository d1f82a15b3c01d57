"""Ranges of blocks' axes: those of the loops that they go over.

`te.create_prim_func` with `index_dtype_override` shortens the range of an axis that begins after 0
by its beginning, and so leaves out the last steps of a scan.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import Range
from tvm.s_tir import SBlockRealize

from ...ir.kernel_rewrite import replace_realized
from ...ir.kernel_structure import static
from ...ir.visits import nodes_in, replace_nodes


def restore_ranges(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """A function in which each axis that goes over one loop has that loop's range."""
    loops = {loop.loop_var: loop for loop in nodes_in(func.body, tirx.For) if static(loop.min) != 0}
    if not loops:
        return func

    def axis(each: Any, value: Any) -> Any:
        loop = loops.get(value)
        if loop is None:
            return each
        dom = Range.from_min_extent(loop.min, loop.extent)
        return tirx.IterVar(dom, each.var, each.iter_type, each.thread_tag)

    def realized(node: Any) -> Any:
        axes = list(map(axis, node.block.iter_vars, node.iter_values))
        pairs = zip(axes, node.block.iter_vars, strict=True)
        if all(new is old for new, old in pairs):
            return node
        return replace_realized(node, iter_vars=axes)

    return func.with_body(replace_nodes(func.body, SBlockRealize, realized))
