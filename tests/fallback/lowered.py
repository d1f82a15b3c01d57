"""What a lowered function takes: memory for its own buffers, and elements that it writes."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import tvm_ffi
from tvm import s_tir, tirx


def buffers_of(func: tirx.PrimFunc) -> list[Any]:
    """Return all buffers that a function allocates."""
    buffers: list[Any] = []
    of_block = (s_tir.SBlock, lambda block: buffers.extend(block.alloc_buffers))
    of_statement = (tirx.AllocBuffer, lambda statement: buffers.append(statement.buffer))
    for callback in (of_block, of_statement):
        tvm_ffi.structural_walk(func.body, callback)
    return buffers


def allocated_bytes(func: tirx.PrimFunc) -> int:
    """Return the size of all buffers that a function allocates."""
    return sum(
        prod(int(extent) for extent in buffer.ty.shape) * np.dtype(str(buffer.ty.dtype)).itemsize
        for buffer in buffers_of(func)
    )


def stores(statement: Any) -> int:
    """Return how many elements a statement writes, each as often as it does, without those of init.

    A sum of n terms writes its element n times. Values that are bound in local memory do not count.
    """
    if isinstance(statement, tirx.For):
        return int(statement.extent) * stores(statement.body)
    if isinstance(statement, s_tir.SBlockRealize):
        return stores(statement.block.body)
    if isinstance(statement, tirx.SeqStmt):
        return sum(map(stores, statement.seq))
    if isinstance(statement, tirx.IfThenElse):
        branches = [statement.then_case, statement.else_case]
        return max(stores(branch) for branch in branches if branch is not None)
    if isinstance(statement, tirx.BufferStore):
        return 0 if statement.buffer.ty.storage_scope == "local" else 1
    if isinstance(statement, tirx.Bind | tirx.AllocBuffer):
        return 0
    raise TypeError(f"a {type(statement).__name__} is not among what is counted")
