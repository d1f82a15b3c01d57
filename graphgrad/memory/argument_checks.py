"""Arguments checked once per call of a function, and not again by each of its kernels.

TVM has each kernel compare type, shape, strides, offset and device of each argument with what it
was compiled for. In a training step these comparisons are more machine code than all the kernels.
But tensors that the virtual machine allocates always fit, and an argument of the function needs to
be looked at only once. So one kernel, at the start of a function, checks all tensors that come from
outside; kernels that get only those and allocated ones check nothing. Alignment is checked as well,
which TVM's own checks leave out: LLVM relies on it, and code for a misaligned tensor crashes.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import relax, tirx

from ..ir.loops import sequence
from ..ir.passes import Phase, compiler_pass
from ..ir.rewrite import map_functions, map_kernels, replace_body
from ..ir.visits import nodes_in, visit_nodes

CHECKED = "graphgrad.arguments_checked"
"""Attribute of a kernel whose callers guarantee that its arguments are what it was compiled for."""

CHECK = "graphgrad.argument_check"
"""Attribute of a kernel that looks at arguments, and computes nothing."""

_TOGETHER = 64
"""The most tensors that one kernel checks: LLVM needs more than twice the time for a function of
twice the size."""

_SHAPE, _STRIDES, _BYTE_OFFSET, _DEVICE_TYPE, _ELEMENT = 2, 3, 8, 10, 17
"""Numbers of fields for ``tvm_struct_get`` (``TVMStructFieldKind``): four of a tensor, and
`_ELEMENT` for an element of an array."""

_DEVICE_TYPE_CPU = 1
"""The type of the host among devices (``kDLCPU``)."""

_HANDLE = tirx.tvm_stack_alloca("tvm_ffi_any", 1).ty
"""The type of pointers to anything."""

_ALLOCATION = tvm.ir.Op.get("relax.builtin.alloc_tensor")
_RESHAPE = tvm.ir.Op.get("relax.reshape")

_OWN_MEMORY = "own"
"""The origin of a tensor that the virtual machine has allocated."""


@dataclass
class _Calls:
    """The calls of kernels in a function, and the origins of their arguments.

    Attributes
    ----------
    made : dict
        From a kernel's name to the arguments of each call that is in no branch.
    in_branches : dict
        The same of calls in branches.
    origins : dict
        From a variable to where its tensor comes from: `_OWN_MEMORY`; the parameter, the member of
        one, or the constant that it is, or is a view of; None if that is not known. Of a tuple, a
        list of these.
    """

    made: dict[str, list[list[Any]]] = field(default_factory=lambda: defaultdict(list))
    in_branches: dict[str, list[list[Any]]] = field(default_factory=lambda: defaultdict(list))
    origins: dict[Any, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Check:
    """One check at the start of a function.

    Attributes
    ----------
    tensor : relax expression
        A parameter, a member of one, or a constant.
    is_dense : bool
        Whether it must be on the host and without gaps, because a kernel that checks nothing itself
        gets it.
    alignment : int
        Its address must be a multiple of this many bytes.
    """

    tensor: Any
    is_dense: bool
    alignment: int

    @property
    def name(self) -> str:
        """The tensor's name in messages: the parameter's, with the indices into its tuples."""
        suffix, value = "", self.tensor
        while isinstance(value, relax.TupleGetItem):
            suffix, value = f"[{value.index}]{suffix}", value.tuple_value
        return f"{getattr(value, 'name', 'constant')}{suffix}"


@compiler_pass(
    Phase.ALLOCATED,
    targets=("llvm",),
    before={
        "AttachGlobalSymbol": "functions without a symbol are those that nobody calls from outside"
    },
)
def check_arguments_once(mod: tvm.IRModule) -> tvm.IRModule:
    """Check tensors at the start of functions, and mark kernels that need no checks as `CHECKED`.

    Kernels with symbolic shapes keep their checks, because these bind the symbols. Of tensors from
    outside that only such kernels read, the alignment alone is checked.
    """
    functions = {v: f for v, f in mod.functions.items() if isinstance(f, relax.Function)}
    calls = {variable: _calls(function) for variable, function in functions.items()}
    unchecked = _find_kernels_without_checks(mod, list(calls.values()))

    def marked(variable: Any, kernel: tirx.PrimFunc) -> tirx.PrimFunc:
        return kernel.with_attr(CHECKED, True) if variable.name_hint in unchecked else kernel

    def checked(variable: Any, function: relax.Function) -> relax.Function:
        alignments = _alignments(mod, calls[variable])
        dense = _outside(calls[variable], unchecked)
        checks = [_Check(tensor, tensor in dense, alignments[tensor]) for tensor in alignments]
        return _add_checks(builder, variable, function, checks) if checks else function

    changed = map_kernels(mod, marked)
    # One builder: each that takes a module looks at all of its functions.
    builder = relax.BlockBuilder(changed)
    return map_functions(changed, checked, builder)


def skip_checks(mod: tvm.IRModule) -> tvm.IRModule:
    """A module of lowered kernels, without the checks of those marked as `CHECKED`."""
    checked_kernels = {v: f for v, f in mod.functions.items() if (f.attrs or {}).get(CHECKED)}
    skipping = tirx.transform.SkipAssert()(tvm.IRModule(checked_kernels))
    return map_kernels(mod, lambda v, func: skipping[v] if v in checked_kernels else func)


def _calls(function: relax.Function) -> _Calls:
    calls = _Calls(origins={param: _members(param) for param in function.params})
    _collect(function.body, calls, calls.made)
    return calls


def _members(param: Any) -> Any:
    """The origin of a parameter, as in `_Calls.origins`."""
    if isinstance(param.ty, relax.TensorType):
        return param
    if not isinstance(param.ty, relax.TupleType):
        return None
    fields = range(len(param.ty.fields))
    return [_members(relax.TupleGetItem(param, index)) for index in fields]


def _collect(
    body: relax.SeqExpr, calls: _Calls, calls_by_kernel: dict[str, list[list[Any]]]
) -> None:
    for block in body.blocks:
        for binding in block.bindings:
            value = binding.value
            if isinstance(value, relax.If):
                # What an If is bound to gets no origin: it may come from either branch.
                for branch in (value.true_branch, value.false_branch):
                    _collect(branch, calls, calls.in_branches)
            elif isinstance(value, tvm.ir.Call) and isinstance(value.op, tvm.ir.GlobalVar):
                calls_by_kernel[value.op.name_hint].append(list(value.args))
            else:
                calls.origins[binding.var] = _origin(value, calls.origins)


def _origin(value: Any, origins: dict[Any, Any]) -> Any:
    """The origin of a value, as in `_Calls.origins`; None if it is not known."""
    if isinstance(value, tvm.ir.Var):
        return origins.get(value)
    if isinstance(value, tvm.ir.GenericConst):
        return value
    if isinstance(value, relax.Tuple):
        return [_origin(item, origins) for item in value.fields]
    if isinstance(value, relax.TupleGetItem):
        items = _origin(value.tuple_value, origins)
        return items[value.index] if isinstance(items, list) else None
    if isinstance(value, tvm.ir.Call) and value.op == _ALLOCATION:
        return _OWN_MEMORY
    if isinstance(value, tvm.ir.Call) and value.op == _RESHAPE:
        return _origin(value.args[0], origins)  # a view of all of it
    return None


def _find_kernels_without_checks(mod: tvm.IRModule, calls: list[_Calls]) -> set[str]:
    """The kernels all of whose arguments, in all calls, are known tensors of the right types."""
    mentions: Counter[str] = Counter()

    def visit(variable: tvm.ir.GlobalVar) -> None:
        mentions[variable.name_hint] += 1

    for func in mod.functions.values():
        visit_nodes(func, tvm.ir.GlobalVar, visit)
    return {
        variable.name_hint
        for variable, func in mod.functions.items()
        if isinstance(func, tirx.PrimFunc)
        and _is_internal(func)
        # A kernel that is also called in a branch, or mentioned other than by a call, keeps its
        # checks.
        and mentions[variable.name_hint]
        == sum(len(function_calls.made[variable.name_hint]) for function_calls in calls)
        and all(
            _fits(func, arguments, function_calls.origins)
            for function_calls in calls
            for arguments in function_calls.made[variable.name_hint]
        )
    }


def _is_internal(func: tirx.PrimFunc) -> bool:
    """Whether a kernel cannot be called by name, and asserts nothing of its own."""
    if "global_symbol" in dict(func.attrs or {}):
        return False
    # `skip_checks` drops all assertions of a kernel, and must not drop such.
    asserted = nodes_in(func.body, tirx.AssertStmt)
    return not asserted


def _fits(func: tirx.PrimFunc, arguments: list[Any], origins: dict[Any, Any]) -> bool:
    return len(arguments) == len(func.params) and all(
        _is_plain(param)
        and _is_static(argument.ty)
        and _shape(argument.ty) == _shape(param.ty)
        and str(argument.ty.dtype) == str(param.ty.dtype)
        and _is_known(_origin(argument, origins))
        for param, argument in zip(func.params, arguments, strict=True)
    )


def _is_known(origin: Any) -> bool:
    """Whether a tensor's layout is known: it is allocated, or checked at the function's start."""
    return origin is _OWN_MEMORY or (_is_tensor(origin) and _is_static(origin.ty))


def _is_tensor(origin: Any) -> bool:
    """Whether something is a tensor from outside."""
    return origin is not None and origin is not _OWN_MEMORY and not isinstance(origin, list)


def _is_plain(param: Any) -> bool:
    """Whether a parameter is a buffer of static shape, without gaps and from its start."""
    return is_whole_buffer(param) and all(isinstance(n, tirx.IntImm) for n in param.ty.shape)


def is_whole_buffer(param: Any) -> bool:
    """Whether a parameter of a kernel is a buffer without gaps, from its start."""
    return (
        tirx.is_buffer_var(param)
        and not len(param.ty.strides)
        and isinstance(param.ty.elem_offset, tirx.IntImm)
        and int(param.ty.elem_offset) == 0
    )


def _is_static(ty: Any) -> bool:
    return (
        isinstance(ty, relax.TensorType)
        and isinstance(ty.shape, relax.ShapeExpr)
        and all(isinstance(extent, tirx.IntImm) for extent in ty.shape)
    )


def _shape(ty: Any) -> list[int]:
    return [int(extent) for extent in ty.shape]


def _outside(calls: _Calls, unchecked: set[str]) -> set[Any]:
    """The tensors from outside that are arguments of kernels without checks."""
    tensors: set[Any] = set()
    for kernel, argument_lists in calls.made.items():
        if kernel in unchecked:
            origins = (
                _origin(argument, calls.origins) for call in argument_lists for argument in call
            )
            tensors.update(filter(_is_tensor, origins))
    return tensors


def _alignments(mod: tvm.IRModule, calls: _Calls) -> dict[Any, int]:
    """The alignment, in bytes, that kernels rely on, of tensors from outside."""
    kernels = {variable.name_hint: func for variable, func in mod.functions.items()}
    alignments: dict[Any, int] = {}
    for name, arguments in [*_flatten_calls(calls.made), *_flatten_calls(calls.in_branches)]:
        if not isinstance(kernels[name], tirx.PrimFunc):
            continue
        for param, argument in zip(kernels[name].params, arguments, strict=True):
            origin = _origin(argument, calls.origins)
            if tirx.is_buffer_var(param) and _is_tensor(origin):
                alignments[origin] = max(alignments.get(origin, 1), int(param.ty.data_alignment))
    return alignments


def _flatten_calls(calls: dict[str, list[list[Any]]]) -> Iterator[tuple[str, list[Any]]]:
    """Yield the kernel's name and the arguments of each call."""
    for name, argument_lists in calls.items():
        for arguments in argument_lists:
            yield name, arguments


def _add_checks(
    builder: relax.BlockBuilder, variable: Any, function: relax.Function, checks: list[_Check]
) -> relax.Function:
    """The function with calls, before all else, of kernels that check some tensors."""
    bindings: list[Any] = []
    for start in range(0, len(checks), _TOGETHER):
        batch = checks[start : start + _TOGETHER]
        kernel = builder.add_func(
            _kernel(variable.name_hint, batch), f"{variable.name_hint}_argument_check"
        )
        tensors = [_bound(check.tensor, bindings) for check in batch]
        unused = relax.Var("_", relax.TupleType([]))
        bindings.append(relax.VarBinding(unused, relax.Call(kernel, tensors)))
    blocks = [relax.BindingBlock(bindings), *function.body.blocks]
    body = relax.SeqExpr(blocks, function.body.body, function.body.span)
    return replace_body(function, body)


def _bound(tensor: Any, bindings: list[Any]) -> Any:
    """A tensor as an argument of a call: a member of a tuple is bound to a variable first."""
    if not isinstance(tensor, relax.TupleGetItem):
        return tensor
    projection = relax.TupleGetItem(_bound(tensor.tuple_value, bindings), tensor.index)
    member = relax.Var("member", tensor.ty)
    bindings.append(relax.VarBinding(member, projection))
    return member


def _kernel(function: str, checks: list[_Check]) -> tirx.PrimFunc:
    """A kernel that refuses tensors which other kernels would read wrongly.

    It does not look at dtypes and shapes: code that TVM's `VMShapeLower` adds compares those.
    """
    handles = [tvm.ir.Var(check.name, _HANDLE) for check in checks]
    asserts = [
        tirx.AssertStmt(
            _is_fit(handle, check),
            tvm.ir.StringImm("ValueError"),
            [
                tvm.ir.StringImm(
                    f"{check.name!r} of {function!r} is no dense tensor in the memory of the host "
                    f"that starts at a multiple of {check.alignment} bytes; pass a copy, such as "
                    "tvm.runtime.tensor(array)"
                )
            ],
        )
        for handle, check in zip(handles, checks, strict=True)
    ]
    attributes = tvm.ir.make_node("ir.DictAttrs", **{"tirx.is_scheduled": True, CHECK: True})
    return tirx.PrimFunc(handles, sequence(*asserts, tirx.Evaluate(0)), attrs=attributes)


def _is_fit(handle: Any, check: _Check) -> Any:
    """The condition that a tensor is where, and as, kernels expect it."""
    if not check.is_dense:
        return _is_aligned(handle, check)
    return tirx.all(_is_aligned(handle, check), _is_dense(handle, _shape(check.tensor.ty)))


def _is_aligned(handle: Any, check: _Check) -> Any:
    """The condition that a tensor starts at a multiple of its alignment, or is empty.

    The address of the data is the first field of a `DLTensor`. It is read as element 0 of an array
    of int64 at the tensor's handle.
    """
    address = tirx.tvm_struct_get(handle, 0, _ELEMENT, "int64")
    remainder = tirx.truncmod(address, tirx.const(check.alignment, "int64"))
    return tirx.any(remainder == tirx.const(0, "int64"), *_is_empty(handle, check.tensor.ty))


def _is_empty(handle: Any, ty: Any) -> list[Any]:
    """Conditions, one of which holds if a tensor is empty; none if it certainly is not."""
    if _is_static(ty):
        return [tirx.const(True, "bool")] if 0 in _shape(ty) else []
    shape = tirx.tvm_struct_get(handle, 0, _SHAPE, _HANDLE)
    extents = [
        tirx.tvm_struct_get(shape, axis, _ELEMENT, "int64") for axis in range(max(ty.ndim, 0))
    ]
    return [extent == tirx.const(0, "int64") for extent in extents]


def _is_dense(handle: Any, shape: list[int]) -> Any:
    """The condition that a tensor is on the host, starts where its data do, has no gaps."""
    on_host = tirx.tvm_struct_get(handle, 0, _DEVICE_TYPE, "int32") == _DEVICE_TYPE_CPU
    from_start = tirx.tvm_struct_get(handle, 0, _BYTE_OFFSET, "uint64") == tirx.const(0, "uint64")
    strides = tirx.tvm_struct_get(handle, 0, _STRIDES, _HANDLE)
    # The stride of an axis of one element is arbitrary, and so are all of an empty tensor.
    stride_matches = [
        tirx.tvm_struct_get(strides, axis, _ELEMENT, "int64")
        == tirx.const(math.prod(shape[axis + 1 :]), "int64")
        for axis, extent in enumerate(shape)
        if extent != 1 and 0 not in shape
    ]
    # Without strides a tensor is dense; there are none to be read then.
    dense = (
        [tirx.if_then_else(tirx.isnullptr(strides), True, tirx.all(*stride_matches))]
        if stride_matches
        else []
    )
    return tirx.all(on_host, from_start, *dense)
