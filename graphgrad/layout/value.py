"""A tensor of the model, in those orders of its axes in which a new program holds it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ..ir.tensor import Dimension, same_shape, type_shape
from . import orders
from .orders import Order

_RESHAPE = tvm.ir.Op.get("relax.reshape")


class Bindings:
    """The bindings of a program that is being written.

    Parameters
    ----------
    reserved : iterable of str
        The names of the old program. Each of them is given to the binding that takes the place of
        the old one, if there is any, and to no other.
    kept : collection of str
        Names of values that must not be bypassed by reading what they were made of; see `keep` of
        `channels_last`.

    Attributes
    ----------
    bound : list of (relax.Var, relax expression or relax.MatchCast)
    span : Span or None
        The span of the old binding that is being rewritten, which conversions are given.
    """

    def __init__(self, reserved: Iterable[str], kept: Collection[str] = ()):
        self.bound: list[tuple[Any, Any]] = []
        self.span: Any = None
        self._builder = relax.BlockBuilder()
        self._reserved, self._kept = set(reserved), set(kept)
        self._taken: set[str] = set()
        self._definitions: dict[Any, Any] = {}

    def take(self, name: str) -> None:
        """Mark a name as in use, such as that of a parameter."""
        self._taken.add(name)

    def keep(self, var: Any, value: Any) -> None:
        """Add a binding of a given variable; its value is normalized, so that it has a type."""
        if not isinstance(value, relax.MatchCast):
            value = self._builder.normalize(value)
        self.take(var.name)
        self.bound.append((var, value))

    def add(self, value: Any, name: str) -> Any:
        """Bind a call whose type is not known yet; return the variable."""
        value = self._builder.normalize(value)
        var = relax.Var(name, value.ty)
        self._definitions[var] = value
        self.keep(var, value)
        return var

    def convert(self, value: Any, name: str) -> Any:
        """Bind a call that converts the value of a name to another order."""
        located = relax.Call(value.op, value.args, value.attrs, value.ty_args, self.span)
        return self.add(located, self.other_name(name) if name in self._taken else name)

    def other_name(self, name: str) -> str:
        """A name that nothing has, made of another one."""
        number, free = 1, f"{name}.permuted"
        while free in self._taken or free in self._reserved:
            number += 1
            free = f"{name}.permuted{number}"
        return free

    def source_of_reshape(self, expr: Any) -> Any:
        """The operand of a reshape, given its variable; any other or a kept value is returned."""
        # A reshape of a reshape is one reshape.
        if not isinstance(expr, relax.Var) or expr.name in self._kept:
            return expr
        value = self._definitions.get(expr)
        return value.args[0] if isinstance(value, relax.Call) and value.op == _RESHAPE else expr


class Value:
    """A tensor of the model, converted to other orders on demand, once to each.

    Parameters
    ----------
    bindings : Bindings
        Where conversions are written.
    name : str
        In the model.
    shape : sequence
        In the model.
    expr : relax expression
        The tensor, stored in some order.
    order : Order, optional
        By default the model's own.
    preferred : Order, optional
        By default `order`.

    Attributes
    ----------
    preferred : Order
        The order in which ops had best compute with it.
    """

    def __init__(
        self,
        bindings: Bindings,
        name: str,
        shape: Sequence[Dimension],
        expr: Any,
        order: Order | None = None,
        preferred: Order | None = None,
    ):
        self.name = name
        self.shape = list(shape)
        order = orders.own(len(shape)) if order is None else order
        self.preferred = order if preferred is None else preferred
        self._bindings = bindings
        self._stored: dict[Order, Any] = {order: expr}

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def is_plain(self) -> bool:
        """Whether it is preferred in the model's own order."""
        return self.preferred == orders.own(self.rank)

    @property
    def plain(self) -> Any:
        """The expression of the tensor as the model has it."""
        return self.in_order(orders.own(self.rank))

    def in_order(self, order: Order) -> Any:
        """The expression of the tensor, stored in an order."""
        if order not in self._stored:
            self._stored[order] = self._converted(order)
        return self._stored[order]

    def relabeled(self, name: str, axes: Sequence[int]) -> Value:
        """The tensor with its axes permuted by the model: the same memory.

        The result is preferred in the order that describes this memory if that is channels last, as
        a convolution wants it, or if the tensor itself was preferred in another order than the
        model's. Otherwise it is preferred in the model's order: the permutation is then done here,
        where the model has it.
        """
        shape = [self.shape[axis] for axis in axes]
        stored = {
            orders.relabeled(order_held, axes): expr for order_held, expr in self._stored.items()
        }
        preferred = orders.relabeled(self.preferred, axes)
        if self.is_plain and preferred != orders.channels_last(self.rank):
            preferred = orders.own(self.rank)
        order = preferred if preferred in stored else next(iter(stored))
        value = Value(self._bindings, name, shape, stored[order], order, preferred)
        value._stored = stored
        return value

    def reshaped(self, order: Order, shape: Sequence[Dimension]) -> Any:
        """The expression of the tensor, stored in an order, in a shape with as many elements."""
        call = relax.Call(_RESHAPE, [self.in_order(order), relax.ShapeExpr(list(shape))])
        return self._bindings.convert(call, self.name)

    def unsqueezed(self, rank: int) -> Value:
        """The tensor with axes of extent 1 in front, as broadcasting has it."""
        shape = self._unsqueezed_shape(rank)
        constant = self._constant()
        if constant is not None:
            array = constant.value.numpy().reshape(shape)
            expr = relax.const(array, str(constant.ty.dtype))
        else:
            source = self._bindings.source_of_reshape(self.plain)
            call = relax.Call(_RESHAPE, [source, relax.ShapeExpr(shape)])
            expr = self._bindings.convert(call, self.name)
        return Value(self._bindings, self.name, shape, expr)

    def unsqueezed_movement(self, order: Order) -> int:
        """The number of elements that move where `unsqueezed` is converted to an order."""
        shape = self._unsqueezed_shape(len(order))
        if self._constant() is not None or orders.is_same_memory(
            orders.own(len(order)), order, shape
        ):
            return 0
        return _size(shape)

    def movement(self, order: Order) -> int:
        """The number of elements that a conversion to an order moves, as `_size` counts them."""
        if self._free(order) is not None or self._constant() is not None:
            return 0
        return _size(self.shape)

    def _unsqueezed_shape(self, rank: int) -> list[Dimension]:
        return [1] * (rank - self.rank) + self.shape

    def _free(self, order: Order) -> Order | None:
        """An order in which it is stored and from which no element has to move; None if none is."""
        same = (held for held in self._stored if orders.is_same_memory(held, order, self.shape))
        return order if order in self._stored else next(same, None)

    def _constant(self) -> Any:
        """The constant that the tensor is in the model's order; None if it is none."""
        expr = self._stored.get(orders.own(self.rank))
        return expr if isinstance(expr, tvm.ir.GenericConst) else None

    def _converted(self, order: Order) -> Any:
        """The expression of the tensor in an order in which it is not stored yet."""
        constant, near = self._constant(), self._free(order)
        if constant is not None:
            # Permuted here, at compile time: the function would do it at every call.
            array = np.ascontiguousarray(np.transpose(constant.value.numpy(), order))
            return relax.const(array, str(constant.ty.dtype))
        if near is not None:
            source = self._bindings.source_of_reshape(self._stored[near])
            target = orders.extents(self.shape, order)
            if same_shape(type_shape(source.ty), target):
                return source
            call = relax.Call(_RESHAPE, [source, relax.ShapeExpr(target)])
        else:
            start = self.preferred if self.preferred in self._stored else next(iter(self._stored))
            axes = orders.steps(start, order)
            call = relax.op.permute_dims(self._stored[start], axes)
        return self._bindings.convert(call, self.name)


class Parts:
    """A tuple of tensors that a call returns, each stored in an order of its own.

    Parameters
    ----------
    bindings : Bindings
    expr : relax.Var
        What the call is bound to.
    var : relax.Var
        In the old program.
    parts : list of Order

    Attributes
    ----------
    orders : list of Order
    """

    def __init__(self, bindings: Bindings, expr: Any, var: Any, parts: list[Order]):
        self.orders = parts
        self._bindings, self._expr, self._var = bindings, expr, var

    def item(self, index: int) -> Any:
        """The expression of an element, as it is stored."""
        return relax.TupleGetItem(self._expr, index, self._bindings.span)

    @property
    def plain(self) -> Any:
        """The expression of the tuple, with tensors as the model has them."""
        fields = []
        for index, (ty, order) in enumerate(zip(self._var.ty.fields, self.orders, strict=True)):
            name = f"{self._var.name}.{index}"
            item = self._bindings.add(self.item(index), self._bindings.other_name(name))
            fields.append(Value(self._bindings, name, type_shape(ty), item, order).plain)
        return relax.Tuple(fields)


def _size(shape: Sequence[Dimension]) -> int:
    """The number of elements, with symbolic extents taken for 1."""
    return math.prod(extent for extent in shape if isinstance(extent, int))
