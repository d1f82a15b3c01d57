"""Small buffers of a kernel's own on the stack, where LLVM makes registers of them.

TVM's code for processors puts a buffer of the scope "local" on the heap, however small it is, and
allocates it anew in each trip of a parallel loop (`LowerTVMBuiltin`); of the scope "global" only
what takes `MIN_HEAP_BYTES` or more. What expressions bind is kept in such buffers.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir import SBlock

from ...ir.kernel_structure import static, substitute_values
from ...ir.loops import MIN_HEAP_BYTES
from ...ir.passes import Phase, compiler_pass
from ...ir.visits import nodes_in


@compiler_pass(
    Phase.SCHEDULED,
    over="kernel",
    targets=("llvm",),
    because="schedules keep values in such buffers, too",
    before={"build_early": "what is built is what the kernel will be"},
)
def keep_on_stack(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Give small buffers of the scope "local" the scope whose buffers are on the stack."""
    allocated = [node.buffer for node in nodes_in(func.body, tirx.AllocBuffer)]
    allocated += [b for block in nodes_in(func.body, SBlock) for b in block.alloc_buffers]
    small = {buffer: _on_stack(buffer) for buffer in allocated if _is_small_and_local(buffer)}
    return func.with_body(substitute_values(func.body, small)) if small else func


def _is_small_and_local(buffer: Any) -> bool:
    size = tvm.DataType(str(buffer.dtype)).itemsize
    for extent in buffer.shape:
        size *= static(extent) or 0  # a symbolic one may be large
    return buffer.scope() == "local" and 0 < size < MIN_HEAP_BYTES


def _on_stack(buffer: Any) -> Any:
    return tirx.decl_buffer(buffer.shape, str(buffer.dtype), buffer.name)
