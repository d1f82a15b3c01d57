"""What a Relax call calls, and which of its arguments carry data."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

_WITH_TUPLE = frozenset(
    f"relax.{name}"
    for name in ("call_tir", "call_tir_inplace", "call_tir_with_grad", "call_dps_packed")
)
"""Ops whose data are one tuple, behind what is called."""

_WITH_CALLEE = frozenset(("relax.call_pure_packed", "relax.call_inplace_packed"))
"""Ops whose first argument is what is called, and the others are its data."""


def callee(call: Any) -> str:
    """Return the name of the kernel or packed function that a call calls; empty for an op."""
    if isinstance(call.op, relax.ExternFunc):
        return str(call.op.global_symbol)
    if not isinstance(call.op, tvm.ir.Op) or call.op.name not in _WITH_TUPLE | _WITH_CALLEE:
        return ""
    target = call.args[0]
    return str(target.global_symbol if isinstance(target, relax.ExternFunc) else target.name_hint)


def data_of(call: Any) -> list[Any]:
    """Return the arguments of a call that a gradient rule speaks of: those that carry data."""
    if isinstance(call.op, tvm.ir.Op) and call.op.name in _WITH_TUPLE:
        data = call.args[1]
        return list(data.fields) if isinstance(data, relax.Tuple) else [data]
    if isinstance(call.op, tvm.ir.Op) and call.op.name in _WITH_CALLEE:
        return list(call.args[1:])
    return list(call.args)
