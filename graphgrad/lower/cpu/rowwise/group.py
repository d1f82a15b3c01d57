"""Groups of a chain's stages that share a loop along the row, so that elements are read once."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx

from ....ir.kernel_structure import buffer_of, substitute_values
from .chain import Accesses, Chain, Part, Role

_MAX_RESULTS = 4
"""The most results of a group: each accumulator takes registers."""


def groups(chain: Chain) -> list[list[Part]]:
    """A chain's stages in groups, in order.

    The stages of a group have the same inner axes. Of an earlier stage's results in the group they
    read only the element of the same iteration, and no result that is complete only after the loop.
    """
    result: list[list[Part]] = []
    for part in chain.parts:
        if result and _fits(part, result[-1], chain.accesses):
            result[-1].append(part)
        else:
            result.append([part])
    return result


def _fits(part: Part, group: list[Part], accesses: Accesses) -> bool:
    """Whether a stage can share the loop along the row of a group."""
    inner = [axis.extent for axis in part.inner]
    if inner != [axis.extent for axis in group[0].inner]:
        return False
    if not inner:
        return True  # Stages of one number per row have no loop whose order could matter.
    few = sum(len(member.stage.stores) for member in (*group, part)) <= _MAX_RESULTS
    return few and all(_reads_where_written(part, member, accesses) for member in group)


def _reads_where_written(reader: Part, writer: Part, accesses: Accesses) -> bool:
    """Whether a stage reads of another's results only the element of the same iteration."""
    for store in writer.stage.stores:
        real = accesses.real_buffer(store.buffer)
        loads = [
            load
            for load in reader.stage.loads
            if accesses.real_buffer(buffer_of(load)).same_as(real)
        ]
        # A reduction's result is complete only after the loop; by another view, an element is read
        # that another iteration may store.
        if loads and writer.role is not Role.MAP:
            return False
        if any(not buffer_of(load).same_as(store.buffer) for load in loads):
            return False
        written = _in_terms_of(store.indices, writer, writer)
        if not all(_is_same(_in_terms_of(load.indices, reader, writer), written) for load in loads):
            return False
    return True


def _in_terms_of(indices: Any, part: Part, like: Part) -> list[Any]:
    """Indices of a part in terms of another part's variables, so that they can be compared."""
    variables = [*part.rows, *(axis.var for axis in part.inner)]
    like_variables = [*like.rows, *(axis.var for axis in like.inner)]
    values = dict(zip(variables, like_variables, strict=True))
    for axis in part.stage.axes:
        if axis.extent == 1:
            values[axis.var] = tirx.const(0, str(axis.var.ty.dtype))
    return [substitute_values(index, values) for index in indices]


def _is_same(first: list[Any], second: list[Any]) -> bool:
    return all(tvm_ffi.structural_equal(a, b) for a, b in zip(first, second, strict=True))
