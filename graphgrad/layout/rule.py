"""How layout goes through an op: what the files of families have in common.

A *rule* is a function of a `Site`, a call in the old program whose operands may be stored in
orders of ours. It returns the call that computes the same from what is stored, or None: then the
call stays as it is, and its operands are converted to the model's own order. So an op without a
rule is always right.
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
    """A call that takes the place of an old one.

    Attributes
    ----------
    call : relax.Call
    orders : Order or list of Order
        In which its result is stored; of each element, if that is a tuple.
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
        For each argument a `Value`, a list or `Parts` for a tuple of tensors, or the expression of
        what is no tensor.
    name : str
        Of what the call is bound to.
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
        """The same call of other arguments, with some attributes changed."""
        attributes = _changed(self.call.attrs, changes)
        call = relax.Call(
            self.call.op, list(arguments), attributes, self.call.ty_args, self.call.span
        )
        return LaidOut(call, orders)


LayoutRule = Callable[[Site], LaidOut | Value | None]

LAYOUT_RULES: dict[str, LayoutRule] = {}
"""By the name of the op."""


def layout_rule(*names: str) -> Callable[[LayoutRule], LayoutRule]:
    """Register how layout goes through some ops."""

    def register(function: LayoutRule) -> LayoutRule:
        for name in names:
            LAYOUT_RULES[name] = function
        return function

    return register


def following(rule: Callable[[Site, Any, Order], LaidOut | None]) -> LayoutRule:
    """Make a rule that computes in the order of the first operand, unless that is the model's.

    The rule is given the operand as it is stored, and the order.
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
    """Where an axis of the model, which may be negative, is stored."""
    return order.index(axis % len(order))


def stored_axes(order: Order, axes: Sequence[int]) -> list[int]:
    """Where axes of the model are stored, one by one."""
    return [stored_axis(order, axis) for axis in axes]


def _changed(attributes: Any, changes: Mapping[str, Any]) -> Any:
    """Attributes with some values replaced."""
    if not changes:
        return attributes
    return change_attributes(attributes, changes.get)
