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
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, tirx

from ..ir.calls import calls_op
from ..ir.kernel_calls import ALLOCATION
from ..ir.kernel_structure import static
from ..ir.loops import sequence
from ..ir.passes import Phase, compiler_pass
from ..ir.rewrite import begin_with, map_functions, map_kernels
from ..ir.tensor import has_shape
from ..ir.visits import nodes_in, replace_nodes
from .alias import Aliases, Module
from .kernel_arguments import KernelCall, alignments, bound, kernel_calls, name_of, tensors_of
from .regions import Source

CHECKED = "graphgrad.arguments_checked"
"""Attribute of a kernel whose callers guarantee that its arguments are what it was compiled for."""

CHECK = "graphgrad.argument_check"
"""Attribute of a kernel that looks at arguments, and computes nothing."""

TOGETHER = 64
"""The most tensors that one kernel checks: LLVM needs more than twice the time for a function of
twice the size."""

_SHAPE, _STRIDES, _BYTE_OFFSET, _DEVICE_TYPE, _ELEMENT = 2, 3, 8, 10, 17
"""Numbers of fields for ``tvm_struct_get`` (``TVMStructFieldKind``): four of a tensor, and
`_ELEMENT` for an element of an array."""

_DEVICE_TYPE_CPU = 1
"""The type of the host among devices (``kDLCPU``)."""

_HANDLE = tirx.tvm_stack_alloca("tvm_ffi_any", 1).ty
"""The type of pointers to anything."""


@dataclass(frozen=True)
class Check:
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
        """The tensor's name in messages."""
        return name_of(self.tensor)


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
    analyzed = Module(mod.functions, views=True)
    functions = {
        variable: _Function(analyzed.function(variable), function)
        for variable, function in mod.functions.items()
        if isinstance(function, relax.Function)
    }
    unchecked = _find_kernels_without_checks(mod, functions.values())

    def marked(variable: Any, kernel: tirx.PrimFunc) -> tirx.PrimFunc:
        return kernel.with_attr(CHECKED, True) if variable.name_hint in unchecked else kernel

    def checked(variable: Any, function: relax.Function) -> relax.Function:
        checks = functions[variable].checks(unchecked)
        return _add_checks(builder, variable, function, checks) if checks else function

    changed = map_kernels(mod, marked)
    # One builder: each that takes a module looks at all of its functions.
    builder = relax.BlockBuilder(changed)
    return map_functions(changed, checked, builder)


def skip_checks(mod: tvm.IRModule) -> tvm.IRModule:
    """A module of lowered kernels, without checks that TVM has added and that are not needed.

    Those marked as `CHECKED` have none. Kernels that look at arguments keep what they were written
    for; but that they are given tensors at all, the virtual machine has found before.
    """

    def skipped(_: Any, kernel: tirx.PrimFunc) -> tirx.PrimFunc:
        attributes = kernel.attrs or {}
        if attributes.get(CHECKED):
            return _without_asserts(kernel, lambda statement: True)
        if attributes.get(CHECK):
            return _without_asserts(
                kernel, lambda statement: statement.error_kind.value == "TypeError"
            )
        return kernel

    return map_kernels(mod, skipped)


def _without_asserts(
    kernel: tirx.PrimFunc, is_skipped: Callable[[tirx.AssertStmt], bool]
) -> tirx.PrimFunc:
    """A kernel without some of its assertions."""

    def kept(statement: tirx.AssertStmt) -> tirx.Stmt:
        return tirx.Evaluate(0) if is_skipped(statement) else statement

    return kernel.with_body(replace_nodes(kernel.body, tirx.AssertStmt, kept))


class _Function:
    """The calls of kernels in a function, and the tensors that they get from outside of it.

    Attributes
    ----------
    calls : list of KernelCall
    outside : dict
        From the source of a tensor from outside to that tensor.
    """

    def __init__(self, aliases: Aliases, function: relax.Function):
        self.calls = kernel_calls(aliases, function)
        self.outside = {constant.leaf.source: constant.value for constant in aliases.constants}
        for number, param in enumerate(function.params):
            tensors = tensors_of(param)
            self.outside.update({("param", number, *path): tensor for path, tensor in tensors})
        self._allocated = {
            ("call", var) for var, call in aliases.calls.items() if calls_op(call, ALLOCATION)
        }

    def fits(self, call: KernelCall) -> bool:
        """Whether all arguments of a call are known tensors of the right types."""
        params = call.kernel.params
        return len(call.arguments) == len(params) and all(
            _is_plain(param)
            and _is_static(argument.ty)
            and _shape(argument.ty) == list(map(int, param.ty.shape))
            and str(argument.ty.dtype) == str(param.ty.dtype)
            and self._is_known(origins)
            for param, argument, origins in zip(params, call.arguments, call.origins, strict=True)
        )

    def _is_known(self, origins: Sequence[Source]) -> bool:
        """Whether a tensor's layout is known: it is allocated, or checked at the start."""
        # A kernel of a choice checks what is chosen: the other may well be unfit.
        (origin, *others) = origins
        tensor = self.outside.get(origin)
        is_known = origin in self._allocated if tensor is None else _is_static(tensor.ty)
        return is_known and not others

    def checks(self, unchecked: set[str]) -> list[Check]:
        """The checks of the tensors from outside that kernels get.

        Parameters
        ----------
        unchecked : set of str
            The kernels that check nothing themselves.
        """
        dense = {
            self.outside.get(origin)
            for call in self.calls
            if call.name in unchecked
            for origins in call.origins
            for origin in origins
        }
        alignment_of: dict[Any, int] = {}
        for origin, alignment in alignments(self.calls).items():
            if origin in self.outside:
                tensor = self.outside[origin]
                alignment_of[tensor] = max(alignment_of.get(tensor, 1), alignment)
        return [
            Check(tensor, tensor in dense, alignment) for tensor, alignment in alignment_of.items()
        ]


def _find_kernels_without_checks(mod: tvm.IRModule, functions: Iterable[_Function]) -> set[str]:
    """The kernels all of whose arguments, in all calls, are known tensors of the right types."""
    mentions = Counter(
        variable.name_hint
        for func in mod.functions.values()
        for variable in nodes_in(func, tvm.ir.GlobalVar)
    )
    fitting = Counter(
        call.name
        for function in functions
        for call in function.calls
        if not call.is_in_branch and function.fits(call)
    )
    # A kernel that is also called in a branch, or mentioned other than by a call, keeps its checks.
    return {
        variable.name_hint
        for variable, func in mod.functions.items()
        if isinstance(func, tirx.PrimFunc)
        and _is_internal(func)
        and mentions[variable.name_hint] == fitting[variable.name_hint]
    }


def _is_internal(func: tirx.PrimFunc) -> bool:
    """Whether a kernel cannot be called by name, and asserts nothing of its own."""
    if "global_symbol" in dict(func.attrs or {}):
        return False
    # `skip_checks` drops all assertions of a kernel, and must not drop such.
    asserted = nodes_in(func.body, tirx.AssertStmt)
    return not asserted


def _is_plain(param: Any) -> bool:
    """Whether a parameter is a buffer of static shape, without gaps and from its start."""
    return (
        tirx.is_buffer_var(param)
        and not len(param.ty.strides)
        and static(param.ty.elem_offset) == 0
        and all(isinstance(n, tirx.IntImm) for n in param.ty.shape)
    )


def _is_static(ty: Any) -> bool:
    return has_shape(ty) and all(isinstance(extent, tirx.IntImm) for extent in ty.shape.values)


def _shape(ty: Any) -> list[int]:
    """The extents of a tensor's type, which are constants."""
    return list(map(int, ty.shape.values))


def _add_checks(
    builder: relax.BlockBuilder, variable: Any, function: relax.Function, checks: list[Check]
) -> relax.Function:
    """The function with calls, before all else, of kernels that check some tensors."""
    bindings: list[Any] = []
    for start in range(0, len(checks), TOGETHER):
        batch = checks[start : start + TOGETHER]
        kernel = builder.add_func(
            check_kernel(variable.name_hint, batch), f"{variable.name_hint}_argument_check"
        )
        tensors = [bound(check.tensor, bindings) for check in batch]
        unused = relax.Var("_", relax.TupleType([]))
        bindings.append(relax.VarBinding(unused, relax.Call(kernel, tensors)))
    return begin_with(function, bindings)


def check_kernel(function: str, checks: list[Check]) -> tirx.PrimFunc:
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


def _is_fit(handle: Any, check: Check) -> Any:
    """The condition that a tensor is where, and as, kernels expect it."""
    if not check.is_dense:
        return _is_aligned(handle, check)
    return tirx.all(_is_aligned(handle, check), _is_dense(handle, _shape(check.tensor.ty)))


def _is_aligned(handle: Any, check: Check) -> Any:
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
