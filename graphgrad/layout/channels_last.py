"""Making a program channels-last: a pass over its bindings, before it is differentiated.

For every tensor the pass knows the orders in which it is stored (`value.Value`). A convolution asks
for its data and weights channels last. The ops behind it compute in the order in which their
operands come, each by its rule in `rule.LAYOUT_RULES`. An op without a rule gets its operands as
the model has them. So a tensor is converted only where two orders meet, and at most once to each
order.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import tvm
from tvm import relax

from ..ir.program import Program, substitute, variables_in
from ..ir.tensor import has_shape, type_shape
from ..memory.effect_order import may_write
from . import orders
from .orders import Order, OrderOfFilters
from .rule import LAYOUT_RULES, LaidOut, LayoutRule, Site, as_in_model, asks_for_layout
from .value import Bindings, Parts, Value


def channels_last(
    program: Program,
    storage: Mapping[str, Order] | None = None,
    keep: Collection[str] = (),
    filters: OrderOfFilters = orders.filters_last,
) -> Program:
    """The program that computes the same with the channels innermost.

    Parameters
    ----------
    program : Program
        Not changed.
    storage : mapping of str to Order, optional
        The orders of those parameters that the caller passes in another order than the model's, see
        `choice.storage_of`. All others, and all results, have the shapes that they had.
    keep : collection of str
        Names of values that the caller will look up. They keep their shapes, and all that depends
        on them is computed from the variables of these names.
    filters : callable
        The order in which convolutions read weights, by their rank.

    Returns
    -------
    Program
        Where there is no convolution in the standard layout, or memory is overwritten, only the
        parameters in `storage` differ from the program that was given. Names, and the spans that
        say which ONNX node a call comes from, are kept.
    """
    storage = storage or {}
    pays = is_convertible(program)
    if not pays and not storage:
        return program
    return _Rewriting(program, storage, keep, LAYOUT_RULES if pays else {}, filters).program()


def is_convertible(program: Program) -> bool:
    """Whether a program has a convolution to convert, and overwrites no memory.

    A tensor that is overwritten must exist once, in one order: a conversion would be a copy.
    """
    return not may_write(program.body()) and any(
        asks_for_layout(value) for _, value in program.bindings
    )


class _Rewriting:
    """One walk over the bindings of a program."""

    def __init__(
        self,
        program: Program,
        storage: Mapping[str, Order],
        keep: Collection[str],
        rules: Mapping[str, LayoutRule],
        filters: OrderOfFilters,
    ):
        self._filters = filters
        self._program = program
        self._keep = set(keep)
        self._rules = rules
        self._bindings = Bindings((var.name for var in program.variables()), self._keep)
        self._params: list[Any] = []
        self._values: dict[Any, Any] = {}
        """For each variable of the old program a `Value`; `Parts` for a tuple that a call returns;
        a list for a tuple that the program builds; or the new expression of anything else."""
        for param in program.params:
            self._values[param] = self._param(param, storage.get(param.name))

    def program(self) -> Program:
        """The new program."""
        for var, value in self._program.bindings:
            # Conversions that this binding causes are attributed to its ONNX node.
            self._bindings.span = getattr(value, "span", None)
            self._values[var] = self._rewritten(var, value)
        result = as_in_model(self._operand(self._program.result))
        return replace(
            self._program, params=self._params, bindings=self._bindings.bound, result=result
        )

    def _param(self, param: Any, order: Order | None) -> Any:
        """Add a parameter to the new program, stored in an order; return its entry in `_values`."""
        if order is None:
            stored = param
        else:
            shape = orders.extents(type_shape(param.ty), order)
            stored = relax.Var(param.name, relax.TensorType(shape, param.ty.dtype))
        self._params.append(stored)
        self._bindings.take(param.name)
        return self._held(param, stored, order)

    def _rewritten(self, var: Any, value: Any) -> Any:
        """Rewrite the binding of a variable; return the variable's entry in `_values`."""
        if isinstance(value, relax.Var | relax.Tuple):
            return self._operand(value)
        if isinstance(value, relax.TupleGetItem):
            parts = self._operand(value.tuple_value)
            if isinstance(parts, list):
                return self._element(var, value, parts)
            if isinstance(parts, Parts):
                return self._bound(var, parts.item(value.index), parts.orders[value.index])
        result = self._apply_layout_rule(var, value)
        if isinstance(result, LaidOut):
            return self._bound(var, result.call, result.orders)
        return self._keep_binding(var, value) if result is None else result

    def _element(self, var: Any, value: Any, parts: list[Any]) -> Any:
        """An element of a tuple that the program itself has built, bound only if kept."""
        if var.name not in self._keep:
            return parts[value.index]
        # A kept element needs a binding of its name: it is read off a tuple that is bound for it.
        name = self._bindings.other_name(value.tuple_value.name)
        tuple_var = relax.Var(name, value.tuple_value.ty)
        self._bindings.keep(tuple_var, as_in_model(parts))
        self._bindings.keep(var, relax.TupleGetItem(tuple_var, value.index, value.span))
        return self._held(var, var, None)

    def _apply_layout_rule(self, var: Any, value: Any) -> LaidOut | Value | None:
        """The result of the layout rule of a call; None if it stays in the model's order."""
        rule = self._rules.get(getattr(getattr(value, "op", None), "name", ""))
        if rule is None or not isinstance(value, relax.Call) or not _is_known(value.ty):
            return None
        operands = [self._operand(argument) for argument in value.args]
        if not all(_is_known(argument.ty) for argument in value.args):
            return None
        result = rule(Site(value, operands, var.name, self._filters))
        return None if isinstance(result, Value) and var.name in self._keep else result

    def _bound(self, var: Any, expr: Any, order: Order | list[Order]) -> Any:
        """Bind the expression of a variable, stored in an order; return its entry in `_values`."""
        if isinstance(order, list):
            return Parts(self._bindings, self._bindings.add(expr, var.name), var, order)
        is_kept = var.name in self._keep and order != orders.own(len(order))
        # The name of a kept value is for its conversion to the model's order, of which all that
        # depends on it is computed.
        name = self._bindings.other_name(var.name) if is_kept else var.name
        computed = self._held(var, self._bindings.add(expr, name), order)
        return self._held(var, computed.plain, None) if is_kept else computed

    def _keep_binding(self, var: Any, value: Any) -> Any:
        """Bind a value as it was, of operands as the model has them."""
        names = {read: as_in_model(self._values[read]) for read in variables_in(value)}
        if isinstance(value, relax.MatchCast):
            value = relax.MatchCast(var, substitute(value.value, names), value.ty)
        else:
            value = substitute(value, names)
        self._bindings.keep(var, value)
        return self._held(var, var, None)

    def _operand(self, expr: Any) -> Any:
        """The value of an expression of the old program."""
        if isinstance(expr, relax.Var):
            return self._values[expr]
        if isinstance(expr, relax.Tuple):
            return [self._operand(item) for item in expr.fields]
        if isinstance(expr, tvm.ir.GenericConst) and _is_known(expr.ty):
            return Value(self._bindings, "constant", type_shape(expr.ty), expr)
        return expr

    def _held(self, var: Any, expr: Any, order: Order | None) -> Any:
        """The entry in `_values` of a variable whose value the new program has as `expr`."""
        if not isinstance(var.ty, relax.TensorType) or not _is_known(var.ty):
            return expr
        return Value(self._bindings, var.name, type_shape(var.ty), expr, order)


def _is_known(ty: Any) -> bool:
    """Whether tensors of a type, or in a tuple of that type, have a known rank and shape."""
    if isinstance(ty, relax.TupleType):
        return all(map(_is_known, ty.fields))
    return not isinstance(ty, relax.TensorType) or has_shape(ty)
