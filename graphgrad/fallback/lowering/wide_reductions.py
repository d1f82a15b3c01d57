"""Reductions of narrow floats in float32, rounded once.

Reduced in its own dtype, a sum of ones ends at 2,048 in float16, at 256 in bfloat16.
"""

from __future__ import annotations

from typing import Any

from tvm import te, tirx
from tvm.ir import prim

from ..backprop import wide
from ..graph import Operation, is_reduction, outputs_of, rebuild_reduction, replace_bodies
from ..kinds import map_stage
from ..walk import Expr, called, identity
from .wide_floats import Widening

_ARITHMETIC = (prim.Add, prim.Sub, prim.Mul)


def widen_reduction(op: Operation) -> list[te.Tensor] | None:
    """The new outputs of a reduction, or None for a stage that may stay as it is.

    Parameters
    ----------
    op : Operation
        Made for `graph.rewritten`.
    """
    if not is_reduction(op):
        return None
    body = op.body[0]
    if not any(map(_is_narrow, body.source)) or _is_extreme(body.combiner):
        return None
    components = rebuild_reduction(
        body,
        [_widen_element(source) for source in body.source],
        init=[_to_float32(value) for value in body.init],
        combiner=_wide_combiner(body.combiner),
    )
    reduced = outputs_of(replace_bodies(op, components))
    return [
        _rounded(reduced[int(each.value_index)], str(op.output(number).dtype), str(op.name))
        for number, each in enumerate(op.body)
    ]


def _is_narrow(value: Expr) -> bool:
    return str(value.ty) in ("float16", "bfloat16")


def _is_extreme(combiner: Any) -> bool:
    """Whether a reduction is the largest of its elements, or the smallest: one of them."""
    results = combiner.result
    return len(results) == 1 and isinstance(results[0], prim.Max | prim.Min)


def _to_float32(value: Expr) -> Expr:
    return value.astype(wide(value.ty)) if _is_narrow(value) else value


def _widen_element(value: Expr) -> Expr:
    """An element in float32, the products and sums in it too.

    What they are of is computed as elsewhere, so that conditions turn out the same.
    """
    if not _is_narrow(value):
        return value
    if isinstance(value, _ARITHMETIC):
        return type(value)(_widen_element(value.a), _widen_element(value.b))
    if called(value) == "prim.if_then_else":
        condition, *arms = value.args
        return tirx.if_then_else(condition, *map(_widen_element, arms))
    return _to_float32(value)


def _wide_combiner(combiner: Any) -> Any:
    """A combiner of the same operations in float32."""
    dtypes = [str(each.ty) for each in combiner.identity_element]
    sides = [
        [tirx.Var(var.name, wide(var.ty)) for var in side] for side in (combiner.lhs, combiner.rhs)
    ]
    operands = [*combiner.lhs, *combiner.rhs]
    table = dict(zip(map(identity, operands), [*sides[0], *sides[1]], strict=True))
    results, identities = list(combiner.result), list(combiner.identity_element)
    for narrow in sorted({dtype for dtype in dtypes if dtype != wide(dtype)}):
        widening = Widening(narrow, variables=table)
        results = [widening.expression(result) for result in results]
        identities = [widening.expression(start) for start in identities]
    return tirx.CommReducer(*sides, results, identities)


def _rounded(result: te.Tensor, dtype: str, name: str) -> te.Tensor:
    if str(result.dtype) == dtype:
        return result
    return map_stage(result.shape, lambda *at: result[at].astype(dtype), name=f"{name}_rounded")
