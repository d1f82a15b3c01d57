"""Promotion of a kernel to float64: the same loops and statements, computed in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import prim

from ..ir.visits import nodes_in
from .promote_type import LOW_FLOATS, promote_type

_OPERATIONS = (
    prim.Add, prim.Sub, prim.Mul, prim.Div, prim.Mod, prim.FloorDiv, prim.FloorMod,
    prim.Min, prim.Max, prim.EQ, prim.NE, prim.LT, prim.LE, prim.GT, prim.GE,
)  # fmt: skip

_TYPED = (
    "tirx.call_extern", "tirx.call_llvm_intrin", "tirx.call_llvm_pure_intrin",
    "tirx.call_pure_extern", "tirx.reinterpret", "tirx.tvm_call_cpacked", "tirx.tvm_call_packed",
)  # fmt: skip
"""Calls that are valid only for the dtypes that they are written in."""

_MAX_EXACT_BITS = 12
"""Constants with at most as many significant binary digits are taken for exact."""

_EXTREME_MAGNITUDE = 1e38
"""Constants beyond this are the extreme numbers of a dtype, such as −3.4e38 in a maximum."""

_UNTYPED = "tvm.contrib.sort."
"""Functions whose names begin so serve arrays of any dtype."""


def promote_kernel(func: tirx.PrimFunc) -> tuple[tirx.PrimFunc, list[str]]:
    """A kernel with float64 in the place of every lower float.

    A cast to a lower float becomes one to float64, a constant keeps its value. What a kernel
    computes is then what it means, without the rounding to its dtypes.

    Parameters
    ----------
    func : PrimFunc

    Returns
    -------
    promoted : PrimFunc
        `func` itself if it has no lower float, or there are obstacles.
    obstacles : list of str
        Calls that are valid in a lower float only, and constants that were rounded to one: TVM
        folds constants, and does so in a function and in its gradient differently.
    """
    low = [
        n for n in nodes_in(func, (tvm.ir.Var, tvm.ir.Call, prim.Cast, prim.FloatImm)) if _is_low(n)
    ]
    obstacles = [
        f"the call of {_called(call)} has its dtypes built in"
        for call in nodes_in(func, tvm.ir.Call)
        if _has_built_in_dtype(call)
    ]
    constants = [node.value for node in low if isinstance(node, prim.FloatImm)]
    rounded = [value for value in constants if _was_rounded(value)]
    # One of them says enough.
    obstacles += [f"constants such as {v:.9g} were rounded to float32" for v in rounded[:1]]
    if not low or obstacles:
        return func, list(dict.fromkeys(obstacles)) if low else []
    promoted = tvm_ffi.structural_map(func, _Promotion().changes)
    # Made anew, because its own type is inferred then.
    return tirx.PrimFunc(promoted.params, promoted.body, promoted.ret_type, promoted.attrs), []


class _Promotion:
    """The changes to the nodes of one kernel, bottom up: a node's own parts are promoted before."""

    def __init__(self) -> None:
        self.changes = [
            (tvm.ir.PrimType, promote_type),
            (tvm.ir.Var, self._variable),
            (prim.FloatImm, lambda node: prim.FloatImm(promote_type(node.ty), node.value)),
            (prim.Cast, lambda node: prim.Cast(promote_type(node.ty), node.value)),
            (
                prim.Select,
                lambda select: prim.Select(select.condition, select.true_value, select.false_value),
            ),
            (prim.Let, lambda node: prim.Let(node.var, node.value, node.body)),
            (_OPERATIONS, lambda node: type(node)(node.a, node.b)),
            (tvm.ir.TensorLoad, lambda node: tirx.BufferLoad(node.source, list(node.indices))),
            (tvm.ir.Call, _promoted_call),
        ]
        self._variables: dict[Any, Any] = {}

    def _variable(self, var: Any) -> Any:
        """The variable in the place of a scalar of a lower float; any other as it is."""
        if not isinstance(var.ty, tvm.ir.PrimType) or not _is_low(var):
            return var
        if var not in self._variables:
            self._variables[var] = tirx.Var(var.name, promote_type(var.ty))
        return self._variables[var]


def _promoted_call(call: Any) -> Any:
    """A call whose arguments are promoted, with a promoted result."""
    ty = promote_type(call.ty)
    arguments = list(call.args)
    if _reads_bits(call):
        arguments = [argument.astype("float32") for argument in arguments]
    return tvm.ir.Call(call.op, arguments, attrs=call.attrs, span=call.span, ret_ty=ty)


def _called(call: Any) -> str:
    """The name of what a call calls: a function that it names, or an operator."""
    first = call.args[0] if len(call.args) else None
    return str(first.value if isinstance(first, tvm.ir.StringImm) else getattr(call.op, "name", ""))


def _reads_bits(call: Any) -> bool:
    """Whether a call takes a float32 by its bits, which order a number in float64, too."""
    return _called(call) == "tirx.reinterpret" and str(call.ty) == "int32"


def _has_built_in_dtype(call: Any) -> bool:
    """Whether a call might mean something else with wider numbers."""
    if getattr(call.op, "name", "") not in _TYPED or _called(call).startswith(_UNTYPED):
        return False
    if _reads_bits(call):
        return False
    parts = [call, *(part for part in call.args if not isinstance(part, tvm.ir.StringImm))]
    return any(_is_low(part) or not isinstance(part.ty, tvm.ir.PrimType) for part in parts)


def _was_rounded(value: float) -> bool:
    """Whether a constant has as many digits as fit into a float32, and no more."""
    if value == 0.0 or abs(value) > _EXTREME_MAGNITUDE or float(np.float32(value)) != value:
        return False
    # The 24 digits of a float32's mantissa as an integer; zeros at its end are no digits.
    mantissa = int(math.frexp(value)[0] * 2**24)
    trailing = (mantissa & -mantissa).bit_length() - 1
    return 24 - trailing > _MAX_EXACT_BITS


def _is_low(node: Any) -> bool:
    """Whether a node is of a lower float."""
    return str(getattr(node.ty, "dtype", "")) in LOW_FLOATS
