"""The hyperbolic tangent of small arguments, which TVM's rational approximation gets inaccurate."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.ir import prim

from ...ir.kernel_structure import Load
from ...ir.passes import Phase, compiler_pass
from ...ir.visits import replace_nodes
from ...ops.elementwise import polynomial

_TANH = tvm.ir.Op.get("tirx.tanh")

_TERMS = (
    *(1.0, -1 / 3, 2 / 15, -17 / 315, 62 / 2835, -1382 / 155925, 21844 / 6081075),
    *(-929569 / 638512875, 6404582 / 10854718875, -443861162 / 1856156927625),
    18888466084 / 194896477400625,
)
"""Taylor coefficients of tanh(x) / x in powers of x²."""

_FLOAT32_TERMS = 6
"""How many of them float32 needs."""

_SMALL = 0.25
"""Below it the omitted terms are less than 1e-8 of the result, in float64 than 1e-16."""


@compiler_pass(
    Phase.DONATED,
    over="kernel",
    targets=("llvm",),
    after={"vectorize_math": "what that writes out is accurate, and would take longer this way"},
    because="gradients and schedules see the function itself, not its series",
)
def expand_small_tanh(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Compute tanh x by its Taylor series where |x| is small.

    TVM's form is a rational approximation whose relative error is above 1e-5 there.
    """
    body = replace_nodes(func.body, tvm.ir.Call, _expanded)
    return func if body.same_as(func.body) else func.with_body(body)


def _expanded(call: Any) -> Any:
    """A call of tanh with its series for small arguments; any other call as it is."""
    if not call.op.same_as(_TANH):
        return call
    [argument] = call.args
    dtype = str(argument.ty)
    x = argument if isinstance(argument, Load | tvm.ir.Var) else tirx.Var("x", dtype)
    terms = _TERMS if dtype.startswith("float64") else _TERMS[:_FLOAT32_TERMS]
    series = x * polynomial(terms, x * x)
    value = tirx.Select(tirx.abs(x) < tirx.const(_SMALL, dtype), series, tirx.tanh(x))
    return value if x.same_as(argument) else prim.Let(x, argument, value)
