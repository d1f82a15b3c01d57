"""Arrays of bfloat16 that an extern stage hands over to a function, handed over in float32.

TVM describes such an array as one of float32 where a function is called by its name. TVM's own
sorting, which knows no bfloat16 either, then reads and writes behind its end.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import te, tirx
from tvm.ir import prim

from ...errors import ArgumentError
from ...ir.visits import nodes_in
from ...tvm_fixes.hooks import extern_stage
from ..graph import Operation, outputs_of
from ..kinds import map_stage
from ..walk import called, identity

_NARROW = "bfloat16"
_WIDE = "float32"
_SORTING = "tvm.contrib.sort."
_DTYPE_ARGUMENT = 4
"""Which argument of `tvm_stack_make_array` is a number of the array's dtype."""


def widen_arrays(op: Operation) -> list[te.Tensor] | None:
    """The new outputs of an extern stage, or None for one that may stay as it is.

    Parameters
    ----------
    op : Operation
        Made for `graph.rewritten`.

    Raises
    ------
    ArgumentError
        The function that gets the arrays is not TVM's sorting.
    """
    if not isinstance(op, te.ExternOp):
        return None
    functions = _given_narrow_arrays(op.body)
    if not functions:
        return None
    for name in functions:
        # TVM's sorting is one call; a body that does more may compute with the elements.
        if not name.startswith(_SORTING) or not isinstance(op.body, tirx.Evaluate):
            raise ArgumentError(
                f"the stage {op.name} hands an array of bfloat16 to {name}, which TVM would "
                "describe as one of float32; cast it to float32 in a stage before, and back behind"
            )
    old = [*op.input_placeholders, *op.output_placeholders]
    new = [_wide_buffer(buffer) for buffer in old]
    count = len(op.inputs)
    inputs = [
        tensor if str(tensor.dtype) != _NARROW else _cast(tensor, buffer.ty.shape, _WIDE)
        for tensor, buffer in zip(op.inputs, new, strict=False)
    ]
    table = dict(zip(map(identity, old), new, strict=True))
    body = tvm_ffi.structural_map(
        op.body,
        [
            (tvm.ir.Var, lambda var: table.get(identity(var), var)),
            (prim.FloatImm, _wide_constant),
        ],
    )
    wide = extern_stage(op.name, op.tag, op.attrs, inputs, new[:count], new[count:], body)
    return [
        result if str(result.dtype) == str(before.dtype) else _cast(result, result.shape, _NARROW)
        for result, before in zip(outputs_of(wide), outputs_of(op), strict=True)
    ]


def _given_narrow_arrays(body: Any) -> list[str]:
    """The names of the functions that get an array of bfloat16."""
    return [
        str(call.args[0].value)
        for call in nodes_in(body, tvm.ir.Call)
        if any(
            called(argument) == "tirx.tvm_stack_make_array"
            and str(argument.args[_DTYPE_ARGUMENT].ty) == _NARROW
            for argument in call.args
        )
    ]


def _wide_buffer(buffer: Any) -> Any:
    if str(buffer.ty.dtype) != _NARROW:
        return buffer
    return tirx.decl_buffer(buffer.ty.shape, _WIDE, buffer.name)


def _wide_constant(value: Any) -> Any:
    return tirx.const(float(value.value), _WIDE) if str(value.ty) == _NARROW else value


def _cast(tensor: te.Tensor, shape: Any, dtype: str) -> te.Tensor:
    return map_stage(shape, lambda *at: tensor[at].astype(dtype), name=f"{tensor.op.name}_{dtype}")
