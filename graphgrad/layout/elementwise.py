"""Layout rules of elementwise ops and of those that join tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax

from . import orders
from .orders import Order
from .rule import LaidOut, Site, following, layout_rule, stored_axis
from .value import Value

# fmt: off
_UNARY = [
    "abs", "acos", "acosh", "asin", "asinh", "astype", "atan", "atanh", "bitwise_not", "ceil",
    "clip", "cos", "cosh", "erf", "exp", "floor", "full_like", "isfinite", "isinf", "isnan",
    "log", "logical_not", "negative", "ones_like", "round", "rsqrt", "sigmoid", "sign", "sin",
    "sinh", "sqrt", "square", "tan", "tanh", "trunc", "zeros_like", "nn.gelu", "nn.gelu_tanh",
    "nn.leakyrelu", "nn.relu", "nn.selu", "nn.silu", "nn.softplus",
]
_BROADCASTING = [
    "add", "atan2", "bitwise_and", "bitwise_or", "bitwise_xor", "divide", "equal", "ewise_fma",
    "floor_divide", "floor_mod", "greater", "greater_equal", "left_shift", "less", "less_equal",
    "log_add_exp", "logical_and", "logical_or", "logical_xor", "maximum", "minimum", "mod",
    "multiply", "not_equal", "power", "right_shift", "subtract", "where",
]
# fmt: on


@layout_rule(*(f"relax.{name}" for name in [*_UNARY, *_BROADCASTING]))
def elementwise(site: Site) -> LaidOut | None:
    """Compute in the order that moves the fewest elements; small operands are reshaped to it."""
    tensors = [operand for operand in site.operands if isinstance(operand, Value)]
    order = cheapest_order(tensors, len(site.shape))
    if order is None:
        return None
    arguments = [
        _broadcast(operand, order) if isinstance(operand, Value) else operand
        for operand in site.operands
    ]
    return site.passed(arguments, order)


@layout_rule("relax.broadcast_to")
def broadcast_to(site: Site) -> LaidOut | None:
    """Broadcast the operand, in the order in which it is stored, to the shape in that order."""
    x = site.operands[0]
    order = cheapest_order([x], len(site.shape))
    if order is None:
        return None
    shape = relax.ShapeExpr(orders.extents(site.shape, order))
    return site.passed([_broadcast(x, order), shape], order)


@layout_rule("relax.concat")
def concat(site: Site) -> LaidOut | None:
    """Join along the axis where it is stored."""
    [parts] = site.operands
    order = _order_of_all(parts, len(site.shape))
    if order is None:
        return None
    stored_parts = relax.Tuple([part.in_order(order) for part in parts])
    return site.passed([stored_parts], order, axis=stored_axis(order, site.attributes.axis or 0))


@layout_rule("relax.stack")
def stack(site: Site) -> LaidOut | None:
    """Put the new axis outermost in memory, wherever the model has it."""
    [parts] = site.operands
    order = _order_of_all(parts, len(site.shape) - 1)
    if order is None:
        return None
    stored_parts = relax.Tuple([part.in_order(order) for part in parts])
    axis = (site.attributes.axis or 0) % len(site.shape)
    return site.passed([stored_parts], orders.insert_axis(order, axis), axis=0)


@layout_rule("relax.nn.prelu")
@following
def prelu(site: Site, x: relax.Expr, order: Order) -> LaidOut:
    """The slopes lie along one axis."""
    axis = stored_axis(order, site.attributes.axis)
    return site.passed([x, site.operands[1].plain], order, axis=axis)


def cheapest_order(tensors: Sequence[Value], rank: int) -> Order | None:
    """The order to which tensors are converted with the least movement of elements.

    Parameters
    ----------
    tensors : sequence of Value
    rank : int
        Of the result. A tensor with fewer axes is broadcast, and has no say.

    Returns
    -------
    Order or None
        None for the model's own.
    """
    preferred_orders = dict.fromkeys(x.preferred for x in tensors if x.rank == rank)
    # The model's own order last, so that `min` takes it only if it is strictly cheaper: where all
    # are as good, a convolution may follow, which wants another one.
    candidates = sorted(preferred_orders, key=lambda order: order == orders.own(rank))
    if not candidates:
        return None
    best = min(candidates, key=lambda order: sum(_movement(x, order) for x in tensors))
    return None if best == orders.own(rank) else best


def _order_of_all(parts: Any, rank: int) -> Order | None:
    """The order in which to join tensors; None for a tuple that came as a whole."""
    return cheapest_order(parts, rank) if isinstance(parts, list) else None


def _movement(x: Value, order: Order) -> int:
    """The number of elements that move where an operand is broadcast in an order."""
    return x.movement(order) if x.rank == len(order) else x.unsqueezed_movement(order)


def _broadcast(x: Value, order: Order) -> relax.Expr:
    """An operand that may have fewer axes than the result, for a result in an order."""
    if x.rank == len(order):
        return x.in_order(order)
    return x.plain if x.rank == 0 else x.unsqueezed(len(order)).in_order(order)
