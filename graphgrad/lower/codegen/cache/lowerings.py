"""Tells whether ops are lowered by TVM and graphgrad: only then may a compiled program be cached.

The cache's key must contain all that compilation depends on, and a Python function that somebody
else has registered to lower an op has no written form. TVM's own functions are recognized by the
level that TVM registers them at: others need a higher one to replace them. One case escapes: a
function registered before graphgrad was imported, at TVM's level, either for an op that TVM does
not lower or after ``tvm.ir.Op.reset_attr``.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import tvm

_OWN_OPS = "graphgrad."

_OPS = (_OWN_OPS, "prim.", "relax.", "te.", "tirx.")
"""How the names of ops begin that TVM or graphgrad has registered."""

_LOWERINGS = (
    "FLegalize",
    "default.FLegalize",
    "default.FLowerIntrinsic",
    "llvm.FLegalize",
    "llvm.FLowerIntrinsic",
    "llvm.aarch64.FLegalize",
    "llvm.aarch64.FLowerIntrinsic",
)
"""Attributes of ops that hold functions by which they are lowered, in Relax and in kernels."""

_STOCK_PRIORITY = 10
"""The level at which TVM registers attributes, and graphgrad those of its own ops."""


def changed_lowerings() -> bool:
    """Whether an op that existed when graphgrad was imported is now lowered by somebody else."""
    current = {key: function for key, function in _lowerings().items() if key[0] in _first_ops}
    return current.keys() != _at_first.keys() or any(
        not function.same_as(_at_first[key]) or not _is_stock(*key)
        for key, function in current.items()
    )


def is_lowered_by_tvm_or_graphgrad(op: tvm.ir.Op) -> bool:
    """Whether a Relax op has a lowering, and nobody else has registered another one."""
    key = (str(op.name), "FLegalize")
    first = _at_first.get(key)
    return first is not None and first.same_as(op.get_attr("FLegalize")) and _is_stock(*key)


def foreign_ops() -> list[str]:
    """The ops that neither TVM nor graphgrad has registered."""
    return [
        name
        for name in map(str, tvm.ir.Op.list_op_names())
        if not name.startswith(_OPS) or (name not in _first_ops and not name.startswith(_OWN_OPS))
    ]


def _lowerings() -> dict[tuple[str, str], Any]:
    """The functions by which ops are lowered, by op and attribute."""
    return {
        (name, attribute): function
        for name in map(str, tvm.ir.Op.list_op_names())
        for attribute in _LOWERINGS
        if (op := tvm.ir.Op.get(name)).has_attr(attribute)
        and (function := op.get_attr(attribute)) is not None
    }


@cache
def _is_stock(op: str, attribute: str) -> bool:
    """Whether the function in an attribute was registered at TVM's own level.

    TVM does not report the level of an attribute, but refuses a second function at the same one. So
    the function is registered once more at each level from the lowest up to TVM's: below its own
    level that changes nothing, and at its own level it is refused.
    """
    function = tvm.ir.Op.get(op).get_attr(attribute)
    for level in range(1, _STOCK_PRIORITY + 1):
        try:
            tvm.ir.register_op_attr(op, attribute, function, level=level)
        except RuntimeError:
            return level == _STOCK_PRIORITY
    return False


# The state when this module is imported: what differs from it later was registered by others.
_at_first = _lowerings()

_first_ops = frozenset(map(str, tvm.ir.Op.list_op_names()))
