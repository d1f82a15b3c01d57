"""The form in which the rest of graphgrad wants a Relax function to be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tvm import relax
from tvm.ir import Span

from ..errors import ModelError


def rebuilt(
    function: relax.Function,
    *,
    params: Sequence[relax.Var] | None = None,
    blocks: Sequence[relax.BindingBlock] | None = None,
    body: relax.Expr | None = None,
) -> relax.Function:
    """Return a function with some parts replaced; a new body has a type."""
    return relax.Function(
        function.params if params is None else params,
        relax.SeqExpr(
            function.body.blocks if blocks is None else blocks,
            function.body.body if body is None else body,
        ),
        function.ret_ty if body is None else body.ty,
        is_pure=function.is_pure,
        attrs=function.attrs,
    )


def reorder_parameters(function: relax.Function, params: Sequence[relax.Var]) -> relax.Function:
    """Return the function with its parameters in another order."""
    if all(new.same_as(old) for new, old in zip(params, function.params, strict=True)):
        return function
    return rebuilt(function, params=params)


def attach_spans(
    function: relax.Function, spans: Mapping[relax.Var, Span | None]
) -> relax.Function:
    """Return the function with these spans on the values of its bindings."""
    blocks = [
        type(block)([_attach_span(binding, spans.get(binding.var)) for binding in block.bindings])
        for block in function.body.blocks
    ]
    return rebuilt(function, blocks=blocks)


def _attach_span(binding: relax.Binding, span: Span | None) -> relax.Binding:
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
    """Return the function with its several outputs as a literal tuple of variables.

    Raises
    ------
    ModelError
        If it returns anything but a tensor or a tuple of tensors.
    """
    result = function.body.body
    types = list(result.ty.fields) if isinstance(result.ty, relax.TupleType) else [result.ty]
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
            blocks[position] = type(block)([*block.bindings, *items])
            return rebuilt(function, blocks=blocks, body=relax.Tuple(fields))
    blocks.append(relax.BindingBlock(items))
    return rebuilt(function, blocks=blocks, body=relax.Tuple(fields))
