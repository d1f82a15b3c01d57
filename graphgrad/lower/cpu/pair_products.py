"""Products of pairs of bfloat16, which some processors add to a float32 in one instruction.

An int32 holds two bfloat16 numbers, the first in its low half. To a sum, the products of the first
and of the second numbers of two such are added, without rounding in between (Intel 64 Architectures
Manual, volume 2, ``VDPBF16PS``; numbers below float32's normal ones count as zero). TVM has no such
function: it widens bfloat16 before it calls any. So it is an op of our own on integers, whose
meaning LLVM is told with each kernel that calls it.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

from ...ir.loops import Statement
from ...tvm_fixes.hooks import register_op

_NAME = "graphgrad_add_pair_product"
_OP_NAME = f"tirx.{_NAME}"
_INSTRUCTION_LANES = (4, 8, 16)
"""The numbers of sums that there are instructions for."""

_NAN = 0x7FC0
"""The bits of a NaN of bfloat16."""

_VECTOR = """
declare {floats} @{intrinsic}({floats}, {numbers}, {numbers})
define linkonce_odr {floats} @{name}_{lanes}({floats} %sum, {pairs} %a, {pairs} %b)
    alwaysinline nounwind {{
  %x = bitcast {pairs} %a to {numbers}
  %y = bitcast {pairs} %b to {numbers}
  %r = call {floats} @{intrinsic}({floats} %sum, {numbers} %x, {numbers} %y)
  ret {floats} %r
}}
"""

_SCALAR = """
define linkonce_odr float @{name}_1(float %sum, i32 %a, i32 %b) alwaysinline nounwind {{
  %sums = insertelement <4 x float> zeroinitializer, float %sum, i32 0
  %x = insertelement <4 x i32> zeroinitializer, i32 %a, i32 0
  %y = insertelement <4 x i32> zeroinitializer, i32 %b, i32 0
  %v = call <4 x float> @{name}_4(<4 x float> %sums, <4 x i32> %x, <4 x i32> %y)
  %r = extractelement <4 x float> %v, i32 0
  ret float %r
}}
"""

_DEFINITIONS = "".join(
    _VECTOR.format(
        name=_NAME,
        lanes=lanes,
        intrinsic=f"llvm.x86.avx512bf16.dpbf16ps.{32 * lanes}",
        floats=f"<{lanes} x float>",
        pairs=f"<{lanes} x i32>",
        numbers=f"<{2 * lanes} x bfloat>",
    )
    for lanes in _INSTRUCTION_LANES
) + _SCALAR.format(name=_NAME)
"""The functions in LLVM's language. They are inlined always: calls would spill all registers."""


def _as_call(call: Any) -> Any:
    lanes = tvm.DataType(str(call.ty)).lanes
    return tirx.call_extern(str(call.ty), f"{_NAME}_{lanes}", *call.args)


register_op(_OP_NAME, "the sum of a float32 and of the products of two pairs of bfloat16")
for _attribute, _value in (
    ("TVectorizable", True),
    ("TCallEffectKind", 1),  # pure, as TVM numbers effects
    ("llvm.FLowerIntrinsic", _as_call),
):
    tvm.ir.register_op_attr(_OP_NAME, _attribute, _value)


def add_pair_product(total: Any, first: Any, second: Any) -> Any:
    """The sum of a float32 and of the products of the bfloat16 numbers in two int32."""
    op = tvm.ir.Op.get(_OP_NAME)
    return tvm.ir.Call(op, [total, first, second], ret_ty=tvm.ir.PrimType("float32"))


def bits(element: Any) -> Any:
    """The int32 of an element of memory and of a zero; one of float32 is a number of bfloat16."""
    if str(element.ty) == "bfloat16":
        return tirx.reinterpret("uint16", element).astype("int32")
    high = tirx.reinterpret("uint32", element) >> 16
    # Of some NaN the high bits are those of infinity.
    return tirx.Select(tirx.isnan(element), tirx.const(_NAN, "uint32"), high).astype("int32")


def pair(first: Any, second: Any) -> Any:
    """The int32 of two elements of memory, as `bits` takes them; LLVM reads neighbors at once."""
    return bits(first) | (bits(second) << 16)


def attach_definitions(statement: Statement) -> Statement:
    """A statement that calls `add_pair_product`, with the definitions of that."""
    return with_definitions(statement, _NAME, _DEFINITIONS)


def with_definitions(statement: Statement, name: str, definitions: str) -> Statement:
    """A statement that calls functions, with their definitions in LLVM's language."""
    return tirx.AttrStmt(
        tvm.ir.StringImm(name), "pragma_import_llvm", tvm.ir.StringImm(definitions), statement
    )
