"""Tests for NaN that run in vectors.

TVM computes ``isnan`` for one element at a time, and with it the whole statement that holds it.
Instead, the bits are compared as integers: those of NaN, without the sign, are above those of
infinity.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ...ir.passes import Phase, compiler_pass

_IS_NAN = tvm.ir.Op.get("tirx.isnan")

_BITS = {
    "float16": ("int16", 0x7FFF, 0x7C00),
    "float32": ("int32", 0x7FFFFFFF, 0x7F800000),
    "float64": ("int64", 0x7FFFFFFFFFFFFFFF, 0x7FF0000000000000),
}
"""By dtype: the integers of its size, a mask of all bits but the sign, the bits of infinity."""


@compiler_pass(
    Phase.SCHEDULED,
    over="kernel",
    targets=("llvm",),
    because="a schedule decides which loops are vectors",
)
def vectorize_nan_tests(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Test for NaN by bits inside of vectorized loops.

    Parameters
    ----------
    func : PrimFunc
        Scheduled; its vectorized loops are still loops.
    """

    def in_loop(loop: tirx.For) -> Any:
        if loop.kind != tirx.ForKind.VECTORIZED:
            return loop
        return tvm_ffi.structural_map(loop, (tvm.ir.Call, _nan_by_bits))

    body = tvm_ffi.structural_map(func.body, (tirx.For, in_loop))
    return func if body.same_as(func.body) else func.with_body(body)


def _nan_by_bits(call: Any) -> Any:
    """A test for NaN as a comparison of integers; any other call as it is."""
    if not call.op.same_as(_IS_NAN):
        return call
    [value] = call.args
    layout = _BITS.get(str(value.ty))
    if layout is None:
        return call
    dtype, magnitude, infinity = layout
    bits = tirx.reinterpret(dtype, value)
    return tirx.bitwise_and(bits, tirx.const(magnitude, dtype)) > tirx.const(infinity, dtype)
