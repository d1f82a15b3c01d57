"""A check that runs first: no argument that is overwritten shares memory with another.

Lowering may only assume what callers keep to. Where a function overwrites parameters, a kernel of
the host compares the addresses of its arguments, before anything is computed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx

from ..errors import AliasError
from .inplace import DONATED_DONE

CHECKED_BY_OWNER = "graphgrad.overlap_checked"
"""Attribute of a Relax function whose caller compares the addresses himself."""

_REFUSE = "graphgrad.refuse_overlap"

_SEPARATOR = "\n"

_UNION = 15
"""The field of an argument on TVM's stack that holds its bits (``kTVMFFIAnyUnionValue``)."""


@tvm_ffi.register_global_func(_REFUSE)
def refuse_overlap(function: str, names: str, overwritten: int, other: int) -> None:
    """Raise the error of two arguments that share memory; compiled functions call this."""
    arguments = names.split(_SEPARATOR)
    raise AliasError(
        f"{arguments[overwritten]!r} of {function!r} is overwritten, and shares memory with "
        f"{arguments[other]!r}; pass a copy (graphgrad.copy)"
    )


def check_overlaps(mod: tvm.IRModule) -> tvm.IRModule:
    """Return a module whose functions check first what they overwrite.

    Runs on calls of kernels that take their outputs (after ``CallTIRRewrite``). Of parameters that
    are tuples the tensors are checked; tensors of unknown shape are not.
    """
    for name, function in list(mod.functions.items()):
        attributes = getattr(function, "attrs", None) or {}
        if attributes.get(DONATED_DONE) and CHECKED_BY_OWNER not in attributes:
            mod = _checked(mod, name, function)
    return mod


@dataclass
class _Argument:
    """A tensor among the arguments: what it is called, its value, its buffer in the kernel."""

    name: str
    value: Any
    buffer: Any


def _checked(mod: tvm.IRModule, name: Any, function: relax.Function) -> tvm.IRModule:
    bindings: list[Any] = []
    overwritten = {int(parameter) for parameter, _ in function.attrs[DONATED_DONE]}
    first: list[_Argument] = []
    rest: list[_Argument] = []
    for index, param in enumerate(function.params):
        found = _arguments(param.name, param, bindings)
        (first if index in overwritten else rest).extend(found)
    if len(first) + len(rest) < 2:
        return mod
    builder = relax.BlockBuilder(mod)
    kernel = _kernel(name.name_hint, [*first, *rest], len(first))
    variable = builder.add_func(kernel, f"{name.name_hint}_overlap_check")
    call = relax.Call(variable, [argument.value for argument in (*first, *rest)])
    bindings.append(relax.VarBinding(relax.Var("_", relax.TupleType([])), call))
    blocks = [relax.BindingBlock(bindings), *function.body.blocks]
    body = relax.SeqExpr(blocks, function.body.body, function.body.span)
    builder.update_func(
        name,
        relax.Function(
            function.params, body, function.ret_ty, function.is_pure, function.attrs, function.span
        ),
    )
    return builder.get()


def _arguments(name: str, value: Any, bindings: list[Any]) -> list[_Argument]:
    """Return the tensors of a parameter; those of a tuple are bound to variables."""
    if isinstance(value.ty, relax.TupleType):
        found = []
        for index, ty in enumerate(value.ty.fields):
            member = relax.Var(f"{name}[{index}]", ty)
            bindings.append(relax.VarBinding(member, relax.TupleGetItem(value, index)))
            found += _arguments(member.name, member, bindings)
        return found
    if not isinstance(value.ty, relax.TensorType) or not isinstance(
        value.ty.shape, relax.ShapeExpr
    ):
        return []
    return [
        _Argument(name, value, tirx.decl_buffer(list(value.ty.shape), str(value.ty.dtype), name))
    ]


def _kernel(function: str, arguments: Sequence[_Argument], overwritten: int) -> tirx.PrimFunc:
    """Return the kernel that compares the first arguments with all others."""
    count = len(arguments)
    memory = tirx.tvm_stack_alloca("tvm_ffi_any", 1)
    stack = tvm.ir.Var("stack", memory.ty)
    starts = tirx.decl_buffer((count,), "int64", "starts")
    ends = tirx.decl_buffer((count,), "int64", "ends")
    statements = [
        tirx.Bind(stack, memory),
        tirx.AllocBuffer(starts),
        tirx.AllocBuffer(ends),
    ]
    for index, argument in enumerate(arguments):
        size = _bytes(argument.buffer)
        # An address read as an integer: TVM lets nobody reinterpret a pointer before it is lowered.
        statements += [
            tirx.Evaluate(tirx.tvm_struct_set(stack, 0, _UNION, argument.buffer.data)),
            tirx.BufferStore(starts, tirx.tvm_struct_get(stack, 0, _UNION, "int64"), [index]),
            tirx.BufferStore(ends, tirx.BufferLoad(starts, [index]) + size, [index]),
        ]
    names = _SEPARATOR.join(argument.name for argument in arguments)
    statements.append(_comparison(starts, ends, overwritten, count, (function, names)))
    kernel = tirx.PrimFunc(
        [argument.buffer for argument in arguments],
        tirx.SeqStmt(statements),
        attrs=tvm.ir.make_node("ir.DictAttrs", **{"tirx.is_scheduled": True}),
    )
    target = tvm.target.Target.current(allow_none=True)
    is_host = target is None or str(target.kind.name) == "llvm"
    return kernel if is_host else kernel.with_attr("target", tvm.target.Target("llvm"))


def _comparison(starts: Any, ends: Any, overwritten: int, count: int, names: Any) -> Any:
    """Return the loops that compare each of the first tensors with all that come after it."""
    i, j = (tvm.ir.Var(name, "int64") for name in ("overwritten", "other"))
    shared = tirx.all(
        j > i,
        starts[i] < ends[j],
        starts[j] < ends[i],
        # An empty tensor may lie anywhere.
        starts[i] < ends[i],
        starts[j] < ends[j],
    )
    body = tirx.IfThenElse(shared, tirx.Evaluate(tirx.call_packed(_REFUSE, *names, i, j)), None)
    for variable, extent in ((j, count), (i, overwritten)):
        start, length = tirx.const(0, "int64"), tirx.const(extent, "int64")
        body = tirx.For(variable, start, length, tirx.ForKind.SERIAL, body)
    return body


def _bytes(buffer: Any) -> Any:
    itemsize = -(-tvm_ffi.dtype(str(buffer.ty.dtype)).bits // 8)
    return math.prod(list(buffer.ty.shape), start=tirx.const(itemsize, "int64"))
