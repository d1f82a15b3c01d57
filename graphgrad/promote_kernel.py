"""Promotion of a kernel to float64: the same loops and statements, in wider numbers."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import prim

from .promote import LOW_FLOATS, promote_type

_OPERATIONS = (
    prim.Add, prim.Sub, prim.Mul, prim.Div, prim.Mod, prim.FloorDiv, prim.FloorMod,
    prim.Min, prim.Max, prim.EQ, prim.NE, prim.LT, prim.LE, prim.GT, prim.GE,
)  # fmt: skip

_TYPED = (
    "tirx.call_cpacked", "tirx.call_extern", "tirx.call_llvm_intrin", "tirx.call_llvm_pure_intrin",
    "tirx.call_packed", "tirx.call_pure_extern", "tirx.reinterpret",
)  # fmt: skip
"""Calls that mean something for the dtypes that they are written in alone."""


def promote_kernel(func: tirx.PrimFunc) -> tuple[tirx.PrimFunc, list[str]]:
    """Return a kernel with float64 in the place of every lower float.

    A cast to a lower float becomes one to float64, a constant keeps its value. What a kernel
    computes is then what it means, without the rounding to its dtypes.

    Parameters
    ----------
    func : PrimFunc

    Returns
    -------
    promoted : PrimFunc
    obstacles : list of str
        Calls whose dtypes are built in. Where there are any, `promoted` is no kernel to be used.
    """
    promotion = _Promotion()
    promoted = tvm_ffi.structural_map(func, promotion.changes)
    return promoted, list(dict.fromkeys(promotion.obstacles))


class _Promotion:
    """What becomes of the parts of one kernel; each is given with its own parts promoted."""

    def __init__(self) -> None:
        self.obstacles: list[str] = []
        self.changes = [
            (tvm.ir.PrimType, promote_type),
            (tvm.ir.Var, self._variable),
            (prim.FloatImm, lambda node: prim.FloatImm(promote_type(node.ty), node.value)),
            (prim.Cast, lambda node: prim.Cast(promote_type(node.ty), node.value)),
            (prim.Select, lambda n: prim.Select(n.condition, n.true_value, n.false_value)),
            (prim.Let, lambda node: prim.Let(node.var, node.value, node.body)),
            (_OPERATIONS, lambda node: type(node)(node.a, node.b)),
            (tvm.ir.TensorLoad, lambda node: tirx.BufferLoad(node.source, list(node.indices))),
            (tvm.ir.Call, self._call),
        ]
        self._variables: dict[Any, Any] = {}

    def _variable(self, var: Any) -> Any:
        if not isinstance(var.ty, tvm.ir.PrimType) or str(var.ty) not in LOW_FLOATS:
            return var
        if var not in self._variables:
            self._variables[var] = tirx.Var(var.name, "float64")
        return self._variables[var]

    def _call(self, node: Any) -> Any:
        name = str(getattr(node.op, "name", node.op))
        types = [str(part.ty) for part in (node, *node.args) if hasattr(part, "ty")]
        if name in _TYPED and any(low in ty for ty in types for low in (*LOW_FLOATS, "float64")):
            self.obstacles.append(f"{name.removeprefix('tirx.')} has its dtypes built in")
        return tvm.ir.Call(
            node.op, node.args, attrs=node.attrs, span=node.span, ret_ty=promote_type(node.ty)
        )
