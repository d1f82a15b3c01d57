"""Rebuilding of a Relax function: parameters in another order, spans, outputs as a literal tuple.

Relax functions are immutable; each function here returns a new one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tvm import relax
from tvm.ir import Span

from ..errors import ModelError
from ..ir import rewrite
from ..ir.calls import result_types
from ..ir.rewrite import replace_bindings, replace_body


def rebuilt(
    function: relax.Function,
    *,
    params: Sequence[relax.Var] | None = None,
    blocks: Sequence[relax.BindingBlock] | None = None,
    body: relax.Expr | None = None,
) -> relax.Function:
    """A function with some parts replaced; a part that is None stays.

    `body` is the expression that is returned. A new one must have a type already, which becomes the
    function's return type.
    """
    sequence = relax.SeqExpr(
        function.body.blocks if blocks is None else blocks,
        function.body.body if body is None else body,
    )
    ret_ty = None if body is None else body.ty
    return replace_body(function, sequence, params=params, ret_ty=ret_ty)


def reorder_parameters(function: relax.Function, params: Sequence[relax.Var]) -> relax.Function:
    """The function with its parameters in another order."""
    if all(new.same_as(old) for new, old in zip(params, function.params, strict=True)):
        return function
    return rebuilt(function, params=params)


def attach_spans(
    function: relax.Function, spans: Mapping[relax.Var, Span | None]
) -> relax.Function:
    """The function with these spans on the values of its bindings, also in branches."""

    def attach(binding: relax.Binding) -> list[relax.Binding]:
        return [_attach_span(binding, spans.get(binding.var))]

    return replace_body(function, rewrite.rebuilt(function.body, binding=attach))


def _attach_span(binding: relax.Binding, span: Span | None) -> relax.Binding:
    """The binding with a span on its value; the same one if the value can carry none."""
    value = getattr(binding, "value", None)
    if span is None:
        return binding
    if isinstance(value, relax.Call):
        call = relax.Call(value.op, value.args, value.attrs, value.ty_args, span, value.ty)
        return relax.VarBinding(binding.var, call)
    if isinstance(value, relax.TupleGetItem):
        item = relax.TupleGetItem(value.tuple_value, value.index, span)
        return relax.VarBinding(binding.var, item)
    return binding


def make_outputs_literal(function: relax.Function) -> relax.Function:
    """The function with its several outputs as a literal tuple of variables.

    Raises
    ------
    ModelError
        If it returns anything but a tensor or a tuple of tensors.
    """
    result = function.body.body
    types = result_types(result.ty)
    if not types or not all(isinstance(ty, relax.TensorType) for ty in types):
        raise ModelError(f"main must return a tensor or a tuple of tensors, it returns {result.ty}")
    if not isinstance(result.ty, relax.TupleType) or isinstance(result, relax.Tuple):
        return function
    return _unpack_result(function, result)


def _unpack_result(function: relax.Function, result: relax.Expr) -> relax.Function:
    """Take a tuple apart in the block that binds it, so that no new block is needed."""
    fields = [
        relax.Var(f"{getattr(result, 'name', 'output')}_{index}", ty)
        for index, ty in enumerate(result.ty.fields)
    ]
    items = [
        relax.VarBinding(field, relax.TupleGetItem(result, index))
        for index, field in enumerate(fields)
    ]
    blocks = list(function.body.blocks)
    for position, block in enumerate(blocks):
        if any(binding.var.same_as(result) for binding in block.bindings):
            blocks[position] = replace_bindings(block, [*block.bindings, *items])
            return rebuilt(function, blocks=blocks, body=relax.Tuple(fields))
    # No block binds the tuple: the function returns an expression, not a variable.
    blocks.append(relax.BindingBlock(items))
    return rebuilt(function, blocks=blocks, body=relax.Tuple(fields))
