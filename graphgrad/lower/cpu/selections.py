"""Choices of a map that may as well be selections, so that it runs in vectors.

A choice evaluates one of its values. Where both only read what is inside of its tensors, whatever
the condition says, both can be evaluated for all lanes of a vector. The gradient of a triangle
chooses so: it reads a cotangent of the same place, or none.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.ir import prim
from tvm.s_tir import SBlock

from ...ir.kernel_rewrite import replace_block
from ...ir.kernel_structure import (
    Load,
    Stage,
    buffer_of,
    is_conditional,
    stages,
    stride,
)
from ...ir.passes import Phase, compiler_pass
from ...ir.visits import nodes_in, replace_nodes
from .map import has_uniform_conditions

_ORDERS = (prim.LT, prim.LE, prim.GT, prim.GE)
"""What conditions may be made of: from an equality TVM computes an index."""

_INTEGER_DIVISIONS = (prim.Div, prim.Mod, prim.FloorDiv, prim.FloorMod)


@compiler_pass(
    Phase.FUSED,
    over="kernel",
    targets=("llvm",),
    after={"split_intervals": "where a condition is known for a part of a row, none is left there"},
)
def select_values(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Make selections of the choices that keep a map from running in vectors."""
    chosen = {stage.name for stage in stages(func) or [] if _waits_for_selections(stage)}
    if not chosen:
        return func

    def changed(block: SBlock) -> SBlock:
        return _with_selections(block) if str(block.name_hint) in chosen else block

    return func.with_body(replace_nodes(func.body, SBlock, changed))


def _waits_for_selections(stage: Stage) -> bool:
    """Whether a stage is a map that walks through memory, but chooses along its last axis."""
    if stage.reduced or not stage.axes or not stage.conditional:
        return False
    last = stage.axes[-1]
    return not has_uniform_conditions(stage, last) and all(
        stride(access, last.var) in (0, 1) for access in (*stage.stores, *stage.loads)
    )


def _with_selections(block: SBlock) -> SBlock:
    """A block with selections for the choices both of whose values can be evaluated."""
    analyzer = tvm.sym.Analyzer()
    for axis in block.iter_vars:
        analyzer.bind(axis.var, axis.dom)

    def is_inside(load: Any) -> bool:
        return all(
            _is_plain(index) and analyzer.can_prove(tirx.all(index >= 0, index < extent))
            for index, extent in zip(load.indices, buffer_of(load).shape, strict=True)
        )

    def selected(node: Any) -> Any:
        if not is_conditional(node):
            return node
        condition, *values = node.args
        if not _is_order(condition) or not all(map(_may_be_evaluated, values)):
            return node
        if not all(map(is_inside, nodes_in([condition, *values], Load))):
            return node
        return tirx.Select(condition, *values)

    body = replace_nodes(block.body, tvm.ir.Call, selected)
    return block if body.same_as(block.body) else replace_block(block, body=body)


def _is_order(condition: Any) -> bool:
    """Whether a condition is made of comparisons of order."""
    if isinstance(condition, (prim.And, prim.Or)):
        return _is_order(condition.a) and _is_order(condition.b)
    if isinstance(condition, prim.Not):
        return _is_order(condition.a)
    return isinstance(condition, _ORDERS)


def _may_be_evaluated(value: Any) -> bool:
    """Whether a value can be computed where nobody asks for it: no division of integers fails."""
    return all(
        isinstance(node.b, prim.IntImm) or "int" not in str(node.ty)
        for node in nodes_in(value, _INTEGER_DIVISIONS)
    ) and not any(map(is_conditional, nodes_in(value, tvm.ir.Call)))


def _is_plain(index: Any) -> bool:
    """Whether an index has no clamping, which TVM would drop where a condition implies it.

    A selection reads both of its values.
    """
    if isinstance(index, (prim.Add, prim.Sub, prim.Mul)):
        return _is_plain(index.a) and _is_plain(index.b)
    return isinstance(index, (tvm.ir.Var, prim.IntImm))
