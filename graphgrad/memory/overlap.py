"""A check at the start of a call: no argument that is overwritten shares memory with another.

The alias analysis takes the arguments of a call to share no memory, which callers may not know. So
where a function overwrites parameters, a kernel on the host compares the addresses of its arguments
before anything is computed. Arguments that share memory are refused, or, on request, copied.
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
from ..ir.kernel_calls import KERNEL_OF_COPY, RUNS_ON_HOST
from ..ir.kernel_structure import static
from ..ir.loops import loops, sequence, variable
from ..ir.passes import Phase, compiler_pass
from ..ir.rewrite import begin_with, replace_body
from ..ir.tensor import has_shape
from .addresses import StackValues
from .donation import DONATED, DONATED_DONE, KNOWN_TO_CALLER, check_requests, may_have_donations
from .kernel_arguments import bound, name_of, tensors_of

Overlap = Literal["refuse", "copy"]
"""The policy for a call in which an overwritten argument shares memory with another one."""

CHECKED_BY_CALLER = "graphgrad.overlap_checked"
"""Attribute of a Relax function whose caller compares the addresses."""

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
        "check_arguments_once": "both put calls at a function's start, and that of the later pass "
        "comes first: what is no tensor of the type has no address to compare"
    },
)
def check_overlaps(mod: tvm.IRModule) -> tvm.IRModule:
    """Check at the start of functions that overwritten arguments share memory with no other.

    Of a parameter that is a tuple, all tensors in it are compared.
    """
    overwriting = _overwriting(mod, DONATED_DONE)
    if not overwriting:
        return mod
    # One builder: each that takes a module looks at all of its functions.
    builder = relax.BlockBuilder(mod)
    for name, function in overwriting:
        _add_check(builder, name, function)
    return builder.get()


@compiler_pass(Phase.FUSED, because="the kernels that copy are to be scheduled")
def copy_overlaps(mod: tvm.IRModule) -> tvm.IRModule:
    """Copy, before a function overwrites them, the arguments that share memory with others.

    A function that may overwrite parameters is renamed. A new function of the old name calls it
    with each such argument, or with a copy of it. Tensors are compared as in `check_overlaps`.

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


def _overwriting(mod: tvm.IRModule, attribute: str) -> list[tuple[Any, relax.Function]]:
    """The functions that have donations and whose callers compare no addresses.

    Parameters
    ----------
    mod : IRModule
    attribute : str
        That with the pairs (parameter, output): those asked for, or those granted.
    """
    attributes = {
        name: getattr(function, "attrs", None) or {} for name, function in mod.functions.items()
    }
    return [
        (variable, mod[variable])
        for variable, attrs in attributes.items()
        if attrs.get(attribute) and CHECKED_BY_CALLER not in attrs
    ]


@dataclass
class _Argument:
    """A tensor among the arguments: its name, its value, and its buffer in the comparing kernel."""

    name: str
    value: Any
    buffer: Any


def _add_check(builder: relax.BlockBuilder, name: Any, function: relax.Function) -> None:
    """Let a function of the builder's module first call a kernel that refuses shared memory."""
    bindings: list[Any] = []
    donated, others = _split_by_use(function, DONATED_DONE, bindings)
    if len(donated) + len(others) < 2:
        return
    names = _SEPARATOR.join(argument.name for argument in (*donated, *others))

    def refused(overwritten: Any, other: Any) -> Any:
        call = tirx.call_packed(_REFUSE, name.name_hint, names, overwritten, other)
        return tirx.Evaluate(call)

    kernel = _kernel([*donated, *others], len(donated), refused)
    variable = builder.add_func(kernel, f"{name.name_hint}_overlap_check")
    call = relax.Call(variable, [argument.value for argument in (*donated, *others)])
    bindings.append(relax.VarBinding(relax.Var("_", relax.TupleType([])), call))
    builder.update_func(name, begin_with(function, bindings))


def _add_copying_caller(mod: tvm.IRModule, name: Any, function: relax.Function) -> tvm.IRModule:
    """The module with the function renamed, and a caller of its name that copies."""
    bindings: list[Any] = []
    caller = relax.utils.copy_with_new_vars(function)
    donated, others = _split_by_use(caller, DONATED, bindings)
    if len(donated) + len(others) < 2:
        return mod
    builder = relax.BlockBuilder(mod)
    passed = dict(zip(caller.params, caller.params, strict=True))
    for index, argument in enumerate(donated):
        unshared = relax.Var(argument.name, argument.value.ty)
        # Compared with later arguments only: an earlier one that shared memory with this is a copy
        # by now.
        bindings += _copy_if_shared(builder, [*donated[index:], *others], unshared)
        passed[argument.value] = unshared
    overwriting = function.without_attr("global_symbol")
    overwriting = overwriting.with_attr({CHECKED_BY_CALLER: True, KNOWN_TO_CALLER: True})
    variable = builder.add_func(overwriting, f"{name.name_hint}_in_place")
    result = relax.Var("result", caller.ret_ty)
    bindings.append(relax.VarBinding(result, relax.Call(variable, list(passed.values()))))
    body = relax.SeqExpr([relax.BindingBlock(bindings)], result)
    builder.update_func(name, replace_body(caller.without_attr(DONATED), body))
    return builder.get()


def _copy_if_shared(builder: Any, compared: Sequence[_Argument], result: Any) -> list[Any]:
    """Bindings of a variable to the first of some tensors, or to a copy of it.

    It is a copy if any of the other tensors shares memory with the first.
    """
    value = compared[0].value
    return_true, return_false = (
        tirx.Return(tirx.const(answer, "bool")) for answer in (True, False)
    )
    kernel = _kernel(compared, 1, lambda *_: return_true, return_false)
    call = relax.Call(
        builder.add_func(kernel, "is_shared"), [argument.value for argument in compared]
    )
    is_shared = relax.Var("is_shared", return_false.value.ty)
    copying = builder.call_te(
        topi.identity, value, primfunc_name_hint=_COPY, primfunc_attrs={KERNEL_OF_COPY: True}
    )
    copy = relax.Var("copy", value.ty)
    copied = relax.SeqExpr([relax.BindingBlock([relax.VarBinding(copy, copying)])], copy)
    choice = relax.If(is_shared, copied, relax.SeqExpr([], value))
    return [relax.VarBinding(is_shared, call), relax.VarBinding(result, choice)]


def _split_by_use(
    function: relax.Function, pairs: str, bindings: list[Any]
) -> tuple[list[_Argument], list[_Argument]]:
    """The tensors that a function overwrites, and its other ones.

    Parameters
    ----------
    function : relax.Function
    pairs : str
        As of `_overwriting`.
    bindings : list
        Receives the bindings of members of tuples.
    """
    overwritten = {int(parameter) for parameter, _ in function.attrs[pairs]}
    donated: list[_Argument] = []
    others: list[_Argument] = []
    for index, param in enumerate(function.params):
        tensors = [_argument(tensor, bindings) for _, tensor in tensors_of(param)]
        # Members of tuples are never overwritten: nothing names them.
        is_overwritten = index in overwritten and isinstance(param.ty, relax.TensorType)
        (donated if is_overwritten else others).extend(tensors)
    return donated, others


def _argument(tensor: Any, bindings: list[Any]) -> _Argument:
    """A tensor of a parameter; one in a tuple is bound to a variable by further `bindings`."""
    ty = tensor.ty
    is_known = has_shape(ty)
    # A kernel learns symbols from extents that are symbols alone, and not from `2 * n`.
    extents = [
        extent if static(extent) is not None else tirx.Var("extent", "int64")
        for extent in (ty.shape if is_known else [None] * ty.ndim)
    ]
    name = name_of(tensor)
    buffer = tirx.decl_buffer(extents, str(ty.dtype), name)
    return _Argument(name, bound(tensor, bindings), buffer)


def _kernel(
    arguments: Sequence[_Argument],
    overwritten: int,
    on_overlap: Callable[[Any, Any], Any],
    at_end: tirx.Return | None = None,
) -> tirx.PrimFunc:
    """The kernel that compares some tensors with all others.

    Parameters
    ----------
    arguments : sequence of _Argument
        Those to be compared with all others come first.
    overwritten : int
        How many these are.
    on_overlap : callable
        From the positions of two tensors to the statement that is run if they share memory.
    at_end : Return, optional
        The last statement of a kernel that returns a value.
    """
    count = len(arguments)
    # Not in buffers: those of a kernel for another device's tensors are memory of that device.
    starts, ends = StackValues(count, "starts"), StackValues(count, "ends")
    statements = [starts.begin, ends.begin]
    for index, argument in enumerate(arguments):
        statements += [
            starts.store(index, argument.buffer.data),
            ends.store(index, starts.load(index) + _bytes(argument.buffer)),
        ]
    statements.append(_comparison(starts, ends, overwritten, count, on_overlap))
    if at_end is not None:
        statements.append(at_end)
    kernel = tirx.PrimFunc(
        [argument.buffer for argument in arguments],
        sequence(*statements),
        None if at_end is None else at_end.value.ty,
        attrs=tvm.ir.make_node("ir.DictAttrs", **{"tirx.is_scheduled": True}),
    )
    target = tvm.target.Target.current(allow_none=True)
    if target is None or str(target.kind.name) == "llvm":
        return kernel
    # Among kernels for another device, this one runs on the host, but takes tensors on that device.
    device = target.with_host(tvm.target.Target("llvm"))
    return kernel.with_attrs({"target": device, RUNS_ON_HOST: True})


def _comparison(
    starts: StackValues,
    ends: StackValues,
    overwritten: int,
    count: int,
    on_overlap: Callable[[Any, Any], Any],
) -> Any:
    """The loops that compare each of the first `overwritten` tensors with all behind it."""
    i, j = variable("overwritten"), variable("other")
    shared = tirx.all(
        j > i,
        starts.load(i) < ends.load(j),
        starts.load(j) < ends.load(i),
        # An empty tensor may lie anywhere.
        starts.load(i) < ends.load(i),
        starts.load(j) < ends.load(j),
    )
    body = tirx.IfThenElse(shared, on_overlap(i, j), None)
    return loops([(i, overwritten), (j, count)], body)


def _bytes(buffer: Any) -> Any:
    """The size of a buffer, as an expression of its extents."""
    itemsize = -(-tvm_ffi.dtype(str(buffer.ty.dtype)).bits // 8)
    return math.prod(list(buffer.ty.shape), start=tirx.const(itemsize, "int64"))
