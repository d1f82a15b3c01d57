"""Which ops are lowered by graphgrad in the place of TVM."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Legalization = Callable[[Any, Any], Any]
"""``f(builder, call)`` returns an expression of lower ops or a call of a PrimFunc."""

LEGALIZATIONS: dict[str, Legalization] = {}
"""By op name, as ``relax.transform.LegalizeOps`` takes them."""


def lowering_of(op: Any) -> Legalization | None:
    """How an op (tvm.ir.Op) is lowered: by graphgrad, else by TVM; None if it is not."""
    lowering: Legalization | None = LEGALIZATIONS.get(op.name) or op.get_attr("FLegalize")
    return lowering


def legalization(op: str) -> Callable[[Legalization], Legalization]:
    """Register the lowering of an op."""

    def register(function: Legalization) -> Legalization:
        LEGALIZATIONS[op] = function
        return function

    return register
