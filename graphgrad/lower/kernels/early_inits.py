"""Results of reductions that are set before loops which may have no trips.

TVM sets a result in the first trip of the loops over its terms. Where a run-time extent is 0 there
is none, so that the result would stay unwritten.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize

from ...ir.kernel_rewrite import replace_realized, with_body
from ...ir.kernel_structure import REDUCTION_KIND, loop_nest, static, substitute_values
from ...ir.loops import own_loop, sequence, variable
from ...ir.visits import nodes_in, replace_nodes


def initialize_before_loops(statement: Any) -> Any:
    """A statement whose reductions over symbolic extents set their results before their loops."""
    every_loop = nodes_in(statement, tirx.For, outer_first=True)
    if all(static(each.extent) for each in every_loop):
        return statement
    outermost: dict[Any, Any] = {}  # by block, the variable of its outermost loop over terms
    for each in every_loop:
        nest = loop_nest(each)
        if nest is not None and nest[1].block.init is not None:
            loops, realize = nest
            reduced = _reduced(realize)
            extents = [static(loop.extent) for loop in loops if loop.loop_var in reduced]
            if each.loop_var in reduced and not all(extents):
                outermost.setdefault(realize.block, each.loop_var)
    if not outermost:
        return statement

    def initialize(each: Any) -> Any:
        nest = loop_nest(each)
        start = None if nest is None else outermost.get(nest[1].block)
        return each if start is None or not each.loop_var.same_as(start) else _split(each)

    return replace_nodes(statement, tirx.For, initialize)


def _split(outermost: Any) -> Any:
    """The loops that set the results of a reduction, and its loops over the terms, in turn."""
    nest = loop_nest(outermost)
    assert nest is not None
    loops, realize = nest
    block, reduced = realize.block, _reduced(realize)
    pairs = zip(block.iter_vars, realize.iter_values, strict=True)
    spatial = [pair for pair in pairs if int(pair[0].iter_type) != REDUCTION_KIND]
    own = {axis.var: variable(axis.var.name, str(axis.var.ty)) for axis, _ in spatial}
    body = SBlock(
        [tirx.IterVar(axis.dom, own[axis.var], axis.iter_type) for axis, _ in spatial],
        [],
        substitute_values(block.writes, own),
        f"{block.name_hint}_init",
        substitute_values(block.init, own),
    )
    start: Any = SBlockRealize([value for _, value in spatial], realize.predicate, body)
    for each in reversed(loops):
        if each.loop_var not in reduced:
            start = own_loop(each.loop_var, each.extent, start, each.kind, each.min)
    update = replace_realized(realize, init=None)
    for each in reversed(loops):
        update = with_body(each, update)
    return sequence(start, update)


def _reduced(realize: SBlockRealize) -> set[Any]:
    """The variables of the loops over the terms of a block."""
    pairs = zip(realize.block.iter_vars, realize.iter_values, strict=True)
    values = [value for iterator, value in pairs if int(iterator.iter_type) == REDUCTION_KIND]
    return set(nodes_in(values, tvm.ir.Var))
