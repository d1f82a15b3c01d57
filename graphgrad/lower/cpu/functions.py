"""Functions that TVM's code for processors lacks: of half precision, of vectors, and remainders.

TVM calls the C library's functions of float32 and float64, one element at a time. In a vector, or
of float16, some of these calls are to it an "unknown intrinsic".
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ...ir.loops import loop
from ...ir.passes import Phase, compiler_pass
from ...ir.visits import nodes_in

_NOT_OF_HALF = frozenset(
    f"tirx.{name}"
    for name in (
        *("acos", "acosh", "asin", "asinh", "atan", "atan2", "copysign", "cosh", "erf", "hypot"),
        *("log1p", "sinh"),
    )
)
_NOT_OF_VECTORS = ("tirx.cosh", "tirx.sinh")
_REMAINDER = "tirx.fmod"
_HALF = ("float16", "bfloat16")


@compiler_pass(
    Phase.SCHEDULED,
    over="kernel",
    targets=("llvm",),
    before={"vectorize_math": "it writes out some functions of float32 in vectors"},
    because="a schedule decides which loops are vectors",
)
def lower_functions(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Call functions as the code generator has them.

    Those that it lacks in float16 are computed in float32, those that it lacks in vectors element
    by element, and the remainder of floats is the operator that it has for it.

    Parameters
    ----------
    func : PrimFunc
        Scheduled; its vectorized loops are still loops.
    """
    body = tvm_ffi.structural_map(
        func.body, ((tvm.ir.Call, _known_call), (tirx.For, _element_by_element))
    )
    return func if body.same_as(func.body) else func.with_body(body)


def _known_call(call: Any) -> Any:
    """A call of a function that exists in its dtype."""
    name = str(getattr(call.op, "name", ""))
    dtype = str(call.ty)
    is_remainder = name == _REMAINDER
    if not is_remainder and (name not in _NOT_OF_HALF or dtype != "float16"):
        return call
    arguments = [a.astype("float32") if dtype in _HALF else a for a in call.args]
    if is_remainder:
        return tirx.truncmod(*arguments).astype(dtype)
    return tirx.call_intrin("float32", call.op, *arguments).astype(dtype)


def _element_by_element(node: tirx.For) -> Any:
    """A loop that is not vectorized, if it calls a function that vectors lack."""
    if node.kind != tirx.ForKind.VECTORIZED:
        return node
    calls = (str(getattr(call.op, "name", "")) for call in nodes_in(node.body, tvm.ir.Call))
    if not any(name in _NOT_OF_VECTORS for name in calls):
        return node
    return loop(node.loop_var, node.extent, node.body, start=node.min)
