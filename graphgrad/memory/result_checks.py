"""Checks of the alignment of what packed functions return, before kernels read it.

Kernels are compiled for memory that starts at a multiple of 64 bytes, and crash where it does not.
Arrays of numpy, which a packed function may well return, start anywhere, and TVM's own checks do
not look at alignment. Arguments are checked by `argument_checks`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tvm
from tvm import relax, tirx

from ..ir.calls import calls_op
from ..ir.loops import sequence
from ..ir.passes import Phase, compiler_pass
from ..ir.rewrite import map_functions, rebuilt, replace_body
from .addresses import Addresses
from .alias import Aliases, Module
from .argument_checks import CHECK
from .kernel_arguments import alignments, kernel_calls
from .regions import Source


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
    analyzed = Module(mod.functions, views=True)
    unaligned = {v: _unaligned(mod, analyzed.function(v), f) for v, f in functions.items()}
    if not any(unaligned.values()):
        return mod
    builder = relax.BlockBuilder(mod)

    def checked(variable: Any, function: relax.Function) -> relax.Function:
        aliases = analyzed.function(variable)

        def check_behind(binding: Any) -> list[Any]:
            if not _is_new_tensor(binding):
                return [binding]
            origins = aliases.origins(aliases.values[binding.var])
            results = [unaligned[variable][o] for o in origins if o in unaligned[variable]]
            if not results:
                return [binding]
            strictest = max(results, key=lambda result: result.alignment)
            kernel = _kernel(variable.name_hint, binding.var, strictest)
            check = relax.Call(builder.add_func(kernel, "result_check"), [binding.var])
            return [binding, relax.VarBinding(relax.Var("_", relax.TupleType([])), check)]

        if not unaligned[variable]:
            return function
        return replace_body(function, rebuilt(function.body, check_behind))

    return map_functions(mod, checked, builder)


class _Result(NamedTuple):
    """What a function outside returned, and kernels read: its name, and the alignment in bytes."""

    callee: str
    alignment: int


def _unaligned(
    mod: tvm.IRModule, aliases: Aliases, function: relax.Function
) -> dict[Source, _Result]:
    """From their sources, the results that kernels read and whose memory may start anywhere."""
    results = {}
    for origin, alignment in alignments(kernel_calls(aliases, function)).items():
        kind, *path = origin
        call = aliases.calls.get(path[0]) if kind == "call" else None
        callee = None if call is None else _function_outside(mod, call)
        if callee is not None:
            results[origin] = _Result(callee, alignment)
    return results


def _is_new_tensor(binding: Any) -> bool:
    """Whether a value is a tensor that has not been bound as one before, or as a view of one."""
    value = binding.value
    if not isinstance(binding.var.ty, relax.TensorType) or isinstance(value, relax.If):
        return False
    if isinstance(value, tvm.ir.Call):
        return not calls_op(value, "relax.reshape")
    return isinstance(value, relax.TupleGetItem) or not isinstance(value.ty, relax.TensorType)


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


def _kernel(function: str, var: relax.Var, result: _Result) -> tirx.PrimFunc:
    """A kernel that refuses a result which is not aligned as other kernels need it.

    Parameters
    ----------
    function : str
        The name of the function that is compiled, for the message.
    var : relax.Var
        That the result is bound to.
    result : _Result
    """
    extents = [tirx.Var("extent", "int64") for _ in range(var.ty.ndim)]
    buffer = tirx.decl_buffer(extents, str(var.ty.dtype), str(var.name), data_alignment=1)
    addresses = Addresses()
    read, address = addresses.of(buffer)
    remainder = tirx.truncmod(address, tirx.const(result.alignment, "int64"))
    is_empty = [extent == tirx.const(0, "int64") for extent in extents]
    statements = [
        addresses.begin,
        read,
        tirx.AssertStmt(
            tirx.any(remainder == tirx.const(0, "int64"), *is_empty),
            tvm.ir.StringImm("ValueError"),
            [
                tvm.ir.StringImm(
                    f"what {result.callee!r} returned in {function!r} does not start at a "
                    f"multiple of {result.alignment} bytes, and kernels read it; let it return a "
                    "copy, such as tvm.runtime.tensor(array)"
                )
            ],
        ),
        tirx.Evaluate(0),
    ]
    attributes = tvm.ir.make_node("ir.DictAttrs", **{"tirx.is_scheduled": True, CHECK: True})
    return tirx.PrimFunc([buffer], sequence(*statements), attrs=attributes)
