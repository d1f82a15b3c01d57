"""In which order a training step stores each parameter."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from ..ir.inline import inline_calls
from ..ir.program import variables_in
from .channels_last import is_convertible
from .orders import Order
from .windows import order_of_weights


def storage_of(mod: tvm.IRModule, func: str = "main") -> dict[str, Order]:
    """Return the order of each parameter that a function reads only as weights of convolutions.

    All others are used otherwise too, or not at all: they are stored as the model has them, and
    converted where a convolution reads them.
    """
    program = inline_calls(mod, func)
    if not is_convertible(mod[func], program):
        return {}
    wanted: dict[Any, set[Order | None]] = {param: set() for param in program.params}
    for _, value in program.bindings:
        order = order_of_weights(value)
        others = value if order is None else relax.Tuple([value.args[0], *value.args[2:]])
        for var in variables_in(others):
            wanted.setdefault(var, set()).add(None)
        if order is not None:
            wanted.setdefault(value.args[1], set()).add(order)
    for var in variables_in(program.result):
        wanted.setdefault(var, set()).add(None)
    return {
        param.name: order
        for param in program.params
        if len(wanted[param]) == 1
        for order in wanted[param]
        if order is not None
    }
