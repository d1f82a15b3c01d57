"""Which ops are lowered by graphgrad in the place of TVM."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Legalisation = Callable[[Any, Any], Any]
"""``f(builder, call)`` returns an expression of lower ops or a call of a PrimFunc."""

LEGALISATIONS: dict[str, Legalisation] = {}
"""By op name, as ``relax.transform.LegalizeOps`` takes them."""


def legalisation(op: str) -> Callable[[Legalisation], Legalisation]:
    """Register the lowering of an op."""

    def register(function: Legalisation) -> Legalisation:
        LEGALISATIONS[op] = function
        return function

    return register
