"""A check that runs first: no argument that is overwritten shares memory with another.

Lowering may only assume what callers keep to. Where a function overwrites parameters, a kernel of
the host compares the addresses of its arguments, before anything is computed. What then shares
memory is refused, or, on request, copied.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import tvm
import tvm_ffi
from tvm import relax, tirx, topi

from ..errors import AliasError, ArgumentError
from ..ir.kernel_structure import static
from ..ir.loops import loops, sequence, variable
from ..ir.passes import Phase, compiler_pass
from ..ir.rewrite import replace_body
from ..ops.copy import KERNEL_OF_COPY
from .addresses import Addresses
from .donation import DONATED, DONATED_DONE, KNOWN_TO_CALLER, check_requests, may_have_donations

Overlap = Literal["refuse", "copy"]
"""What becomes of a call one of whose arguments is overwritten and shares memory with another."""

CHECKED_BY_OWNER = "graphgrad.overlap_checked"
"""Attribute of a Relax function whose caller compares the addresses himself."""

_REFUSE = "graphgrad.refuse_overlap"

_SEPARATOR = "\n"

_COPY = "copy_of_argument"


@tvm_ffi.register_global_func(_REFUSE)
def refuse_overlap(function: str, names: str, overwritten: int, other: int) -> None:
    """Raise the error of two arguments that share memory; compiled functions call this."""
    arguments = names.split(_SEPARATOR)
    raise AliasError(
        f"{arguments[overwritten]!r} of {function!r} is overwritten, and shares memory with "
        f"{arguments[other]!r}; pass a copy (graphgrad.copy)"
    )


def check_overlap_choice(overlap: Overlap) -> Overlap:
    """The policy for arguments that share memory, checked.

    Raises
    ------
    ArgumentError
        It is neither of the two words.
    """
    if overlap not in get_args(Overlap):
        raise ArgumentError(f"overlap is {overlap!r}; it is 'refuse' or 'copy'")
    return overlap


@compiler_pass(
    Phase.ALLOCATED,
    before={
        "check_arguments_once": "what comes later runs earlier: tensors are looked at before their "
        "addresses are"
    },
)
def check_overlaps(mod: tvm.IRModule) -> tvm.IRModule:
    """Have functions check first that what they overwrite shares no memory.

    Of parameters that are tuples the tensors are checked.
    """
    for name, function in _overwriting(mod, DONATED_DONE):
        mod = _checked(mod, name, function)
    return mod


@compiler_pass(Phase.FUSED, because="the kernels that copy are to be scheduled")
def copy_overlaps(mod: tvm.IRModule) -> tvm.IRModule:
    """Have functions copy first what they would overwrite, where it is shared.

    Each function that may overwrite a parameter gets a
    caller of its name, which hands it the parameter, or a copy. Tensors are compared as in
    `check_overlaps`.

    Raises
    ------
    ArgumentError
        As `graphgrad.memory.donation.donate`.
    """
    for name, function in _overwriting(mod, DONATED):
        check_requests(mod, name)
        if may_have_donations(mod, name):
            mod = _add_copying_caller(mod, name, function)
    return mod


def _overwriting(mod: tvm.IRModule, pairs: str) -> list[tuple[Any, relax.Function]]:
    """The functions with pairs (parameter, output) whose callers compare no addresses."""
    attributes = {v: getattr(f, "attrs", None) or {} for v, f in mod.functions.items()}
    return [
        (variable, mod[variable])
        for variable, own in attributes.items()
        if own.get(pairs) and CHECKED_BY_OWNER not in own
    ]


@dataclass
class _Argument:
    """A tensor among the arguments: what it is called, its value, its buffer in the kernel."""

    name: str
    value: Any
    buffer: Any


def _checked(mod: tvm.IRModule, name: Any, function: relax.Function) -> tvm.IRModule:
    bindings: list[Any] = []
    first, rest = _split_by_use(function, DONATED_DONE, bindings)
    if len(first) + len(rest) < 2:
        return mod
    names = _SEPARATOR.join(argument.name for argument in (*first, *rest))

    def refused(overwritten: Any, other: Any) -> Any:
        call = tirx.call_packed(_REFUSE, name.name_hint, names, overwritten, other)
        return tirx.Evaluate(call)

    builder = relax.BlockBuilder(mod)
    kernel = _kernel([*first, *rest], len(first), refused)
    variable = builder.add_func(kernel, f"{name.name_hint}_overlap_check")
    call = relax.Call(variable, [argument.value for argument in (*first, *rest)])
    bindings.append(relax.VarBinding(relax.Var("_", relax.TupleType([])), call))
    blocks = [relax.BindingBlock(bindings), *function.body.blocks]
    body = relax.SeqExpr(blocks, function.body.body, function.body.span)
    builder.update_func(name, replace_body(function, body))
    return builder.get()


def _add_copying_caller(mod: tvm.IRModule, name: Any, function: relax.Function) -> tvm.IRModule:
    """The module with a caller of this name, which copies, and the function beside it."""
    bindings: list[Any] = []
    caller = relax.utils.copy_with_new_vars(function)
    first, rest = _split_by_use(caller, DONATED, bindings)
    if len(first) + len(rest) < 2:
        return mod
    builder = relax.BlockBuilder(mod)
    given = dict(zip(caller.params, caller.params, strict=True))
    for index, argument in enumerate(first):
        own = relax.Var(argument.name, argument.value.ty)
        bindings += _copy_if_shared(builder, [*first[index:], *rest], own)
        given[argument.value] = own
    overwriting = function.without_attr("global_symbol")
    overwriting = overwriting.with_attr({CHECKED_BY_OWNER: True, KNOWN_TO_CALLER: True})
    variable = builder.add_func(overwriting, f"{name.name_hint}_in_place")
    result = relax.Var("result", caller.ret_ty)
    bindings.append(relax.VarBinding(result, relax.Call(variable, list(given.values()))))
    body = relax.SeqExpr([relax.BindingBlock(bindings)], result)
    builder.update_func(name, replace_body(caller.without_attr(DONATED), body))
    return builder.get()


def _copy_if_shared(builder: Any, compared: Sequence[_Argument], own: Any) -> list[Any]:
    """Bindings of a variable to the first tensor, or to a copy if another shares memory."""
    value = compared[0].value
    yes, no = (tirx.Return(tirx.const(answer, "bool")) for answer in (True, False))
    kernel = _kernel(compared, 1, lambda *_: yes, no)
    call = relax.Call(builder.add_func(kernel, "is_shared"), [a.value for a in compared])
    is_shared = relax.Var("is_shared", no.value.ty)
    copying = builder.call_te(
        topi.identity, value, primfunc_name_hint=_COPY, primfunc_attrs={KERNEL_OF_COPY: True}
    )
    copy = relax.Var("copy", value.ty)
    copied = relax.SeqExpr([relax.BindingBlock([relax.VarBinding(copy, copying)])], copy)
    choice = relax.If(is_shared, copied, relax.SeqExpr([], value))
    return [relax.VarBinding(is_shared, call), relax.VarBinding(own, choice)]


def _split_by_use(
    function: relax.Function, pairs: str, bindings: list[Any]
) -> tuple[list[_Argument], list[_Argument]]:
    """The tensors that a function overwrites, and its other ones."""
    overwritten = {int(parameter) for parameter, _ in function.attrs[pairs]}
    first: list[_Argument] = []
    rest: list[_Argument] = []
    for index, param in enumerate(function.params):
        found = _arguments(param.name, param, bindings)
        # Members of tuples are never overwritten: nothing names them.
        is_first = index in overwritten and isinstance(param.ty, relax.TensorType)
        (first if is_first else rest).extend(found)
    return first, rest


def _arguments(name: str, value: Any, bindings: list[Any]) -> list[_Argument]:
    """The tensors of a parameter; those of a tuple are bound to variables."""
    if isinstance(value.ty, relax.TupleType):
        found = []
        for index, ty in enumerate(value.ty.fields):
            member = relax.Var(f"{name}[{index}]", ty)
            bindings.append(relax.VarBinding(member, relax.TupleGetItem(value, index)))
            found += _arguments(member.name, member, bindings)
        return found
    if not isinstance(value.ty, relax.TensorType):
        return []
    is_known = isinstance(value.ty.shape, relax.ShapeExpr)
    # A kernel learns symbols from extents that are symbols alone, and not from `2 * n`.
    extents = [
        extent if static(extent) is not None else tirx.Var("extent", "int64")
        for extent in (value.ty.shape if is_known else [None] * value.ty.ndim)
    ]
    return [_Argument(name, value, tirx.decl_buffer(extents, str(value.ty.dtype), name))]


def _kernel(
    arguments: Sequence[_Argument],
    overwritten: int,
    found: Callable[[Any, Any], Any],
    at_end: tirx.Return | None = None,
) -> tirx.PrimFunc:
    """The kernel that compares the first arguments with all others.

    What it does where two share memory is the statement that `found` returns for their numbers.
    """
    count = len(arguments)
    addresses = Addresses()
    starts = tirx.decl_buffer((count,), "int64", "starts")
    ends = tirx.decl_buffer((count,), "int64", "ends")
    statements = [
        addresses.begin,
        tirx.AllocBuffer(starts),
        tirx.AllocBuffer(ends),
    ]
    for index, argument in enumerate(arguments):
        size = _bytes(argument.buffer)
        read, address = addresses.of(argument.buffer)
        statements += [
            read,
            tirx.BufferStore(starts, address, [index]),
            tirx.BufferStore(ends, tirx.BufferLoad(starts, [index]) + size, [index]),
        ]
    statements.append(_comparison(starts, ends, overwritten, count, found))
    if at_end is not None:
        statements.append(at_end)
    kernel = tirx.PrimFunc(
        [argument.buffer for argument in arguments],
        sequence(*statements),
        None if at_end is None else at_end.value.ty,
        attrs=tvm.ir.make_node("ir.DictAttrs", **{"tirx.is_scheduled": True}),
    )
    target = tvm.target.Target.current(allow_none=True)
    is_host = target is None or str(target.kind.name) == "llvm"
    return kernel if is_host else kernel.with_attr("target", tvm.target.Target("llvm"))


def _comparison(
    starts: Any, ends: Any, overwritten: int, count: int, found: Callable[[Any, Any], Any]
) -> Any:
    """The loops that compare each of the first tensors with all that come after it."""
    i, j = variable("overwritten"), variable("other")
    shared = tirx.all(
        j > i,
        starts[i] < ends[j],
        starts[j] < ends[i],
        # An empty tensor may lie anywhere.
        starts[i] < ends[i],
        starts[j] < ends[j],
    )
    body = tirx.IfThenElse(shared, found(i, j), None)
    return loops([(i, overwritten), (j, count)], body)


def _bytes(buffer: Any) -> Any:
    itemsize = -(-tvm_ffi.dtype(str(buffer.ty.dtype)).bits // 8)
    return math.prod(list(buffer.ty.shape), start=tirx.const(itemsize, "int64"))
