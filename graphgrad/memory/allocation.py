"""Allocation first: a function allocates all memory that it needs before it computes anything.

Where memory is short the function then fails before it has overwritten any argument. This costs no
memory: each allocation is a storage of the memory plan, which many tensors use one after the other.
Storages freed early would not make room for later ones, because the pool of the virtual machine
reuses a freed storage only for a request of exactly its size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import zip_longest
from typing import Any

import tvm
from tvm import relax, s_tir, tirx

from ..ir.calls import calls_op
from ..ir.passes import Phase, compiler_pass
from ..ir.rewrite import begin_with, map_bindings, map_functions, replace_body
from ..ir.visits import nodes_in

PAGE = 4096
"""The pool of the virtual machine rounds each allocation up to a multiple of this many bytes."""


@compiler_pass(
    Phase.PLANNED,
    targets=("cuda",),
    after={"LowerAllocTensor": "from then on all memory is allocated in the same way"},
    before={"KillAfterLastUse": "what is given back early would be taken again"},
    because="a host promises more memory than it has, and takes none before it is used",
)
def allocate_first(mod: tvm.IRModule) -> tvm.IRModule:
    """Move the allocations of known size to the start of each function.

    An allocation inside a branch stays there, as does one whose size depends on the arguments.
    """
    return map_functions(mod, lambda _, func: _move_allocations_first(func))


def allocated_bytes(mod: tvm.IRModule) -> dict[str, int]:
    """The bytes that each function of a lowered module allocates, without those in branches."""
    return {
        name.name_hint: sum(map(bytes_taken, static_allocations(func, "relax.vm.alloc_storage")))
        for name, func in mod.functions.items()
        if isinstance(func, relax.Function)
    }


def scratch_bytes(kernel: tirx.PrimFunc) -> list[int]:
    """The size in bytes of each buffer that a scheduled kernel allocates for itself.

    It is the size in the generated code, where TVM has shrunk a buffer to the part that is in use
    at a time. A buffer in a parallel loop exists once per thread, but is counted once.
    """
    return [*map(_bytes, nodes_in(_planned(kernel).body, tirx.AllocBuffer))]


def pooled_bytes(kernels: Iterable[tirx.PrimFunc], threads: int) -> int:
    """The bytes that the threads of a processor keep for what kernels hold for themselves.

    Each thread has a pool of blocks, which only grow (TVM's ``workspace_pool``): as many as one
    kernel needs at a time, the largest as large as the largest that is asked for, and so on.
    """
    calling: list[int] = []
    working: list[int] = []
    for kernel in kernels:
        body = _planned(kernel).body
        loops = [f for f in nodes_in(body, tirx.For) if f.kind == tirx.ForKind.PARALLEL]
        in_loops = [*map(_bytes, {a for f in loops for a in nodes_in(f.body, tirx.AllocBuffer)})]
        calling = _at_least(calling, map(_bytes, nodes_in(body, tirx.AllocBuffer)))
        working = _at_least(working, in_loops)
    return sum(calling) + (threads - 1) * sum(working)


def _at_least(blocks: list[int], sizes: Iterable[int]) -> list[int]:
    """The blocks of a pool after a kernel that needs some sizes at a time, the largest first."""
    pairs = zip_longest(blocks, sorted(map(_paged, sizes), reverse=True), fillvalue=0)
    return [max(pair) for pair in pairs]


def _planned(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
    """A scheduled kernel with its buffers where they live, in the size that they have."""
    func = kernel.with_attr("global_symbol", "kernel")
    return _BUFFER_PLANNING_PASSES(tvm.IRModule({"kernel": func}))["kernel"]


def _bytes(allocation: tirx.AllocBuffer) -> int:
    buffer = allocation.buffer
    itemsize = tvm.DataType(str(buffer.dtype)).itemsize
    return math.prod(int(extent) for extent in buffer.shape) * itemsize


_BUFFER_PLANNING_PASSES = tvm.transform.Sequential(
    [
        s_tir.transform.CanonicalizeLoop(),
        s_tir.transform.LowerInitBlock(),
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
        s_tir.transform.LiftThreadBinding(),
        s_tir.transform.CompactBufferAllocation(),
        s_tir.transform.StmtSimplify(),
        s_tir.transform.LowerOpaqueBlock(),
        tirx.transform.FlattenBuffer(),
        tirx.transform.VectorizeLoop(),
        tirx.transform.StorageRewrite(),
    ]
)
"""The passes of TVM's own lowering that decide where buffers live and how large they are."""


def _move_allocations_first(func: relax.Function) -> relax.Function:
    allocations = static_allocations(func, "relax.memory.alloc_storage")
    if not allocations:
        return func
    # The sizes are constants, so that no moved allocation depends on another binding.
    moved = {binding.var for binding in allocations}
    remaining = map_bindings(func.body.blocks, lambda b: [] if b.var in moved else [b])
    body = relax.SeqExpr(remaining, func.body.body, func.body.span)
    return begin_with(replace_body(func, body), allocations)


def static_allocations(func: relax.Function, op: str) -> list[Any]:
    """The bindings of a function's outermost level that allocate a known size."""
    return [
        binding
        for block in func.body.blocks
        for binding in block.bindings
        if isinstance(binding, relax.VarBinding)
        and calls_op(binding.value, op)
        and _is_static(binding.value.args[0])
    ]


def _is_static(shape: Any) -> bool:
    return isinstance(shape, relax.ShapeExpr) and all(
        isinstance(extent, tvm.tirx.IntImm) for extent in shape.values
    )


def bytes_taken(allocation: Any) -> int:
    """The bytes that an allocation takes from the pool: its size, rounded up to pages."""
    return _paged(math.prod(int(extent) for extent in allocation.value.args[0].values))


def _paged(size: int) -> int:
    """A size in bytes, rounded up to pages."""
    return -(-size // PAGE) * PAGE
