"""Values of masks that a program makes of constants alone, computed with NumPy and ml_dtypes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ..ir.attributes import Attributes
from ..ir.tensor import has_shape, type_shape

_MAX_ELEMENTS = 1 << 26
"""Elements of a tensor above which a mask is not computed: it would take noticeable time."""


def constant_value(
    expr: Any, bound: Mapping[Any, Any], memo: dict[Any, np.ndarray | None]
) -> np.ndarray | None:
    """The value of an expression that depends on constants alone; None if it does not.

    None also if it needs an op that masks are not made with.

    Parameters
    ----------
    expr : relax expression
    bound : mapping
        From variables to what they are bound to.
    memo : dict
        From variables to their values, as far as they have been asked for; this call adds to it.
    """
    if isinstance(expr, tvm.ir.GenericConst):
        return expr.value.numpy() if _is_moderate(expr) else None
    if isinstance(expr, relax.Var):
        if expr not in memo:
            value = bound.get(expr)
            memo[expr] = None if value is None else constant_value(value, bound, memo)
        return memo[expr]
    if not isinstance(expr, relax.Call) or not isinstance(expr.op, tvm.ir.Op):
        return None
    function = _FUNCTIONS.get(expr.op.name)
    if function is None or not _is_moderate(expr):
        return None
    operands: list[Any] = []
    for argument in expr.args:
        if isinstance(argument, relax.ShapeExpr):
            continue  # that of the result
        if isinstance(argument, tvm.tirx.IntImm):
            operands.append(int(argument))
            continue
        operand = constant_value(argument, bound, memo)
        if operand is None:
            return None
        operands.append(operand)
    # As compiled programs do it: 0 · −∞ is NaN, and what is too large is infinite.
    with np.errstate(all="ignore"):
        result = function(operands, type_shape(expr.ty), Attributes(expr.attrs))
        return np.asarray(result, _dtype(expr.ty)).reshape(type_shape(expr.ty))


def _is_moderate(expr: Any) -> bool:
    """Whether a tensor has a known shape of not too many elements."""
    ty = expr.ty
    if not has_shape(ty):
        return False
    shape = type_shape(ty)
    known = all(isinstance(extent, int) for extent in shape)
    return known and int(np.prod(shape)) <= _MAX_ELEMENTS


def _dtype(ty: Any) -> np.dtype:
    return np.dtype(str(ty.dtype))


_Function = Callable[[list[Any], list[int], Attributes], Any]
"""From operands, arrays or ints, the shape of the result and attributes to what has its values; it
is cast to the dtype of the result afterwards."""


def _of_operands(function: Callable[..., Any]) -> _Function:
    return lambda operands, _, __: function(*operands)


def _permuted(operands: list[np.ndarray], _: list[int], attrs: Attributes) -> np.ndarray:
    return np.transpose(operands[0], attrs.axes)


def _reshaped(operands: list[np.ndarray], shape: list[int], _: Attributes) -> np.ndarray:
    return operands[0].reshape(shape)


def _positions(operands: list[Any], _: list[int], __: Attributes) -> np.ndarray:
    start, stop, step = operands
    return np.arange(start, stop, step)


_FUNCTIONS: dict[str, _Function] = {
    "relax.arange": _positions,
    "relax.add": _of_operands(np.add),
    "relax.astype": _of_operands(lambda x: x),
    "relax.broadcast_to": lambda operands, shape, _: np.broadcast_to(operands[0], shape),
    "relax.equal": _of_operands(np.equal),
    "relax.expand_dims": _reshaped,
    "relax.greater": _of_operands(np.greater),
    "relax.greater_equal": _of_operands(np.greater_equal),
    "relax.less": _of_operands(np.less),
    "relax.less_equal": _of_operands(np.less_equal),
    "relax.logical_and": _of_operands(np.logical_and),
    "relax.logical_not": _of_operands(np.logical_not),
    "relax.logical_or": _of_operands(np.logical_or),
    "relax.multiply": _of_operands(np.multiply),
    "relax.not_equal": _of_operands(np.not_equal),
    "relax.permute_dims": _permuted,
    "relax.reshape": _reshaped,
    "relax.squeeze": _reshaped,
    "relax.subtract": _of_operands(np.subtract),
    "relax.tril": _of_operands(np.tril),
    "relax.triu": _of_operands(np.triu),
    "relax.where": _of_operands(np.where),
}
