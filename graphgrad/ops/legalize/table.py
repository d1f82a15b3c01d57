"""The table of the ops that graphgrad lowers in the place of TVM."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Legalization = Callable[[Any, Any], Any]
"""``f(builder, call)`` returns an expression of lower ops or a call of a PrimFunc."""

LEGALIZATIONS: dict[str, Legalization] = {}
"""The lowerings by the names of ops, as ``relax.transform.LegalizeOps`` takes them."""


def lowering_of(op: Any) -> Legalization | None:
    """The lowering of an op (tvm.ir.Op): graphgrad's, else TVM's; None if neither has one."""
    lowering: Legalization | None = LEGALIZATIONS.get(op.name) or op.get_attr("FLegalize")
    return lowering


def legalization(op: str) -> Callable[[Legalization], Legalization]:
    """Register the lowering of an op."""

    def register(function: Legalization) -> Legalization:
        LEGALIZATIONS[op] = function
        return function

    return register
