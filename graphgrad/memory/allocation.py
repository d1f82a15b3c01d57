"""Allocation first: a function takes the memory that it needs before it computes anything.

Where memory is short it then fails while everything that it was to overwrite is still whole. The
pieces of memory are those of the plan, each used by many tensors in turn; taken later and given
back earlier they would not make room for one another, because the pool of the virtual machine
hands out a piece only for exactly its size.
"""

from __future__ import annotations

import math
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, s_tir, tirx

from ..ir.calls import calls_op
from ..ir.passes import Phase, compiler_pass
from ..ir.rewrite import map_functions, replace_body

PAGE = 4096
"""Bytes of which the pool of the virtual machine hands out multiples."""


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
    """How many bytes each function of a lowered module allocates, branches left out."""
    return {
        name.name_hint: sum(map(_bytes, _allocations(func, "relax.vm.alloc_storage")))
        for name, func in mod.functions.items()
        if isinstance(func, relax.Function)
    }


def scratch_bytes(kernel: tirx.PrimFunc) -> list[int]:
    """The size of each buffer that a scheduled kernel holds for itself.

    Those that are only ever used in parts are as large as a part, as in the code that is generated.
    Those of a parallel loop exist once for each thread, and count once.
    """
    func = kernel.with_attr("global_symbol", "kernel")
    mod = _BUFFER_PLANNING_PASSES(tvm.IRModule({"kernel": func}))
    found: list[int] = []

    def visit(allocation: tirx.AllocBuffer) -> None:
        buffer = allocation.buffer
        elements = math.prod(int(extent) for extent in buffer.shape)
        found.append(elements * tvm.DataType(str(buffer.dtype)).itemsize)

    tvm_ffi.structural_walk(mod["kernel"].body, (tirx.AllocBuffer, visit))
    return found


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
    first = _allocations(func, "relax.memory.alloc_storage")
    if not first:
        return func
    moved = {binding.var for binding in first}
    rest = [
        relax.BindingBlock([b for b in block.bindings if b.var not in moved], block.span)
        for block in func.body.blocks
    ]
    body = relax.SeqExpr([relax.BindingBlock(first), *rest], func.body.body, func.body.span)
    return replace_body(func, body)


def _allocations(func: relax.Function, op: str) -> list[Any]:
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


def _bytes(allocation: Any) -> int:
    size = math.prod(int(extent) for extent in allocation.value.args[0].values)
    return -(-size // PAGE) * PAGE
