"""Sorting: values by the places that they come from."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import te, topi

from ..graph import listed
from ..kinds import map_stage
from ..walk import Expr
from .match import nodes, same_stage

_INDEX = "int64"


def sort(op: Any) -> list[te.Tensor] | None:
    """y[k] = x[order[k]]"""
    (data,) = op.inputs
    *_, axis, is_ascend = arguments_of(op)
    if not same_stage(op, topi.sort(data, axis, is_ascend)):
        return None
    # The order is integers and has no gradient, so the values are differentiated as a gather.
    return [taken(data, topi.argsort(data, None, axis, is_ascend, _INDEX), axis)]


def argsort(op: Any) -> list[te.Tensor] | None:
    """Integers, as whatever type they are held."""
    (data,) = op.inputs
    *_, axis, is_ascend = arguments_of(op)
    dtype = str(op.output(0).dtype)
    if not same_stage(op, topi.argsort(data, None, axis, is_ascend, dtype)):
        return None
    order = topi.argsort(data, None, axis, is_ascend, _INDEX)
    return [map_stage(order.shape, lambda *at: order(*at).astype(dtype), name="order")]


def topk(op: Any) -> list[te.Tensor | None] | None:
    """y[k] = x[indices[k]]"""
    (data,) = op.inputs
    *_, count, axis, ret_type, is_ascend = arguments_of(op)
    outputs = [op.output(i) for i in range(op.num_outputs)]
    index_dtype = _INDEX if ret_type == "values" else str(outputs[-1].dtype)
    if not same_stage(op, topi.topk(data, count, axis, ret_type, is_ascend, index_dtype)):
        return None
    (indices,) = listed(topi.topk(data, count, axis, "indices", is_ascend, _INDEX))
    values = taken(data, indices, axis)
    as_held = map_stage(indices.shape, lambda *at: indices(*at).astype(index_dtype), name="order")
    return {"values": [values], "indices": [as_held], "both": [values, as_held]}[ret_type]


def arguments_of(op: Any) -> list[Any]:
    """The arguments of the function that a stage calls, as Python values."""
    # The outermost call is that of the packed function; its settings are the last arguments.
    call = nodes(op.body, tvm.ir.Call)[0]
    return [_python_value(argument) for argument in call.args]


def _python_value(argument: Any) -> Any:
    value = getattr(argument, "value", argument)
    # A truth value in TIR is an integer of type bool; the functions take a Python one.
    return bool(value) if isinstance(value, int) and str(argument.ty) == "bool" else value


def taken(data: te.Tensor, positions: te.Tensor, axis: int) -> te.Tensor:
    """The elements at places along an axis."""
    axis %= len(data.shape)

    def element(*at: Any) -> Expr:
        return data(*at[:axis], positions(*at), *at[axis + 1 :])

    return map_stage(positions.shape, element, name=f"{data.op.name}_ordered")
