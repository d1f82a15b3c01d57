"""The lowerings that take the place of TVM's: where those are wrong or refuse a dtype.

TVM's own lowering of an op is called the *stock* one here. Each of ours stands beside the op, in
the file of its family.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import tvm
from tvm import relax, topi

from ..errors import ArgumentError, GraphGradError, LoweringError
from ..ir import provenance
from ..ir.attributes import Attributes
from ..ir.tensor import Emitter

Legalization = Callable[[Any, Any], Any]
"""``f(builder, call)`` returns an expression of lower ops or a call of a PrimFunc."""

LEGALIZATIONS: dict[str, Legalization] = {}
"""The lowerings by the names of ops, as ``relax.transform.LegalizeOps`` takes them."""

_HALF = ("float16", "bfloat16")


def lowering_of(op: Any) -> Legalization | None:
    """The lowering of an op (tvm.ir.Op): graphgrad's, else TVM's; None if neither has one."""
    lowering: Legalization | None = LEGALIZATIONS.get(op.name) or op.get_attr("FLegalize")
    return lowering


def lower_call(lowering: Legalization, builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """What a lowering makes of a call.

    Raises
    ------
    LoweringError
        The op cannot be lowered with these operands.
    """
    try:
        return lowering(builder, call)
    except GraphGradError:
        raise
    # What TVM raises where operands or attributes contradict each other, which only a lowering
    # looks at.
    except (ValueError, TypeError, IndexError, ZeroDivisionError, RuntimeError) as error:
        node = provenance.read(call.span).node
        where = f" at ONNX node {node!r}" if node else ""
        operands = ", ".join(str(argument.ty) for argument in call.args)
        reason = str(error).strip().splitlines() or [repr(error)]
        raise LoweringError(
            f"{call.op.name}{where} cannot be lowered with these operands: {operands}: {reason[0]}"
        ) from error


def legalization(*ops: str) -> Callable[[Legalization], Legalization]:
    """Register the lowering of some ops."""

    def register(function: Legalization) -> Legalization:
        LEGALIZATIONS.update(dict.fromkeys(ops, function))
        return function

    return register


Statement = Callable[..., Any]
"""``f(*inputs, attrs)`` states an op in others: its result as a `Tensor`, or a list of those."""


def legalization_by_ops(*ops: str, or_stock: bool = False) -> Callable[[Statement], Statement]:
    """Register a function that states some ops in others as their lowering.

    With `or_stock`, what it refuses by an `ArgumentError` is left to TVM.
    """

    def lower(state: Statement, builder: relax.BlockBuilder, call: relax.Call) -> Any:
        emitter = Emitter(builder)
        try:
            with emitter.at(call.span, ""):
                result = state(*map(emitter.lift, call.args), Attributes(call.attrs))
        except ArgumentError:
            if or_stock:
                return call.op.get_attr("FLegalize")(builder, call)
            raise
        return relax.Tuple([y.expr for y in result]) if isinstance(result, list) else result.expr

    def register(function: Statement) -> Statement:
        legalization(*ops)(partial(lower, function))
        return function

    return register


def fields_of(builder: relax.BlockBuilder, tensors: Any) -> list[Any]:
    """The tensors of an argument that is a tuple, perhaps bound to a variable, or a single one."""
    if isinstance(tensors.ty, relax.TensorType):
        return [tensors]
    if isinstance(tensors, relax.Tuple):
        return list(tensors.fields)
    return [builder.emit(relax.TupleGetItem(tensors, i)) for i in range(len(tensors.ty.fields))]


def checked_axis(call: relax.Call) -> int:
    """The attribute ``axis`` of a call on its first argument, counted from the front.

    Raises
    ------
    GraphGradError
        The tensor has no such axis.
    """
    axis, rank = int(call.attrs.axis), len(call.args[0].ty.shape)
    if not -rank <= axis < rank:
        raise GraphGradError(
            f"{call.op.name}: axis {axis} of a tensor of rank {rank} does not exist; it is between "
            f"{-rank} and {rank - 1}"
        )
    return axis % rank


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
