"""Operators that make a tensor from its extents, which may be symbolic."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper
from tvm import relax

from ...ir.tensor import Dimension, Tensor
from ..exact_arithmetic import ExactArithmetic, symbols
from ..known_values import NotKnownError, as_ratio, is_symbolic
from .node import Node, converter


@converter("ConstantOfShape")
def constant_of_shape(node: Node) -> Tensor | tuple[Any, ...]:
    """A tensor of one number everywhere."""
    shape = node.known_dimensions(0)
    if shape is None:
        return node.by_tvm()
    fill = np.asarray(node.attribute("value", np.zeros(1, "float32"))).reshape(())
    value = relax.const(fill, str(fill.dtype))
    return node.emitter.emit(relax.op.full(relax.ShapeExpr(shape), value, str(fill.dtype)))


@converter("EyeLike")
def eye_like(node: Node) -> Tensor:
    """Ones on the k-th diagonal of zeros, in the shape of the input."""
    x, dtype = node.tensor(0), node.attribute("dtype", None)
    name = x.dtype if dtype is None else str(helper.tensor_dtype_to_np_dtype(dtype))
    return node.emitter.emit(relax.op.eye_like(x.expr, node.attribute("k", 0))).astype(name)


@converter("Range")
def range_(node: Node) -> Tensor | tuple[Any, ...]:
    """start, start + step, … up to but not including the limit."""
    bounds = [value for value in node.known if value is not None]
    if len(bounds) < 3:  # a bound is computed at run time
        return node.by_tvm()
    start, limit, step = (bound.elements.reshape(-1)[0] for bound in bounds)
    dtype = bounds[0].dtype
    try:
        count = _count(start, limit, step)
    except NotKnownError:
        return node.by_tvm()
    # 0, 1, … times the step plus the start, since the count alone has to be known as an extent.
    values = node.emitter.emit(relax.op.arange(0, count, 1, "int64")).astype(dtype)
    # `step != 1` of an expression would be an expression, not a truth value.
    if is_symbolic(step) or step != 1:
        values = values * node.tensor(2)
    if is_symbolic(start) or start != 0:
        values = values + node.tensor(0)
    return values


def _count(start: Any, limit: Any, step: Any) -> Dimension:
    """⌈(limit − start) / step⌉, or 0 where that is negative."""
    arithmetic = ExactArithmetic(
        symbols([as_ratio(bound).numerator for bound in (start, limit, step)])
    )
    span = arithmetic.binary("Sub", as_ratio(limit), as_ratio(start))
    count = arithmetic.unary("Ceil", arithmetic.binary("Div", span, as_ratio(step)))
    return arithmetic.binary("Max", count.numerator, 0)
