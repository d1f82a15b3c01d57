"""Lowerings of matrix products."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from ...ops import functional as op
from ...ops.einsum import einsum as written_out
from ...ops.tensor import Emitter, accumulator_dtype, type_shape
from .table import legalisation


@legalisation("relax.einsum")
def einsum(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Lower einsum to matrix products.

    The stock form is one loop nest: it takes the product of three operands point by point, and adds
    up half precision in half precision.
    """
    emitter = Emitter(builder)
    with emitter.at(call.span, ""):
        return written_out(str(call.attrs.subscripts), emitter.lift(call.args[0])).expr


@legalisation("relax.matmul")
def matmul(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Lower matmul as TVM does, but add up half precision in float32.

    A sum of no terms is a tensor of zeros: the pipeline takes the stock kernel, which reads
    nothing, for a reshape of an empty operand, and fails.
    """
    dtype = str(call.ty.dtype)
    if any(extent == 0 for argument in call.args for extent in type_shape(argument.ty)):
        return relax.op.zeros(call.ty.shape, dtype)
    if accumulator_dtype(dtype) == dtype:
        return tvm.ir.Op.get("relax.matmul").get_attr("FLegalize")(builder, call)
    emitter = Emitter(builder)
    with emitter.at(call.span, ""):
        a, b = op.same_dtype(*map(emitter.lift, call.args))
        return (a @ b).astype(dtype).expr
