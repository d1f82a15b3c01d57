"""Casts of parameters to a narrower type, all at the beginning of a function.

In mixed precision each layer casts its parameters where it uses them, a launch for each. Next to
each other they are one launch (`fuse_horizontally`). What they make is as large as the parameters
in the narrow type, and a training step keeps that for its gradients anyway.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, tirx

from ...ir.kernel_calls import arguments_of, is_kernel_call, map_dataflow_blocks
from ...ir.passes import Phase, compiler_pass
from ...ir.tensor import bits
from ..fusion.horizontal.flat import flat_map
from ..fusion.horizontal.kernel import RowsWriter

_IN_PLACE = tvm.ir.Op.get("relax.call_tir_inplace")


@compiler_pass(
    Phase.FUSED,
    targets=("cuda",),
    before={"mark_flat_maps": "a cast that is marked has an attribute more"},
)
def cast_early(mod: tvm.IRModule, rows_writer: RowsWriter) -> tvm.IRModule:
    """Move narrowing casts of what a block does not compute to its beginning."""
    is_cast: dict[Any, bool] = {}

    def may_move(binding: Any, bound: set[Any]) -> bool:
        value = binding.value
        if not is_kernel_call(value) or not isinstance(value.ty, relax.TensorType):
            return False
        kernel, arguments = value.args[0], arguments_of(value)
        if any(not isinstance(each, tvm.ir.Var) or each in bound for each in arguments):
            return False
        if kernel not in is_cast:
            is_cast[kernel] = _narrows(mod[kernel], rows_writer)
        return is_cast[kernel]

    def changed(bindings: list[Any]) -> list[Any]:
        # Of an argument that is overwritten here, the cast might read another value.
        if any(getattr(binding.value, "op", None) == _IN_PLACE for binding in bindings):
            return bindings
        bound = {binding.var for binding in bindings}
        early = [binding for binding in bindings if may_move(binding, bound)]
        moved = {binding.var for binding in early}
        return [*early, *(binding for binding in bindings if binding.var not in moved)]

    return map_dataflow_blocks(mod, changed)


def _narrows(kernel: Any, rows_writer: RowsWriter) -> bool:
    """Whether a kernel casts each element of one tensor to a type of fewer bits."""
    if not isinstance(kernel, tirx.PrimFunc) or len(kernel.params) != 2:
        return False
    if not all(isinstance(param.ty, tirx.BufferType) for param in kernel.params):
        return False  # one is an extent
    given, result = (str(param.dtype) for param in kernel.params)
    return bits(result) < bits(given) and flat_map(kernel, rows_writer.dtypes) is not None
