"""Layout rules: their form, their table, and what the files of op families have in common.

A *layout rule* carries a layout through an op. It is a function of a `Site`, a call in the old
program whose operands may be stored in other orders than the model's. It returns the call that
computes the same from the stored tensors, or None: then the call stays as it is, and its operands
are converted to the model's own order. So an op without a rule is always right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax

from ..ir.tensor import type_shape
from ..registry.attributes import Attributes
from ..tvm_fixes.hooks import change_attributes
from .orders import Order
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
    """

    call: relax.Call
    operands: list[Any]
    name: str

    @property
    def attributes(self) -> Attributes:
        """The attributes of the call, in plain Python values."""
        return Attributes(self.call.attrs)

    @property
    def shape(self) -> list[Any]:
        """The shape of the result, as the model has it."""
        return type_shape(self.call.ty)

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

LAYOUT_RULES: dict[str, LayoutRule] = {}
"""The rules by the names of ops."""


def layout_rule(*names: str) -> Callable[[LayoutRule], LayoutRule]:
    """Register the layout rule of some ops."""

    def register(function: LayoutRule) -> LayoutRule:
        for name in names:
            LAYOUT_RULES[name] = function
        return function

    return register


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
