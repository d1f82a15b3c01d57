"""Stages of a chain that share a walk along the row, so that what they read is read once."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx

from ....ir.kernel_structure import buffer_of, substitute_values
from .chain import Chain, Part, Role

_MAX_RESULTS = 4
"""Results of a group: each accumulator takes registers."""


def groups(chain: Chain) -> list[list[Part]]:
    """A chain's stages in groups, in order.

    Those of a group have the same inner axes. Of what an earlier one of the group has made they
    read no more than the element at which they are, and nothing that is complete only at its end.
    """
    found: list[list[Part]] = []
    for part in chain.parts:
        if found and _fits(part, found[-1]):
            found[-1].append(part)
        else:
            found.append([part])
    return found


def _fits(part: Part, group: list[Part]) -> bool:
    inner = [axis.extent for axis in part.inner]
    if inner != [axis.extent for axis in group[0].inner]:
        return False
    if not inner:
        return True
    few = sum(len(one.stage.stores) for one in (*group, part)) <= _MAX_RESULTS
    return few and all(_reads_where_written(part, one) for one in group)


def _reads_where_written(reader: Part, writer: Part) -> bool:
    """Whether a stage reads of another's results no more than the element just made."""
    for store in writer.stage.stores:
        loads = [load for load in reader.stage.loads if buffer_of(load).same_as(store.buffer)]
        if loads and writer.role is not Role.MAP:
            return False
        written = _in_places(store.indices, writer, writer)
        if not all(_is_same(_in_places(load.indices, reader, writer), written) for load in loads):
            return False
    return True


def _in_places(indices: Any, part: Part, like: Part) -> list[Any]:
    """Indices with a part's variables named as another part's."""
    names = [*part.rows, *(axis.var for axis in part.inner)]
    others = [*like.rows, *(axis.var for axis in like.inner)]
    values = dict(zip(names, others, strict=True))
    for axis in part.stage.axes:
        if axis.extent == 1:
            values[axis.var] = tirx.const(0, str(axis.var.ty.dtype))
    return [substitute_values(index, values) for index in indices]


def _is_same(one: list[Any], other: list[Any]) -> bool:
    return all(tvm_ffi.structural_equal(a, b) for a, b in zip(one, other, strict=True))
