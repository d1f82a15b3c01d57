"""Interleaved tensors stored in place, without a stage that interleaves.

The gradient of a strided read consists of residue classes, one for each remainder of the positions
by the stride, and of a stage that merges them: ``y[i] = even[i // 2] if i % 2 == 0 else
odd[i // 2]``. Such a stage is replaced by maps over the quotients, one for each combination of
remainders. Each takes the results of one residue class, and so can be its epilogue
(`lower/kernels/epilogue.py`). What else the stage computes, because fusion has put it there, goes
into the maps as well. A stage stays that merges classes without terms, as those of a strided window
of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product as combinations
from math import lcm, prod
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import Range
from tvm.s_tir import SBlock

from ...ir.kernel_structure import (
    Load,
    Stage,
    buffer_of,
    is_among,
    is_conditional,
    linear_coefficient,
    static,
    stride,
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
from .clamps import unclamped

_MAX_PARTS = 16
"""The most parts of a tensor: each is a loop nest of its own to compile."""


@compiler_pass(Phase.FUSED, over="kernel", targets=("llvm",), provides="residue_views")
def split_residues(func: tirx.PrimFunc) -> tuple[tirx.PrimFunc, list[BufferView]]:
    """Replace each merging stage by a map for each combination of remainders.

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
    internal = list(func.body.block.alloc_buffers)

    def parts_of(stage: Stage, nest: Any) -> list[tuple[BufferView, Any]]:
        moduli = _moduli(stage, nest, internal)
        parts = [] if moduli is None else _parts(block_of(nest), moduli)
        # A class without terms would be one more pass over the whole tensor, to store zeros.
        return parts if all(_read_any(nodes_in(part, Load), internal) for _, part in parts) else []

    return replace_by_parts(func, parts_of)


def _moduli(stage: Stage, nest: Any, internal: Sequence[Any]) -> tuple[int, ...] | None:
    """The modulus that splits each dimension of a merging stage's result, 1 where none does.

    None if the stage merges nothing, or cannot be split.
    """
    block = block_of(nest)
    if stage.reduced or not stores_at_iterators(block):
        return None
    # Without a result of the kernel's own among its reads it merges no residue classes.
    if not _read_any(stage.loads, internal):
        return None
    divisors = _divisors(block.body.value)
    last = block.iter_vars[-1].var
    if all(stride(unclamped(load, last), last) in (0, 1) for load in stage.loads):
        divisors.pop(last, None)  # neighbors are vectors, with a mask (`vector_nests.py`)
    moduli = tuple(divisors.get(index, 1) for index in block.body.indices)
    static_ranges = all(
        modulus == 1 or (static(iterator.dom.min) == 0 and static(iterator.dom.extent))
        for iterator, modulus in zip(block.iter_vars, moduli, strict=True)
    )
    return moduli if static_ranges and 1 < prod(moduli) <= _MAX_PARTS else None


def _read_any(loads: Sequence[Any], buffers: Sequence[Any]) -> bool:
    return any(is_among(buffer_of(load), buffers) for load in loads)


def _divisors(value: Any) -> dict[Any, int]:
    """The common modulus of the remainders in an expression's conditions, by variable."""
    divisors: dict[Any, int] = {}
    conditions = [call.args[0] for call in nodes_in(value, tvm.ir.Call) if is_conditional(call)]
    for node in nodes_in(conditions, tirx.FloorMod):
        variables = nodes_in(node.a, tvm.ir.Var)
        divisor = static(node.b)
        if len(variables) == 1 and divisor and linear_coefficient(node.a, variables[0]) == 1:
            # Positions congruent modulo the least common multiple are so modulo each divisor.
            divisors[variables[0]] = lcm(divisors.get(variables[0], 1), divisor)
    return divisors


def _parts(block: SBlock, moduli: tuple[int, ...]) -> list[tuple[BufferView, Any]]:
    """The parts of a merging stage's result, and the map that computes each."""
    views_and_nests = []
    for residues in combinations(*(range(modulus) for modulus in moduli)):
        axes, values = [], {}
        for iterator, modulus, residue in zip(block.iter_vars, moduli, residues, strict=True):
            var = tvm.ir.Var(iterator.var.name, iterator.var.ty)
            axes.append((var, _quotients(iterator.dom, modulus, residue), tirx.IterVar.DataPar))
            values[iterator.var] = var if modulus == 1 else var * modulus + residue
        # A dimension shorter than its modulus has no elements of the last remainders.
        if any(static(dom.extent) == 0 for _, dom, _ in axes):
            continue
        base = block.body.buffer
        part_buffer = tirx.decl_buffer(
            [dom.extent for _, dom, _ in axes], base.dtype, f"{base.name}_part"
        )
        name = f"{block.name_hint}_{''.join(map(str, residues))}"
        quotients_of = _quotients_of(moduli)
        nest = restated(block, axes, values, {base: (part_buffer, quotients_of)}, name)
        views_and_nests.append((BufferView(part_buffer, base, _positions(moduli, residues)), nest))
    return views_and_nests


def _quotients(dom: Range, modulus: int, residue: int) -> Range:
    """The range of the quotients of those positions whose remainder is `residue`."""
    if modulus == 1:
        return dom
    count = -(-(int(dom.extent) - residue) // modulus)
    return Range.from_min_extent(dom.min, tirx.const(count, str(dom.extent.ty.dtype)))


def _quotients_of(moduli: tuple[int, ...]) -> IndexMap:
    """The map from indices in the whole tensor to those in the part of their residue class."""

    def to_part(indices: Sequence[Any]) -> list[Any]:
        return [
            index if modulus == 1 else tirx.floordiv(index, modulus)
            for index, modulus in zip(indices, moduli, strict=True)
        ]

    return to_part


def _positions(moduli: tuple[int, ...], residues: tuple[int, ...]) -> IndexMap:
    """The map from indices in the part with given remainders to those in the whole tensor."""

    def to_whole(indices: Sequence[Any]) -> list[Any]:
        return [
            index if modulus == 1 else index * modulus + residue
            for index, modulus, residue in zip(indices, moduli, residues, strict=True)
        ]

    return to_whole
