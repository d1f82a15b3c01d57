"""Registering Relax ops of our own from Python.

An op is worth defining where high-level identity must survive lowering: a convolution's weight
gradient stays recognizable to layout and winograd, and has gradient rules of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tvm
from tvm import relax

from ..ir.kernel_calls import OPAQUE_PATTERN
from ..tvm_fixes.hooks import register_op
from .legalize import Legalization

PREFIX = "graphgrad."

OPAQUE = {"op_pattern": OPAQUE_PATTERN}
"""Attributes of a PrimFunc that is not to be fused with its neighbors.

TVM takes a scan for an elementwise map by the look of its loops, and fails to fuse it.
"""


def define_op(
    name: str,
    arguments: Sequence[str],
    infer_type: Callable[[relax.Call], Any],
    compute: Callable[..., Any],
    *,
    opaque: bool = False,
    attributes: Mapping[str, Any] | None = None,
) -> Any:
    """Register a pure Relax op with its type inference and its tensor expression.

    Parameters
    ----------
    name : str
        Name without the ``graphgrad.`` prefix.
    arguments : sequence of str
        Names of the arguments, for printed descriptions.
    infer_type : callable
        Maps a normalized call to its result type.
    compute : callable
        ``compute(call, *tensors)`` builds the tensor expression from the call's tensor arguments.
    opaque : bool
        Whether its kernel is written by hand, and so not to be fused with its neighbors.
    attributes : mapping, optional
        Further attributes of its kernel.

    Returns
    -------
    tvm.ir.Op
    """

    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> Any:
        # Shapes among the arguments are no tensors: `compute` reads them from the call.
        tensors = [a for a in call.args if isinstance(a.ty, relax.TensorType)]

        def expression(*placeholders: Any) -> Any:
            return compute(call, *placeholders)

        kernel_attributes = {**(OPAQUE if opaque else {}), **(attributes or {})} or None
        return builder.call_te(
            expression, *tensors, primfunc_name_hint=name, primfunc_attrs=kernel_attributes
        )

    return define_lowered(name, arguments, infer_type, legalize, compute.__doc__ or name)


def define_lowered(
    name: str,
    arguments: Sequence[str],
    infer_type: Callable[[relax.Call], Any],
    legalize: Legalization,
    description: str,
) -> Any:
    """Register a pure Relax op, as `define_op`, with its lowering in the place of an expression."""
    full_name = PREFIX + name
    register_op(full_name, description)
    op = tvm.ir.Op.get(full_name)
    op.set_num_inputs(len(arguments))
    for argument in arguments:
        op.add_argument(argument, "Expr", argument)
    tvm.ir.register_op_attr(full_name, "FInferType", lambda call, _: infer_type(call))
    tvm.ir.register_op_attr(full_name, "FLegalize", legalize)
    tvm.ir.register_op_attr(full_name, "FPurity", True)
    return op


def like_first(call: relax.Call) -> Any:
    """The type of a call's first argument."""
    return call.args[0].ty


def in_given_shape(call: relax.Call) -> relax.TensorType:
    """The type of a call's first argument in the shape that is its last."""
    return relax.TensorType(call.args[-1], call.args[0].ty.dtype)


def call_op(op: Any, arguments: Sequence[Any], **attributes: Any) -> relax.Call:
    """A call of an op of ours; attributes are ints, strings, booleans and lists of them."""
    return relax.Call(op, list(arguments), tvm.ir.make_node("ir.DictAttrs", **attributes), [])
