"""Maps that choose by intervals of their last index, as a map for each interval.

A concatenation, and the gradients of slices that are added up, compute something else on each side
of some indices: ``y[i] = a[i] if i < 64 else b[i - 64]``. A vector would need all sides. On one
interval the choice is made: the map for it runs in vectors.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import Range
from tvm.s_tir import SBlock

from ...ir.kernel_structure import (
    Stage,
    is_conditional,
    linear_coefficient,
    static,
    substitute_values,
)
from ...ir.passes import Phase, compiler_pass
from ...ir.visits import nodes_in
from .buffer_views import (
    BufferView,
    IndexMap,
    block_of,
    replace_by_parts,
    restated,
    stores_at_iterators,
)

_MAX_INTERVALS = 8
"""The most intervals of a map: each is a loop nest of its own to compile."""

_MIN_LENGTH = 16
"""The least length of an interval. A border of few elements costs little beside what it encloses,
and schedules of contractions know it (`borders`)."""

_FIRST_ABOVE = {tirx.GE: 0, tirx.LT: 0, tirx.GT: 1, tirx.LE: 1}
"""For each comparison of v with a number: how far above it another outcome begins."""

_MIRRORED = {tirx.GE: tirx.LE, tirx.LT: tirx.GT, tirx.GT: tirx.LT, tirx.LE: tirx.GE}


@compiler_pass(Phase.FUSED, over="kernel", targets=("llvm",), provides="interval_views")
def split_intervals(func: tirx.PrimFunc) -> tuple[tirx.PrimFunc, list[BufferView]]:
    """Replace each map that chooses by its last index by a map for each interval.

    Parameters
    ----------
    func : PrimFunc
        Made of stages, not scheduled yet.

    Returns
    -------
    (PrimFunc, list of BufferView)
        The views are joined after scheduling (`buffer_views.joined`): until then each map stores to
        a buffer of its own.
    """

    def parts_of(stage: Stage, nest: Any) -> list[tuple[BufferView, Any]]:
        block = block_of(nest)
        return [_piece(block, *ends) for ends in _intervals(stage, block)]

    return replace_by_parts(func, parts_of)


def _intervals(stage: Stage, block: SBlock) -> list[tuple[int, int]]:
    """The intervals of a map's last index on which its choices are the same; none of other stages.

    Each is given by its first index and the one behind its last.
    """
    if stage.reduced or not block.iter_vars or not stores_at_iterators(block):
        return []
    last = block.iter_vars[-1]
    extent = static(last.dom.extent)
    if not extent or static(last.dom.min) != 0:
        return []
    cuts = {cut for cut in _cuts(block.body.value, last.var) if 0 < cut < extent}
    ends = [0, *sorted(cuts), extent]
    if not 2 <= len(ends) - 1 <= _MAX_INTERVALS:
        return []
    intervals = list(pairwise(ends))
    return intervals if all(end - begin >= _MIN_LENGTH for begin, end in intervals) else []


def _cuts(value: Any, var: Any) -> Iterator[int]:
    """Yield the values of a variable at which the outcome of a choice's comparison changes."""
    for call in nodes_in(value, tvm.ir.Call):
        if is_conditional(call):
            for comparison in nodes_in(call.args[0], tuple(_FIRST_ABOVE)):
                difference = comparison.a - comparison.b
                # All in it but the variable has to be a number.
                coefficient = linear_coefficient(difference, var)
                offset = tvm.sym.Analyzer().simplify(
                    substitute_values(difference, {var: tirx.const(0, str(var.ty))})
                )
                if coefficient in (1, -1) and static(offset) is not None:
                    kind = type(comparison)
                    kind = kind if coefficient == 1 else _MIRRORED[kind]
                    yield -coefficient * int(offset) + _FIRST_ABOVE[kind]


def _piece(block: SBlock, begin: int, end: int) -> tuple[BufferView, Any]:
    """The part of a map's result on an interval, and the map that computes it."""
    *outer, last = block.iter_vars
    axes = [
        (tvm.ir.Var(i.var.name, i.var.ty), i.dom, tirx.IterVar.DataPar) for i in block.iter_vars
    ]
    dtype = str(last.var.ty)
    length = tirx.const(end - begin, dtype)
    var = axes[-1][0]
    axes[-1] = (var, Range.from_min_extent(tirx.const(0, dtype), length), tirx.IterVar.DataPar)
    values = {i.var: new for i, (new, _, _) in zip(outer, axes, strict=False)}
    values[last.var] = var + tirx.const(begin, dtype)
    base = block.body.buffer
    shape = [*list(base.shape)[:-1], length]
    buffer = tirx.decl_buffer(shape, base.dtype, f"{base.name}_from_{begin}")
    nest = restated(
        block, axes, values, {base: (buffer, _shifted(-begin))}, f"{block.name_hint}_from_{begin}"
    )
    return BufferView(buffer, base, _shifted(begin)), nest


def _shifted(by: int) -> IndexMap:
    """The map that moves the last index."""
    return lambda indices: [*indices[:-1], indices[-1] + by]
