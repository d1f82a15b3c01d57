"""The choice of the layout in which a model is computed and stored: by target, seen by no user."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import tvm
from tvm import relax

from ..ir.calls import calls_op
from ..ir.program import Program, variables_in
from ..ir.tensor import type_shape
from . import orders
from .channels_last import channels_last, is_convertible
from .orders import Order, OrderOfFilters
from .rule import order_of_weights


@dataclass(frozen=True)
class Layout:
    """The layout in which a model is computed, and in which its parameters are stored.

    Attributes
    ----------
    converts : bool
        Whether programs are made channels-last; False leaves everything as the model has it.
    storage : mapping of str to Order
        By parameter; those that are left out are stored as the model has them. What belongs to a
        parameter, a gradient or an optimizer's buffer, is stored as it is.
    filters : callable
        The order in which convolutions read weights.
    """

    converts: bool = False
    storage: Mapping[str, Order] = field(default_factory=dict)
    filters: OrderOfFilters = orders.filters_last

    def of(self, program: Program, keep: Collection[str] = ()) -> Program:
        """A program of the model in this layout; see `channels_last`."""
        if not self.converts:
            return program
        return channels_last(program, self.storage, keep, self.filters)

    def stored_type(self, name: str, ty: relax.TensorType) -> relax.TensorType:
        """The type of what is stored for a tensor that belongs to a parameter."""
        order = self.storage.get(name)
        if order is None:
            return ty
        return relax.TensorType(orders.extents(type_shape(ty), order), ty.dtype)


MODEL_LAYOUT = Layout()
"""Everything stays as the model has it."""


def layout_for(target: tvm.target.Target, on_tensor_cores: bool = False) -> Layout:
    """The layout of computations on a target, with parameters as the model has them.

    On processors the channels are the axis that kernels read as vectors. Our own schedules for GPUs
    read the innermost spatial axis so, which in the layout of ONNX is that already.

    Parameters
    ----------
    target : Target
    on_tensor_cores : bool
        Whether tensor cores of a GPU compute the convolutions, or a library does. Both read data
        and weights with the channels innermost.
    """
    if on_tensor_cores:
        return Layout(converts=True, filters=orders.input_channels_last)
    return Layout(converts=str(target.kind.name) == "llvm")


def choose_storage(layout: Layout, program: Program) -> Layout:
    """The layout with parameters stored as a program's convolutions read them."""
    if not layout.converts:
        return layout
    return replace(layout, storage=storage_of(program, layout.filters))


def storage_of(program: Program, filters: OrderOfFilters = orders.filters_last) -> dict[str, Order]:
    """The order of each parameter that a program reads only as weights of convolutions.

    Other parameters are left out. They are used otherwise too, or not at all, so they are stored as
    the model has them, and converted where a convolution reads them. Weights in another dtype, as
    convolutions of mixed precision read them, count as the parameter.
    """
    if not is_convertible(program):
        return {}
    # The orders in which each variable is read; None stands for a use other than as weights.
    orders_of_uses: dict[Any, set[Order | None]] = {param: set() for param in program.params}
    for bound, value in program.bindings:
        if calls_op(value, "relax.astype") and value.args[0] in orders_of_uses:
            # One set of uses for both variables.
            orders_of_uses[bound] = orders_of_uses[value.args[0]]
            continue
        order = order_of_weights(value, filters)
        other_operands = value if order is None else relax.Tuple([value.args[0], *value.args[2:]])
        for var in variables_in(other_operands):
            orders_of_uses.setdefault(var, set()).add(None)
        if order is not None:
            orders_of_uses.setdefault(value.args[1], set()).add(order)
    for var in variables_in(program.result):
        orders_of_uses.setdefault(var, set()).add(None)
    return {
        param.name: order
        for param in program.params
        if len(orders_of_uses[param]) == 1
        for order in orders_of_uses[param]
        if order is not None
    }
