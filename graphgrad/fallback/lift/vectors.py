"""One lane of a vector expression."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.ir import prim

from ..walk import Expr, called
from .statements import Load, RefusedError

_BINARY = (
    prim.Add, prim.Sub, prim.Mul, prim.Div, prim.Mod, prim.FloorDiv, prim.FloorMod,
    prim.Min, prim.Max, prim.EQ, prim.NE, prim.LT, prim.LE, prim.GT, prim.GE, prim.And, prim.Or,
    prim.BitwiseAnd, prim.BitwiseOr, prim.BitwiseXor, prim.LShift, prim.RShift,
)  # fmt: skip


def lanes_of(store: Any) -> int:
    """How many elements a store writes.

    Raises
    ------
    RefusedError
        As many as the machine has.
    """
    for expr in (store.value, *store.indices):
        # TVM writes a vector type as float32x4, a scalable one as float32xvscalex4.
        _, by, count = str(expr.ty).partition("x")
        if by:
            if not count.isdigit():
                raise RefusedError("its vectors are as long as the machine makes them")
            return int(count)
    return 1


def lane(expr: Expr, number: Any) -> Expr:
    """The scalar that a vector has in the lane of a number; a scalar stays as it is.

    Raises
    ------
    RefusedError
        Its lanes are not independent of one another.
    """
    dtype, by, _ = str(expr.ty).partition("x")
    if not by:
        return expr
    if isinstance(expr, prim.Ramp):
        return expr.base + number.astype(str(expr.base.ty)) * expr.stride
    if isinstance(expr, prim.Broadcast):
        return expr.value
    if isinstance(expr, prim.Cast):
        return prim.Cast(tvm.ir.PrimType(dtype), lane(expr.value, number))
    if isinstance(expr, _BINARY):
        return type(expr)(lane(expr.a, number), lane(expr.b, number))
    if isinstance(expr, prim.Not):
        return prim.Not(lane(expr.a, number))
    if isinstance(expr, prim.Select):
        parts = (expr.condition, expr.true_value, expr.false_value)
        return prim.Select(*(lane(part, number) for part in parts))
    if isinstance(expr, Load):
        return tirx.BufferLoad(expr.source, [lane(index, number) for index in expr.indices])
    # A call goes lane by lane, unless it is one that moves lanes.
    if isinstance(expr, tvm.ir.Call) and called(expr) not in ("tirx.vectorlow", "tirx.vectorhigh"):
        arguments = [lane(argument, number) for argument in expr.args]
        return tvm.ir.Call(expr.op, arguments, attrs=expr.attrs, ret_ty=tvm.ir.PrimType(dtype))
    raise RefusedError(f"the lanes of a {type(expr).__name__} are not told apart")
