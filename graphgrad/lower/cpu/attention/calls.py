"""Calls of attention as calls of kernels that compute it in blocks."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from ....ir.calls import calls_op, result_types
from ....ir.passes import Phase, compiler_pass
from ....ir.rewrite import bindings_of, map_functions, rebuilt, replace_body
from ....ir.tensor import type_shape
from ....ops.fused_attention import ATTENTION, BOTTOM_RIGHT, GRADIENT, NOT_CAUSAL
from ..tuning import Processor
from .backward import backward_kernel
from .blocks import Attention
from .forward import forward_kernel

_DTYPE = "float32"
_HALF = ("float16", "bfloat16")
_KERNELS = {ATTENTION: forward_kernel, GRADIENT: backward_kernel}


@compiler_pass(
    Phase.GRAPH,
    targets=("llvm",),
    after={"specialize_kernels": "the kernels of attention are static already"},
    before={"legalize_ops": "it writes attention out in products, with all scores in memory"},
)
def compute_attention_in_blocks(mod: tvm.IRModule, processor: Processor) -> tvm.IRModule:
    """Call kernels that compute attention in blocks, where these serve."""
    functions = [f for f in mod.functions.values() if isinstance(f, relax.Function)]
    if not any(
        _is_served(each.value, processor) for f in functions for each in bindings_of(f.body)
    ):
        return mod
    builder = relax.BlockBuilder(mod)

    def changed(_: Any, func: relax.Function) -> relax.Function:
        def binding_changed(binding: Any) -> list[Any]:
            if not _is_served(binding.value, processor):
                return [binding]
            return _kernel_call(builder, binding, processor)

        return replace_body(func, rebuilt(func.body, binding_changed))

    return map_functions(mod, changed, builder)


def problem_of(
    types: list[Any], scale: float, causal: str, processor: Processor
) -> Attention | None:
    """The sizes of an attention of operands of given types; None where no kernel serves it.

    Parameters
    ----------
    types : list of types
        Of query, key and value, and of the bias if there is one.
    scale, causal
        Attributes of the op.
    processor : Processor
    """
    shapes = [type_shape(ty) for ty in types]
    extents = [extent for shape in shapes for extent in shape]
    if not all(isinstance(extent, int) and extent > 0 for extent in extents):
        return None
    if any(str(ty.dtype) not in (_DTYPE, *_HALF) for ty in types):
        return None
    query, key, value, *bias = shapes
    lanes = processor.lanes(_DTYPE)
    if query[3] % lanes or value[3] % lanes:
        return None
    offsets = {NOT_CAUSAL: None, BOTTOM_RIGHT: key[2] - query[2]}
    return Attention(
        *(query[0], query[1], key[1], query[2], key[2], query[3], value[3]),
        scale,
        offsets.get(causal, 0),
        tuple(bias[0]) if bias else None,
    )


def _is_served(value: Any, processor: Processor) -> bool:
    return _problem(value, processor) is not None


def _problem(value: Any, processor: Processor) -> Attention | None:
    """The sizes of the attention of a call of one of our ops; None of any other value."""
    if calls_op(value, ATTENTION):
        operands = value.args
    elif calls_op(value, GRADIENT):
        operands = [*value.args[:3], *value.args[6:]]
    else:
        return None
    scale, causal = float(value.attrs["scale"]), str(value.attrs["causal"])
    return problem_of([operand.ty for operand in operands], scale, causal, processor)


def _kernel_call(builder: relax.BlockBuilder, binding: Any, processor: Processor) -> list[Any]:
    """The call of a kernel, with what it reads and returns in float32, in a call's place."""
    call, problem = binding.value, _problem(binding.value, processor)
    assert problem is not None
    name = call.op.name.replace(".", "_")
    kernel = _KERNELS[call.op.name](problem, processor)
    variable = builder.add_func(kernel, name)
    kind = type(binding.var)
    bindings: list[Any] = []

    def bound(value: Any, hint: str) -> Any:
        value = builder.normalize(value)
        bindings.append(relax.VarBinding(kind(hint, value.ty), value, call.span))
        return bindings[-1].var

    arguments = [
        argument
        if str(argument.ty.dtype) == _DTYPE
        else bound(relax.op.astype(argument, _DTYPE), "wide")
        for argument in call.args
    ]
    types = result_types(call.ty)
    wide = [relax.TensorType(ty.shape, _DTYPE) for ty in types]
    value = relax.call_tir(variable, arguments, wide)
    value = relax.Call(value.op, value.args, value.attrs, value.ty_args, call.span)
    if all(str(ty.dtype) == _DTYPE for ty in types):
        return [*bindings, relax.VarBinding(binding.var, builder.normalize(value), binding.span)]
    results = bound(value, "attention")
    fields = [bound(relax.TupleGetItem(results, index), "wide") for index in range(len(types))]
    narrow = [
        field if str(ty.dtype) == _DTYPE else bound(relax.op.astype(field, ty.dtype), "narrow")
        for field, ty in zip(fields, types, strict=True)
    ]
    result = builder.normalize(relax.Tuple(narrow))
    return [*bindings, relax.VarBinding(binding.var, result, binding.span)]
