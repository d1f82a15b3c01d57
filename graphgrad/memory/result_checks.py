"""Checks of the alignment of what packed functions return, before kernels read it.

Kernels are compiled for memory that starts at a multiple of 64 bytes, and crash where it does not.
Arrays of numpy, which a packed function may well return, start anywhere, and TVM's own checks do
not look at alignment. Arguments are checked by `argument_checks`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx

from ..ir.kernel_calls import variables_of
from ..ir.loops import sequence
from ..ir.passes import Phase, compiler_pass
from ..ir.rewrite import map_functions, replace_body
from .addresses import Addresses
from .argument_checks import CHECK, is_whole_buffer

_RESHAPE = tvm.ir.Op.get("relax.reshape")


@compiler_pass(
    Phase.ALLOCATED,
    targets=("llvm",),
    after={"check_arguments_once": "its own kernels take what may lie anywhere"},
)
def check_results(mod: tvm.IRModule) -> tvm.IRModule:
    """Check the alignment of results whose memory neither kernels nor the machine allocated.

    A result that no kernel reads is not checked.
    """
    functions = {v: f for v, f in mod.functions.items() if isinstance(f, relax.Function)}
    bindings = {variable: list(_bindings(func.body)) for variable, func in functions.items()}
    unknown = {variable: _unknown(mod, bound) for variable, bound in bindings.items()}
    if not any(unknown.values()):
        return mod
    builder = relax.BlockBuilder(mod)

    def checked(variable: Any, function: relax.Function) -> relax.Function:
        if not unknown[variable]:
            return function
        alignments = _alignments(mod, bindings[variable])
        return _add_checks(builder, variable, function, unknown[variable], alignments)

    return map_functions(mod, checked, builder)


def _add_checks(
    builder: relax.BlockBuilder,
    variable: Any,
    function: relax.Function,
    unknown: dict[Any, str],
    alignments: dict[Any, int],
) -> relax.Function:
    """A function with a check behind each binding of unknown memory that kernels read.

    Parameters
    ----------
    builder : BlockBuilder
        Receives the kernels that check.
    variable : GlobalVar
        The function's name.
    function : relax.Function
    unknown : dict
        As `_unknown` returns it.
    alignments : dict
        As `_alignments` returns it.
    """

    def with_checks(block: relax.BindingBlock) -> relax.BindingBlock:
        changed = []
        for binding in block.bindings:
            var = binding.var
            changed.append(binding)
            if var in unknown and var in alignments and isinstance(var.ty, relax.TensorType):
                kernel = _kernel(variable.name_hint, var, unknown[var], alignments[var])
                check = relax.Call(builder.add_func(kernel, "result_check"), [var])
                changed.append(relax.VarBinding(relax.Var("_", relax.TupleType([])), check))
        return relax.BindingBlock(changed)

    body = tvm_ffi.structural_map(function.body, (relax.BindingBlock, with_checks))
    return replace_body(function, body)


def _bindings(body: relax.SeqExpr) -> Iterator[relax.Binding]:
    """Yield all bindings in order, those in the branches of an If before that If."""
    for block in body.blocks:
        for binding in block.bindings:
            if isinstance(binding.value, relax.If):
                for branch in (binding.value.true_branch, binding.value.false_branch):
                    yield from _bindings(branch)
            yield binding


def _unknown(mod: tvm.IRModule, bindings: list[relax.Binding]) -> dict[Any, str]:
    """The variables whose memory may start anywhere, each with the name of what returned it."""
    origins: dict[Any, str] = {}
    for binding in bindings:
        value = binding.value
        if isinstance(value, relax.TupleGetItem) and value.tuple_value in origins:
            origins[binding.var] = origins[value.tuple_value]
        elif isinstance(value, tvm.ir.Call) and (name := _function_outside(mod, value)):
            origins[binding.var] = name
    return origins


def _function_outside(mod: tvm.IRModule, call: Any) -> str | None:
    """The name of the function that a call calls; None if its results are surely aligned.

    They are so of a kernel, of an op, and of the virtual machine's own functions.
    """
    callee = call.op
    # These ops call their first argument.
    if isinstance(callee, tvm.ir.Op) and callee.name.startswith(("relax.call_", "relax.invoke_")):
        callee = call.args[0]
    if isinstance(callee, relax.ExternFunc):
        name = str(callee.global_symbol)
        return None if name.startswith(("vm.", "runtime.")) else name
    if isinstance(callee, tvm.ir.GlobalVar):
        return callee.name_hint if isinstance(mod[callee], relax.Function) else None
    return str(callee.name) if isinstance(callee, relax.Var) else None


def _alignments(mod: tvm.IRModule, bindings: list[relax.Binding]) -> dict[Any, int]:
    """From variables to the alignment in bytes that kernels rely on where they read them."""
    alignments: dict[Any, int] = {}
    # Backwards: what is required of a view or an alias is required of its source, bound earlier.
    for binding in reversed(bindings):
        value, needed = binding.value, alignments.get(binding.var)
        if isinstance(value, tvm.ir.Call) and isinstance(value.op, tvm.ir.GlobalVar):
            kernel = mod[value.op]
            if isinstance(kernel, tirx.PrimFunc):
                for param, argument in zip(kernel.params, value.args, strict=True):
                    if is_whole_buffer(param) and isinstance(argument, relax.Var):
                        alignments[argument] = max(
                            alignments.get(argument, 1), int(param.ty.data_alignment)
                        )
        elif needed is not None:
            for var in _sources(value):
                alignments[var] = max(alignments.get(var, 1), needed)
    return alignments


def _sources(value: Any) -> list[Any]:
    """The variables whose memory a value may share: of an alias, a tuple, a view or an If."""
    if isinstance(value, relax.If):
        branches = (value.true_branch, value.false_branch)
        return [var for branch in branches for var in variables_of(branch.body)]
    if isinstance(value, tvm.ir.Call):
        return list(variables_of(value.args[0])) if value.op == _RESHAPE else []
    return list(variables_of(value))


def _kernel(function: str, result: Any, callee: str, alignment: int) -> tirx.PrimFunc:
    """A kernel that refuses a result which is not aligned as other kernels need it.

    Parameters
    ----------
    function : str
        The name of the function that is compiled, for the message.
    result : relax.Var
    callee : str
        The name of the function that returned the result.
    alignment : int
        In bytes.
    """
    extents = [tirx.Var("extent", "int64") for _ in range(result.ty.ndim)]
    buffer = tirx.decl_buffer(extents, str(result.ty.dtype), str(result.name), data_alignment=1)
    addresses = Addresses()
    read, address = addresses.of(buffer)
    remainder = tirx.truncmod(address, tirx.const(alignment, "int64"))
    is_empty = [extent == tirx.const(0, "int64") for extent in extents]
    statements = [
        addresses.begin,
        read,
        tirx.AssertStmt(
            tirx.any(remainder == tirx.const(0, "int64"), *is_empty),
            tvm.ir.StringImm("ValueError"),
            [
                tvm.ir.StringImm(
                    f"what {callee!r} returned in {function!r} does not start at a multiple of "
                    f"{alignment} bytes, and kernels read it; let it return a copy, such as "
                    "tvm.runtime.tensor(array)"
                )
            ],
        ),
        tirx.Evaluate(0),
    ]
    attributes = tvm.ir.make_node("ir.DictAttrs", **{"tirx.is_scheduled": True, CHECK: True})
    return tirx.PrimFunc([buffer], sequence(*statements), attrs=attributes)
