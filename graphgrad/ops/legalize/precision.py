"""Lowering ops in float32 where the tensors are of half precision."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, topi

from .table import Legalization, legalization, lowering_of

_HALF = ("float16", "bfloat16")


def lower_half_in_float32(*ops: str) -> None:
    """Register lowerings of ops that compute half precision in float32, and round the result.

    Other dtypes are lowered as the op has been lowered so far, by us or by TVM.
    """
    for op in ops:
        lowering = lowering_of(tvm.ir.Op.get(op))
        assert lowering is not None, f"nothing lowers {op}"
        legalization(op)(_in_float32(lowering))


def _in_float32(lower: Legalization) -> Legalization:
    """The lowering that casts operands of half precision to float32, and the result back."""

    def lower_wide(builder: relax.BlockBuilder, call: relax.Call) -> Any:
        if not any(_is_half(argument) for argument in call.args):
            return lower(builder, call)
        arguments = [_wide(builder, a) if _is_half(a) else a for a in call.args]
        wide_call = builder.normalize(relax.Call(call.op, arguments, call.attrs, call.ty_args))
        result = builder.emit(lower(builder, wide_call))
        return builder.call_te(topi.cast, result, str(call.ty.dtype), primfunc_name_hint="narrow")

    return lower_wide


def _is_half(value: Any) -> bool:
    return isinstance(value.ty, relax.TensorType) and str(value.ty.dtype) in _HALF


def _wide(builder: relax.BlockBuilder, value: Any) -> Any:
    """An operand in float32; a constant stays a constant."""
    if isinstance(value, tvm.ir.GenericConst):
        return relax.const(value.value.numpy().astype("float32"), "float32")
    return builder.emit(builder.call_te(topi.cast, value, "float32", primfunc_name_hint="widen"))
