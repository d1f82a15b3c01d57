"""Comparisons of bfloat16 numbers as they are stored.

TVM computes bfloat16 in float32, and rounds where an element is stored. Two kernels that compute
the same value, one to take a maximum and one to see where it is taken, then compare what is rounded
with what is not: the numbers are equal nowhere, and the gradient of the maximum is zero.
"""

from __future__ import annotations

from tvm import tirx

from ...fallback.lowering.wide_floats import compares_computed, widen_bfloat16
from ...ir.passes import Phase, compiler_pass


@compiler_pass(
    Phase.SCHEDULED,
    over="kernel",
    targets=("llvm",),
    before={"vectorize_nan_tests": "rounding tests for NaN"},
    because="a schedule puts what computes a value into the place of its element",
)
def round_compared(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Round what comparisons of bfloat16 numbers read, where it has just been computed."""
    return widen_bfloat16(func) if compares_computed(func) else func
