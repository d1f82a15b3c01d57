"""Indices without quotients, remainders and casts that change nothing.

A reshape reads element ``i % 64`` of 64. Where the loop runs to 64 that is element ``i``, in which
schedules recognize a walk through memory. So it is with what a recurrence reads, whose own indices
are of 32 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import Range
from tvm.s_tir import SBlock

from ...ir.kernel_rewrite import replace_block
from ...ir.kernel_structure import Load
from ...ir.passes import Phase, compiler_pass
from ...ir.visits import nodes_in, replace_nodes
from .residue_indices import simplify_where_residues_are_known

_COMPARISONS = (tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE)

_LEAST, _MOST = -(1 << 31), (1 << 31) - 1
"""The range of an integer of 32 bits."""


@compiler_pass(Phase.FUSED, over="kernel", targets=("llvm",))
def simplify_indices(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Drop what the ranges of loops make needless in indices: quotients, remainders and casts."""
    if not _is_roundabout(func.body):
        return func
    return func.with_body(replace_nodes(func.body, SBlock, _simplify_block))


def _is_roundabout(node: Any) -> bool:
    """Whether an expression or statement has a quotient, a remainder, or a cast back and forth."""
    if nodes_in(node, (tirx.FloorDiv, tirx.FloorMod)):
        return True
    return any(_twice_cast(cast) is not None for cast in nodes_in(node, tirx.Cast))


def _twice_cast(node: Any) -> Any | None:
    """What a cast of a cast to 32 bits makes of an integer of its own dtype; None if it is none."""
    inner = node.value
    if not isinstance(inner, tirx.Cast) or str(inner.ty) != "int32":
        return None
    return inner.value if str(inner.value.ty) == str(node.ty) == "int64" else None


def _simplify_block(block: SBlock) -> SBlock:
    """A block that reads, and compares, at simple indices; what it stores to is left as it is."""
    if not block.iter_vars or not _is_roundabout(block.body):
        return block
    analyzer = tvm.sym.Analyzer()
    for axis in block.iter_vars:
        analyzer.bind(axis.var, Range.from_min_extent(axis.dom.min, axis.dom.extent))

    def narrow(node: Any) -> Any:
        value = _twice_cast(node)
        if value is None:
            return node
        bound = analyzer.const_int_bound(value)
        fits = bound.min_value >= _LEAST and bound.max_value <= _MOST
        return value if fits else node

    def simplified(index: Any) -> Any:
        if not _is_roundabout(index):
            return index
        return analyzer.simplify(replace_nodes(index, tirx.Cast, narrow))

    def load(node: Any) -> Any:
        if not any(map(_is_roundabout, node.indices)):
            return node
        return tirx.BufferLoad(node.source, [simplified(index) for index in node.indices])

    def compare(node: Any) -> Any:
        if not _is_integer(node.a) or not (_is_roundabout(node.a) or _is_roundabout(node.b)):
            return node
        return type(node)(_narrowed(node.a, simplified), _narrowed(node.b, simplified))

    body = replace_nodes(block.body, Load, load)
    body = replace_nodes(body, _COMPARISONS, compare)
    return simplify_where_residues_are_known(replace_block(block, body=body))


def _is_integer(value: Any) -> bool:
    return str(value.ty).startswith("int")


def _narrowed(value: Any, simplified: Callable[[Any], Any]) -> Any:
    """A side of a comparison that is simple, also below a cast of all of it to fewer bits."""
    if isinstance(value, tirx.Cast) and _is_integer(value.value):
        return tirx.Cast(value.ty, simplified(value.value))
    return simplified(value)
