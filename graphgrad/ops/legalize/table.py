"""Which ops are lowered by graphgrad in the place of TVM."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Legalisation = Callable[[Any, Any], Any]
"""``f(builder, call)`` returns an expression of lower ops or a call of a PrimFunc."""

LEGALISATIONS: dict[str, Legalisation] = {}
"""By op name, as ``relax.transform.LegalizeOps`` takes them."""


def lowering_of(op: Any) -> Legalisation | None:
    """Return how an op (tvm.ir.Op) is lowered: by graphgrad, else by TVM; None if it is not."""
    lowering: Legalisation | None = LEGALISATIONS.get(op.name) or op.get_attr("FLegalize")
    return lowering


def legalisation(op: str) -> Callable[[Legalisation], Legalisation]:
    """Register the lowering of an op."""

    def register(function: Legalisation) -> Legalisation:
        LEGALISATIONS[op] = function
        return function

    return register
