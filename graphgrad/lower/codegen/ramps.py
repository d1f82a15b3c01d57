"""Vectors of consecutive numbers, as LLVM makes them in one instruction.

TVM's code puts them together element by element, unless all elements are constant: of 16 positions
along a row that takes 32 instructions. A position in a condition or in a value is such a vector.
One in an index is none: it becomes an address.
"""

from __future__ import annotations

from operator import is_
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import prim

from ...ir.kernel_structure import Load
from ...ir.rewrite import map_kernels
from ...ir.visits import replace_nodes


@tvm.transform.module_pass(opt_level=0, name="graphgrad.add_ramps")
def add_ramps(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
    """Write vectors of consecutive numbers as one number in all lanes plus constants.

    Parameters
    ----------
    mod : IRModule
        Of lowered kernels: TVM's simplifier would make one vector of both again.
    """
    return map_kernels(mod, lambda _, func: _changed(func))


def _changed(func: tirx.PrimFunc) -> tirx.PrimFunc:
    def changed(node: Any) -> Any:
        # What is inside an access has been changed before the access itself.
        return _sum(node) if isinstance(node, prim.Ramp) else _with_addresses(node)

    body = replace_nodes(func.body, (prim.Ramp, Load, tirx.BufferStore), changed)
    return func if body.same_as(func.body) else func.with_body(body)


def _sum(ramp: Any) -> Any:
    """A vector of consecutive numbers as a sum, unless it is constant."""
    if isinstance(ramp.base, prim.IntImm) or not isinstance(ramp.stride, prim.IntImm):
        return ramp
    steps = tirx.Ramp(tirx.const(0, str(ramp.base.ty)), ramp.stride, ramp.lanes)
    return tirx.Broadcast(ramp.base, ramp.lanes) + steps


def _with_addresses(access: Any) -> Any:
    """An access to memory whose indices are no sums."""
    old = list(access.indices)
    indices = [_ramp(index) for index in old]
    # Most accesses have none, and what is unchanged need not be made again, nor what is around it.
    if all(map(is_, indices, old)):
        return access
    if isinstance(access, tirx.BufferStore):
        return tirx.BufferStore(access.buffer, access.value, indices)
    return tirx.BufferLoad(access.source, indices)


def _ramp(index: Any) -> Any:
    """An index that is a sum as the vector of consecutive numbers that it was."""
    if not isinstance(index, prim.Add) or not isinstance(index.b, prim.Ramp):
        return index
    if not isinstance(index.a, prim.Broadcast):  # a number of each lane's own
        return index
    return tirx.Ramp(index.a.value + index.b.base, index.b.stride, index.b.lanes)
