"""Arguments checked once, where they come in, and not by each kernel that is handed them.

TVM has each kernel compare type, shape, strides, offset and device of each argument with what it
was compiled for. In a training step that is more machine code than all the kernels. But what the
virtual machine has allocated is as the program says, and what a function was given is so throughout
it once it has been looked at. So one kernel, at the start of a function, looks at all tensors that
come from outside; kernels that get nothing else go without. It looks at alignment as well, which
TVM's checks leave out: LLVM is told of it, and code for a misaligned tensor ends the process.
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
"""Tensors that one kernel checks: LLVM takes more than twice as long for a function of twice the
size."""

_SHAPE, _STRIDES, _BYTE_OFFSET, _DEVICE_TYPE, _ELEMENT = 2, 3, 8, 10, 17
"""Fields that ``tvm_struct_get`` reads: of tensors, and of an array (``TVMStructFieldKind``)."""

_DEVICE_TYPE_CPU = 1
"""The type of the host among devices (``kDLCPU``)."""

_HANDLE = tirx.tvm_stack_alloca("tvm_ffi_any", 1).ty
"""The type of pointers to anything."""

_ALLOCATION = tvm.ir.Op.get("relax.builtin.alloc_tensor")
_RESHAPE = tvm.ir.Op.get("relax.reshape")

_OWN_MEMORY = "own"
"""Where a tensor comes from that the virtual machine has allocated."""


@dataclass
class _Calls:
    """The calls of kernels in a function, and where what they are handed comes from.

    Attributes
    ----------
    made : dict
        By kernel, the arguments of each call that is always made.
    in_branches : dict
        Those of calls in branches.
    origins : dict
        By variable: `_OWN_MEMORY`; the parameter, member of one or constant that it is, or is a
        view of; a list of these, of a tuple. Nothing of what is not known.
    """

    made: dict[str, list[list[Any]]] = field(default_factory=lambda: defaultdict(list))
    in_branches: dict[str, list[list[Any]]] = field(default_factory=lambda: defaultdict(list))
    origins: dict[Any, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Check:
    """What a function looks at before it computes.

    Attributes
    ----------
    tensor : relax expression
        A parameter, a member of one, or a constant.
    is_dense : bool
        Kernels that check nothing are handed it: it must be on the host and without gaps.
    alignment : int
        What its address must be a multiple of, in bytes.
    """

    tensor: Any
    is_dense: bool
    alignment: int

    @property
    def name(self) -> str:
        """What to call the tensor."""
        place, value = "", self.tensor
        while isinstance(value, relax.TupleGetItem):
            place, value = f"[{value.index}]{place}", value.tuple_value
        return f"{getattr(value, 'name', 'constant')}{place}"


@compiler_pass(
    Phase.ALLOCATED,
    targets=("llvm",),
    before={
        "AttachGlobalSymbol": "functions without a symbol are those that nobody calls from outside"
    },
)
def check_arguments_once(mod: tvm.IRModule) -> tvm.IRModule:
    """Check tensors where they come in, and give kernels that need no checks `CHECKED`.

    Kernels with symbolic shapes keep their checks, which are what binds the symbols; what they are
    handed from outside is looked at for its alignment alone.
    """
    functions = {v: f for v, f in mod.functions.items() if isinstance(f, relax.Function)}
    calls = {variable: _calls(function) for variable, function in functions.items()}
    chosen = _find_kernels_without_checks(mod, list(calls.values()))

    def marked(variable: Any, kernel: tirx.PrimFunc) -> tirx.PrimFunc:
        return kernel.with_attr(CHECKED, True) if variable.name_hint in chosen else kernel

    def checked(variable: Any, function: relax.Function) -> relax.Function:
        alignments = _alignments(mod, calls[variable])
        dense = _outside(calls[variable], chosen)
        checks = [_Check(t, t in dense, alignments[t]) for t in alignments]
        return _add_checks(builder, variable, function, checks) if checks else function

    changed = map_kernels(mod, marked)
    # One builder: each that takes a module looks at all of its functions.
    builder = relax.BlockBuilder(changed)
    return map_functions(changed, checked, builder)


def skip_checks(mod: tvm.IRModule) -> tvm.IRModule:
    """A module of lowered kernels in which those with the attribute check nothing."""
    chosen = {v: f for v, f in mod.functions.items() if (f.attrs or {}).get(CHECKED)}
    skipping = tirx.transform.SkipAssert()(tvm.IRModule(chosen))
    return map_kernels(mod, lambda v, func: skipping[v] if v in chosen else func)


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


def _collect(body: relax.SeqExpr, calls: _Calls, made: dict[str, list[list[Any]]]) -> None:
    for block in body.blocks:
        for binding in block.bindings:
            value = binding.value
            if isinstance(value, relax.If):
                for branch in (value.true_branch, value.false_branch):
                    _collect(branch, calls, calls.in_branches)
            elif isinstance(value, tvm.ir.Call) and isinstance(value.op, tvm.ir.GlobalVar):
                made[value.op.name_hint].append(list(value.args))
            else:
                calls.origins[binding.var] = _origin(value, calls.origins)


def _origin(value: Any, origins: dict[Any, Any]) -> Any:
    """Where a value comes from, as in `_Calls.origins`; None if that is not known."""
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
    """The kernels that are handed nothing but known tensors of the right types."""
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
        and mentions[variable.name_hint] == sum(len(c.made[variable.name_hint]) for c in calls)
        and all(
            _fits(func, arguments, each.origins)
            for each in calls
            for arguments in each.made[variable.name_hint]
        )
    }


def _is_internal(func: tirx.PrimFunc) -> bool:
    """Whether a kernel cannot be called by name, and asserts nothing of its own."""
    if "global_symbol" in dict(func.attrs or {}):
        return False
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


def _outside(calls: _Calls, chosen: set[str]) -> set[Any]:
    """The tensors from outside that kernels without checks are handed."""
    found: set[Any] = set()
    for kernel, made in calls.made.items():
        if kernel in chosen:
            origins = (_origin(argument, calls.origins) for call in made for argument in call)
            found.update(filter(_is_tensor, origins))
    return found


def _alignments(mod: tvm.IRModule, calls: _Calls) -> dict[Any, int]:
    """The alignment, in bytes, that kernels rely on, of tensors from outside."""
    kernels = {variable.name_hint: func for variable, func in mod.functions.items()}
    found: dict[Any, int] = {}
    for name, arguments in [*_flatten_calls(calls.made), *_flatten_calls(calls.in_branches)]:
        if not isinstance(kernels[name], tirx.PrimFunc):
            continue
        for param, argument in zip(kernels[name].params, arguments, strict=True):
            origin = _origin(argument, calls.origins)
            if tirx.is_buffer_var(param) and _is_tensor(origin):
                found[origin] = max(found.get(origin, 1), int(param.ty.data_alignment))
    return found


def _flatten_calls(calls: dict[str, list[list[Any]]]) -> Iterator[tuple[str, list[Any]]]:
    for name, made in calls.items():
        for arguments in made:
            yield name, arguments


def _add_checks(
    builder: relax.BlockBuilder, variable: Any, function: relax.Function, checks: list[_Check]
) -> relax.Function:
    """Let kernels check some tensors first in a function."""
    bindings: list[Any] = []
    for start in range(0, len(checks), _TOGETHER):
        some = checks[start : start + _TOGETHER]
        kernel = builder.add_func(
            _kernel(variable.name_hint, some), f"{variable.name_hint}_argument_check"
        )
        tensors = [_bound(check.tensor, bindings) for check in some]
        nothing = relax.Var("_", relax.TupleType([]))
        bindings.append(relax.VarBinding(nothing, relax.Call(kernel, tensors)))
    blocks = [relax.BindingBlock(bindings), *function.body.blocks]
    body = relax.SeqExpr(blocks, function.body.body, function.body.span)
    return replace_body(function, body)


def _bound(tensor: Any, bindings: list[Any]) -> Any:
    """A tensor as an argument; members of tuples get bindings."""
    if not isinstance(tensor, relax.TupleGetItem):
        return tensor
    of_bound = relax.TupleGetItem(_bound(tensor.tuple_value, bindings), tensor.index)
    member = relax.Var("member", tensor.ty)
    bindings.append(relax.VarBinding(member, of_bound))
    return member


def _kernel(function: str, checks: list[_Check]) -> tirx.PrimFunc:
    """A kernel that refuses tensors which other kernels would read wrongly.

    Their types, the virtual machine has compared: `VMShapeLower` sees to that.
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

    The address is the first field of a tensor: the first element, if that is taken for an array.
    """
    address = tirx.tvm_struct_get(handle, 0, _ELEMENT, "int64")
    rest = tirx.truncmod(address, tirx.const(check.alignment, "int64"))
    return tirx.any(rest == tirx.const(0, "int64"), *_is_empty(handle, check.tensor.ty))


def _is_empty(handle: Any, ty: Any) -> list[Any]:
    """Conditions, by one of which a tensor is empty."""
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
    steps = [
        tirx.tvm_struct_get(strides, axis, _ELEMENT, "int64")
        == tirx.const(math.prod(shape[axis + 1 :]), "int64")
        for axis, extent in enumerate(shape)
        if extent != 1 and 0 not in shape
    ]
    # Without strides a tensor is dense; there are none to be read then.
    dense = [tirx.if_then_else(tirx.isnullptr(strides), True, tirx.all(*steps))] if steps else []
    return tirx.all(on_host, from_start, *dense)
