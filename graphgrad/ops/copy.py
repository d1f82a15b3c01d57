"""A copy as an op: a value in memory of its own.

TVM's ``vm.builtin.copy`` returns its argument, and no op of Relax copies.
"""

from __future__ import annotations

from typing import Any

from tvm import relax, te

from ..errors import ArgumentError
from .define import call_op, define_op

KERNEL_OF_COPY = "graphgrad.copy"
"""Attribute of a kernel that copies: lowering must not take it for a view of its argument."""


def copy_of(value: Any) -> relax.Call:
    """A call that copies a Relax tensor.

    Raises
    ------
    ArgumentError
        The value has a type, and it is not that of a tensor.
    """
    expr = value.asobject() if hasattr(value, "asobject") else value
    ty = getattr(expr, "ty", None)
    if isinstance(ty, relax.TupleType | relax.ShapeType | relax.FuncType):
        raise ArgumentError(f"graphgrad.copy takes a tensor, given a value of type {ty}")
    return call_op(_COPY, [expr])


def _compute(call: relax.Call, data: te.Tensor) -> te.Tensor:
    """The elements of the argument, in new memory."""
    return te.compute(data.shape, lambda *indices: data(*indices), name="copy")  # noqa: PLW0108


# Fused with its readers there would be no copy that outlives what it is a copy of.
_COPY = define_op(
    "copy",
    ["data"],
    lambda call: call.args[0].ty,
    _compute,
    opaque=True,
    attributes={KERNEL_OF_COPY: True},
)
