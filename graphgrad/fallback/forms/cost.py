"""How many points loops have, by which forms of a gradient are compared."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import prim

from ..constants import integer_value
from ..indices.index_system import Axis
from ..walk import postorder, substituted

_TYPICAL_SIZE = 64
"""What a symbolic size counts as where forms are compared."""


def loop_points(axes: Iterable[Axis]) -> int:
    """The number of points of some loops, where a size that is not constant counts as 64."""
    return prod(_estimate(axis.extent) for axis in axes)


def _estimate(extent: Any) -> int:
    constant = integer_value(extent)
    if constant is not None:
        return constant
    sizes = [
        (node, tirx.const(_TYPICAL_SIZE, str(node.ty)))
        for node in postorder(extent)
        if isinstance(node, tvm.ir.Var)
    ]
    value = tvm.sym.Analyzer().simplify(substituted(extent, sizes))
    return int(value) if isinstance(value, prim.IntImm) else _TYPICAL_SIZE
