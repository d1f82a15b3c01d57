"""Extents of tensors in terms of other variables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import prim

from ..walk import Expr, children, identity, postorder, rebuilt


def rename_extent(extent: Any, dtype: str, variable: Callable[[Any], Expr | int]) -> Expr:
    """An extent in terms of other variables, which may be of another dtype.

    Parameters
    ----------
    extent : int or Expr
    dtype : str
        Of the result.
    variable : callable
        Maps each variable to what stands for it.
    """
    if isinstance(extent, int):
        return tirx.const(extent, dtype)
    results: dict[int, Expr] = {}
    for node in postorder(extent):
        if isinstance(node, tirx.IntImm):
            new = tirx.const(int(node), dtype)
        elif isinstance(node, tvm.ir.Var):
            new = variable(node)
            new = tirx.const(new, dtype) if isinstance(new, int) else new
        elif isinstance(node, prim.Cast):
            new = results[identity(node.value)]  # all of it is in the dtype already
        else:
            new = rebuilt(node, [results[identity(part)] for part in children(node)])
        results[identity(node)] = new
    return results[identity(extent)]
