"""Integer divisions written so that TVM keeps their value.

Where it computes addresses (`FlattenBuffer`), TVM takes a factor of −1 out of a dividend and
divides by a negative divisor; the constant in the dividend is lost on the way: (5 − i) // 2 becomes
i // −2, (1 − i) % 3 becomes (i % −3) · −1. With a = −1 − b these are the same, for n > 0:

    a // n = −1 − b // n,    a % n = n − 1 − b % n
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import prim
from tvm.s_tir import SBlock


def with_positive_dividends(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the same function without divisions of what falls in all of its variables.

    Parameters
    ----------
    func : PrimFunc
        Of blocks, scheduled or not: before TVM computes addresses.
    """
    fixed: list[Any] = []

    def visit(node: Any) -> None:
        if isinstance(node, tirx.For):
            fixed.extend([node.loop_var] if _is_one(node.extent) else [])
        else:
            fixed.extend(axis.var for axis in node.iter_vars if _is_one(axis.dom.extent))

    def change(node: Any) -> Any:
        if not isinstance(node.b, prim.IntImm) or int(node.b) == 0:
            return node
        return _positive(node, fixed)

    tvm_ffi.structural_walk(func.body, ((tirx.For, SBlock), visit))
    body = tvm_ffi.structural_map(func.body, ((prim.FloorDiv, prim.FloorMod), change))
    return func if body.same_as(func.body) else func.with_body(body)


def _is_one(extent: Any) -> bool:
    return isinstance(extent, prim.IntImm) and int(extent) == 1


def _positive(node: Any, fixed: list[Any]) -> Any:
    """Return a division by a positive divisor, of a dividend that does not only fall."""
    divide, is_quotient = type(node), isinstance(node, prim.FloorDiv)
    dividend, divisor = node.a, int(node.b)
    n = tirx.const(abs(divisor), str(node.ty))
    if divisor < 0:
        opposite = _positive(divide(_simple(-dividend), n), fixed)
        return opposite if is_quotient else -opposite
    signs = _signs(dividend, 1, fixed, abs(divisor))
    if not signs or max(signs) > 0:
        return node
    mirrored = divide(_simple(-1 - dividend), n)
    return -1 - mirrored if is_quotient else n - 1 - mirrored


def _simple(expr: Any) -> Any:
    return tvm.sym.Analyzer().canonical_simplify(expr)


def _signs(expr: Any, sign: int, fixed: list[Any], n: int) -> list[int]:
    """Return the signs of the terms of a sum that are not the same everywhere, modulo n."""
    if isinstance(expr, prim.IntImm) or any(expr.same_as(var) for var in fixed):
        return []
    if isinstance(expr, prim.Add | prim.Sub):
        other = -sign if isinstance(expr, prim.Sub) else sign
        return _signs(expr.a, sign, fixed, n) + _signs(expr.b, other, fixed, n)
    if isinstance(expr, prim.Mul):
        for factor, by in ((expr.a, expr.b), (expr.b, expr.a)):
            if isinstance(by, prim.IntImm):
                if int(by) % n == 0:
                    return []  # TVM takes such a term out first
                return _signs(factor, sign if int(by) > 0 else -sign, fixed, n)
    return [sign]
