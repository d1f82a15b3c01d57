"""Layout rules: their form, their table, and what those of several op families have in common.

A *layout rule* carries a layout through an op, beside which it stands (`graphgrad.ops`). It is a
function of a `Site`, a call in the old program whose operands may be stored in other orders than
the model's. It returns the call that computes the same from the stored tensors, or None: then the
call stays as it is, and its operands are converted to the model's own order. So an op without a
rule is always right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax

from ..ir.attributes import Attributes
from ..ir.tensor import type_shape
from ..tvm_fixes.hooks import change_attributes
from . import orders
from .orders import Order, OrderOfFilters
from .value import Parts, Value


@dataclass(frozen=True)
class LaidOut:
    """A call that takes the place of an old one, with the order of its result.

    Attributes
    ----------
    call : relax.Call
    orders : Order or list of Order
        The order in which its result is stored; if that is a tuple, a list of its elements' orders.
    """

    call: relax.Call
    orders: Order | list[Order]


@dataclass(frozen=True)
class Site:
    """A call in the old program.

    Attributes
    ----------
    call : relax.Call
    operands : list
        For each argument a `Value`, a list or `Parts` for a tuple of tensors, or the expression
        itself if it is no tensor.
    name : str
        The name of the variable that the call is bound to.
    filters : callable
        The order in which convolutions read weights.
    """

    call: relax.Call
    operands: list[Any]
    name: str
    filters: OrderOfFilters

    @property
    def attributes(self) -> Attributes:
        """The attributes of the call, in plain Python values."""
        return Attributes(self.call.attrs)

    @property
    def shape(self) -> list[Any]:
        """The shape of the result, as the model has it."""
        return type_shape(self.call.ty)

    @property
    def order_of_weights(self) -> Order:
        """The order in which the call, which asks for a layout, reads its weights."""
        order = order_of_weights(self.call, self.filters)
        assert order is not None
        return order

    def passed(
        self, arguments: Sequence[Any], orders: Order | list[Order], **changes: Any
    ) -> LaidOut:
        """The same call of other arguments, with some attributes changed.

        `orders` is the order in which its result is stored, or those of the result's elements.
        """
        attributes = _changed(self.call.attrs, changes)
        call = relax.Call(
            self.call.op, list(arguments), attributes, self.call.ty_args, self.call.span
        )
        return LaidOut(call, orders)


LayoutRule = Callable[[Site], LaidOut | Value | None]
"""Returns a new call; a `Value` where the result needs none; or None for the model's order."""

AsksForLayout = Callable[[relax.Call], bool]
"""Whether a call wants its data channels last, and its weights, the second argument, likewise."""

LAYOUT_RULES: dict[str, LayoutRule] = {}
"""The rules by the names of ops."""

_ASKING: dict[str, AsksForLayout] = {}


def layout_rule(
    *names: str, asks: AsksForLayout | None = None
) -> Callable[[LayoutRule], LayoutRule]:
    """Register the layout rule of some ops.

    Parameters
    ----------
    *names : str
    asks : callable, optional
        Given for ops that ask for a layout, as convolutions do. All others follow their operands.
    """

    def register(function: LayoutRule) -> LayoutRule:
        for name in names:
            LAYOUT_RULES[name] = function
            if asks is not None:
                _ASKING[name] = asks
        return function

    return register


def asks_for_layout(value: Any) -> bool:
    """Whether a value is a call that asks for a layout, as convolutions do."""
    name = getattr(value.op, "name", "") if isinstance(value, relax.Call) else ""
    asks = _ASKING.get(name)
    return asks is not None and asks(value)


def order_of_weights(value: Any, filters: OrderOfFilters) -> Order | None:
    """The order in which a call reads its weights, its second argument, after conversion.

    None for any value but a call that asks for a layout.
    """
    if not asks_for_layout(value):
        return None
    shape = type_shape(value.args[1].ty)
    return filters(len(shape), shape[1] == 1 and Attributes(value.attrs).groups > 1)


def following(rule: Callable[[Site, Any, Order], LaidOut | None]) -> LayoutRule:
    """Make a layout rule of one that computes in the order of the first operand.

    It is given that operand as it is stored, and the order. Where the order is the model's own, the
    result is None.
    """

    def function(site: Site) -> LaidOut | None:
        x = site.operands[0]
        if not isinstance(x, Value) or x.is_plain:
            return None
        return rule(site, x.in_order(x.preferred), x.preferred)

    function.__doc__ = rule.__doc__
    return function


def as_in_model(operand: Any) -> Any:
    """The expression of an operand with its axes as the model has them."""
    if isinstance(operand, Value | Parts):
        return operand.plain
    if isinstance(operand, list):
        return relax.Tuple([as_in_model(item) for item in operand])
    return operand


def stored_axis(order: Order, axis: int) -> int:
    """The position in memory of an axis of the model, which may be negative."""
    return order.index(axis % len(order))


def stored_axes(order: Order, axes: Sequence[int]) -> list[int]:
    """The positions in memory of axes of the model, in their order."""
    return [stored_axis(order, axis) for axis in axes]


def _changed(attributes: Any, changes: Mapping[str, Any]) -> Any:
    """Attributes with some values replaced."""
    if not changes:
        return attributes
    return change_attributes(attributes, changes.get)


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


def order_of_all(parts: Any, rank: int) -> Order | None:
    """The order in which to join tensors; None for a tuple that came as a whole."""
    return cheapest_order(parts, rank) if isinstance(parts, list) else None


def _movement(x: Value, order: Order) -> int:
    """The number of elements that move where an operand is broadcast in an order."""
    return x.movement(order) if x.rank == len(order) else x.unsqueezed_movement(order)


def broadcast(x: Value, order: Order) -> relax.Expr:
    """An operand that may have fewer axes than the result, for a result in an order."""
    if x.rank == len(order):
        return x.in_order(order)
    return x.plain if x.rank == 0 else x.unsqueezed(len(order)).in_order(order)


@following
def along_axis(site: Site, x: relax.Expr, order: Order) -> LaidOut | None:
    """The op runs along the axis where it is stored; further operands are as in the model.

    Of several results, each is stored as the operand. Without an axis the op goes over all elements
    in the model's order, so it stays as it is.
    """
    axis = site.attributes.axis
    if axis is None:
        return None
    further = map(as_in_model, site.operands[1:])
    is_tuple = isinstance(site.call.ty, relax.TupleType)
    results = [order] * len(site.call.ty.fields) if is_tuple else order
    return site.passed([x, *further], results, axis=stored_axis(order, axis))
