"""bfloat16 in float32, where TVM's own lowering of it is wrong or slow.

TVM computes bfloat16 in float32, and rounds where an element is stored. Two kernels that compute
the same value, one to take a maximum and one to see where it is taken, then compare what is rounded
with what is not: the numbers are equal nowhere, and the gradient of the maximum is zero. Functions
of bfloat16, such as erf, it calls for one number after the other.
"""

from __future__ import annotations

from tvm import tirx

from ...fallback.lowering.wide_floats import is_left_narrow, widen_bfloat16
from ...ir.passes import Phase, compiler_pass


@compiler_pass(
    Phase.SCHEDULED,
    over="kernel",
    targets=("llvm",),
    before={
        "vectorize_nan_tests": "rounding tests for NaN",
        "lower_functions": "functions of float32 have forms in vectors",
    },
    because="a schedule puts what computes a value into the place of its element",
)
def widen_arithmetic(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Compute bfloat16 in float32, and round what is compared as if it were stored."""
    return widen_bfloat16(func) if is_left_narrow(func) else func
