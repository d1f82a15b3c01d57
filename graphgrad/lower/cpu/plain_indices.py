"""Indices without quotients and remainders that change nothing.

A reshape reads element ``i % 64`` of 64. Where the loop runs to 64 that is element ``i``, in which
schedules recognize a walk through memory.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.ir import Range
from tvm.s_tir import SBlock

from ...ir.kernel_rewrite import replace_block
from ...ir.kernel_structure import Load
from ...ir.passes import Phase, compiler_pass
from ...ir.visits import nodes_in, replace_nodes


@compiler_pass(Phase.FUSED, over="kernel", targets=("llvm",))
def simplify_indices(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Drop the quotients and remainders of indices that the ranges of loops make needless."""
    if not _divides(func.body):
        return func
    return func.with_body(replace_nodes(func.body, SBlock, _simplify_block))


def _divides(node: Any) -> bool:
    """Whether an expression or statement has a quotient or a remainder."""
    return bool(nodes_in(node, (tirx.FloorDiv, tirx.FloorMod)))


def _simplify_block(block: SBlock) -> SBlock:
    """A block whose loads have simple indices; what it stores to is left as it is."""
    if not block.iter_vars or not _divides(block.body):
        return block
    analyzer = tvm.sym.Analyzer()
    for axis in block.iter_vars:
        analyzer.bind(axis.var, Range.from_min_extent(axis.dom.min, axis.dom.extent))

    def simplified(indices: Any) -> list[Any]:
        return [analyzer.simplify(index) if _divides(index) else index for index in indices]

    def load(node: Any) -> Any:
        if not any(map(_divides, node.indices)):
            return node
        return tirx.BufferLoad(node.source, simplified(node.indices))

    return replace_block(block, body=replace_nodes(block.body, Load, load))
