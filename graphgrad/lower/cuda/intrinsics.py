"""Expressions that TVM's CUDA code generator refuses or makes inexact, rewritten.

`widen_half` and `wrap_narrowed` run before lowering, `write_exact_expressions` on the finished
device functions.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from functools import partial
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ...ir.tensor import bits, is_float
from ...ir.visits import nodes_in

_MATHEMATICS = frozenset(
    f"tirx.{name}"
    for name in (
        *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cos", "cosh", "erf", "exp"),
        *("exp10", "exp2", "fmod", "hypot", "log", "log10", "log1p", "nearbyint", "pow", "round"),
        *("rsqrt", "sigmoid", "sin", "sinh", "sqrt", "tan", "tanh"),
    )
) | {"prim.log2"}
"""Functions of which CUDA has no form in half precision, or an approximate one."""


_NARROW = ("int8", "uint8", "int16", "uint16")

_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Mod, tirx.Max, tirx.Min)
_COMPARISONS = (tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE)

Widening = Callable[[Any], Any]
"""Makes float32 of a value in half precision."""


def widen_half(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """A PrimFunc that computes in float32 what must not be computed in half precision.

    In float16 that is mathematical functions and remainders: TVM turns some into functions that
    CUDA does not have (``hacos``), some into approximate ones, and refuses the remainder. In
    bfloat16 it is everything up to the next store; TVM would leave it to the GPU's arithmetic,
    which rounds after every operation.

    A kernel that compares floats, or takes an extremum of them, rounds where its program does:
    gradients ask which element equals an extremum that another kernel has found and stored, and may
    compute the elements again.
    """
    compared = nodes_in(func.body, (*_COMPARISONS, tirx.Max, tirx.Min))
    wide = _wide if any(is_float(str(node.a.ty)) for node in compared) else _wide_unrounded
    body = tvm_ffi.structural_map(
        func.body,
        [
            (tvm.ir.Call, partial(_widen_call, wide=wide)),
            (_ARITHMETIC, partial(_widen_arithmetic, wide=wide)),
            (_COMPARISONS, partial(_widen_comparison, wide=wide)),
            (tirx.Select, partial(_widen_selection, wide=wide)),
        ],
    )
    return func.with_body(body)


def wrap_narrowed(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """A PrimFunc that casts integers to narrower ones from numbers that these hold.

    TVM refuses bounds that the narrow type does not hold. Compilers of machine code remove the
    remainder: of what is cast, they take the low bits either way.
    """

    def wrapped(cast: Any) -> Any:
        narrow, wide = (str(node.ty) for node in (cast, cast.value))
        if narrow not in _NARROW or wide not in ("int32", "int64"):
            return cast
        count = 1 << bits(narrow)
        least = 0 if narrow.startswith("u") else -count // 2
        within = tirx.floormod(cast.value - tirx.const(least, wide), tirx.const(count, wide))
        return tirx.Cast(narrow, within + tirx.const(least, wide))

    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.Cast, wrapped)))


def write_exact_expressions(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """A lowered PrimFunc whose constants and extrema mean in CUDA what they mean in TVM.

    The code generator writes float64 constants with 15 decimals, so that small ones lose digits or
    become zero, and infinity in bfloat16 as a word that is no number. It writes extrema
    as CUDA's `max` and `min`, which ignore NaN. And it keeps the condition of a selection of
    vectors in a variable of the type of what is selected, which nvcc refuses.
    """
    body = tvm_ffi.structural_map(
        func.body,
        [
            (tirx.FloatImm, _exact_constant),
            (tirx.Max, lambda node: _extremum(node, lambda a, b: a > b)),
            (tirx.Min, lambda node: _extremum(node, lambda a, b: a < b)),
            (tirx.Select, _share_condition),
        ],
    )
    return func.with_body(body)


def _widen_call(call: Any, wide: Widening) -> Any:
    """A call in float32, if its function must not be computed in half precision."""
    name = str(getattr(call.op, "name", ""))
    if _is_half(call) and name in _MATHEMATICS:
        arguments = [wide(argument) for argument in call.args]
    elif _is_bfloat16(call) and name == "prim.if_then_else":
        arguments = [call.args[0], *(wide(argument) for argument in call.args[1:])]
    else:
        return call
    return _narrow(tvm.ir.Call(call.op, arguments, ret_ty=tvm.ir.PrimType("float32")), call)


def _widen_arithmetic(node: Any, wide: Widening) -> Any:
    if _is_bfloat16(node) or (_is_half(node) and isinstance(node, tirx.Mod)):
        return _narrow(type(node)(wide(node.a), wide(node.b)), node)
    return node


def _widen_comparison(node: Any, wide: Widening) -> Any:
    return type(node)(wide(node.a), wide(node.b)) if _is_bfloat16(node.a) else node


def _widen_selection(node: Any, wide: Widening) -> Any:
    if not _is_bfloat16(node):
        return node
    chosen = tirx.Select(node.condition, wide(node.true_value), wide(node.false_value))
    return _narrow(chosen, node)


def _wide(value: Any) -> Any:
    """A value in float32."""
    if isinstance(value, tirx.FloatImm):
        return tirx.FloatImm("float32", value.value)
    return tirx.Cast("float32", value)


def _wide_unrounded(value: Any) -> Any:
    """A value in float32; a bfloat16 that was just rounded from float32 as it was before."""
    rounded = _is_bfloat16(value) and isinstance(value, tirx.Cast)
    return value.value if rounded and str(value.value.ty) == "float32" else _wide(value)


def _narrow(value: Any, like: Any) -> Any:
    return tirx.Cast(str(like.ty), value)


def _is_half(value: Any) -> bool:
    return str(value.ty) in ("float16", "bfloat16")


def _is_bfloat16(value: Any) -> bool:
    return str(value.ty) == "bfloat16"


def _exact_constant(constant: Any) -> Any:
    """A constant in a form that the code generator writes exactly."""
    value, dtype = float(constant.value), str(constant.ty.dtype)
    if dtype == "bfloat16" and not math.isfinite(value):
        return tirx.Cast(dtype, tirx.FloatImm("float32", value))
    if dtype != "float64" or not math.isfinite(value) or float(f"{value:.15f}") == value:
        return constant
    # 15 decimals are not the constant, so it is written as its 64 bits.
    (word,) = struct.unpack("q", struct.pack("d", value))
    return tirx.call_pure_extern(dtype, "__longlong_as_double", tirx.const(word, "int64"))


def _extremum(node: Any, wins: Callable[[Any, Any], Any]) -> Any:
    """A maximum or minimum of floats as a selection, which treats NaN as on a processor."""
    if not is_float(str(node.ty)):
        return node
    a, b = (tirx.Var(name, node.ty) for name in ("a", "b"))
    return tirx.Let(a, node.a, tirx.Let(b, node.b, tirx.Select(wins(a, b), a, b)))


def _share_condition(node: Any) -> Any:
    """A selection of vectors whose lanes share their condition as one of whole vectors."""
    if not isinstance(node.condition, tirx.Broadcast):
        return node
    return tirx.if_then_else(node.condition.value, node.true_value, node.false_value)
