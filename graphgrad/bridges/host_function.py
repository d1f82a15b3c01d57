"""A lowered function as one compiled function, without the virtual machine.

A framework may call a function from several of its threads at once, and a virtual machine serves
one. So the calls of kernels, which a lowered function is a line of, become a function of the host:
it has no state, writes its results where the framework wants them, and computes in memory that it
is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.ir import GenericConst

from ..errors import ArgumentError
from ..ir.calls import callee, calls_op
from ..ir.kernel_structure import static
from ..ir.program import Program, emit_program, substitute
from ..ir.tensor import Emitter
from ..ir.write import new_program, write_program
from ..lower.codegen.parallel import PIPELINE
from ..lower.pipeline import lower
from ..memory.argument_checks import TOGETHER, Check, check_kernel
from ..memory.budget import FunctionBudget
from ..memory.workspace import Workspace, take_workspace
from ..ops.copy import copy
from ..runtime.arrays import ALIGNMENT
from ..tvm_fixes.hooks import identity
from .derivative import flat_types, leaves_of

_RUN = "graphgrad_run"

_VIEWS = ("vm.builtin.reshape", "vm.builtin.ensure_zero_offset")
"""Calls whose result begins where their argument does."""

_CHECKS = ("vm.builtin.check_tensor_info", "vm.builtin.match_shape")
"""What a lowered function asks of its arguments: their types, which a framework has fixed."""


@dataclass(frozen=True)
class HostFunction:
    """A function of tensors in a row that writes its results.

    Attributes
    ----------
    function : tvm_ffi.Function
        ``(*arguments, *constants, *results, workspace)``; without state, for any thread.
    constants : list of numpy.ndarray
    results : list of (tuple of int, str)
        Shapes and dtypes.
    workspace : int
        The bytes that it computes in, aligned to 64; at least 1.
    """

    function: Any
    constants: list[np.ndarray]
    results: list[tuple[tuple[int, ...], str]]
    workspace: int


def host_function(
    program: Program, target: tvm.target.Target, winograd: bool = True
) -> HostFunction:
    """A function of the host that computes a program.

    Parameters
    ----------
    program : Program
        For concrete shapes.
    target : Target
        A processor.
    winograd : bool
        As of `graphgrad.compile`.

    Raises
    ------
    ArgumentError
        It calls packed functions, branches, or has shapes that depend on data.
    """
    name = program.name
    copied: set[int] = set()
    while True:
        mod = write_program(_with_results_in_a_row(program, copied), name)
        planned = lower(mod, target, winograd=winograd, budget=FunctionBudget(name))
        lowered, workspace = take_workspace(planned, name)
        line = _Line(lowered[name], workspace)
        if not line.shared:
            break
        copied |= line.shared
    kernels: dict[Any, tirx.PrimFunc] = {
        variable: function
        for variable, function in lowered.functions.items()
        if isinstance(function, tirx.PrimFunc)
    }
    kernels |= {
        tvm.ir.GlobalVar(name): kernel.with_attr("global_symbol", name)
        for name, kernel in line.kernels.items()
    }
    run = tirx.PrimFunc(line.params, line.body())
    run = run.with_attr("global_symbol", _RUN)
    # Packed calls are looked for in what a module imports.
    built = tvm.compile(tvm.IRModule({_RUN: run}), target).mod
    built.import_module(tvm.compile(tvm.IRModule(kernels), target, tir_pipeline=PIPELINE).mod)
    return HostFunction(
        built.get_function(_RUN, query_imports=True),
        [constant.value.numpy() for constant in line.constants],
        [(_shape(ty), str(ty.dtype)) for ty in flat_types(lowered[name].ret_ty)],
        1 if workspace is None else workspace.bytes,
    )


def _with_results_in_a_row(program: Program, copied: set[int]) -> Program:
    """A program that returns a tuple of tensors, of which some are copied."""

    def body(emitter: Emitter) -> Any:
        environment = emit_program(program, emitter.builder)
        results = leaves_of(emitter.builder, substitute(program.result, environment))
        return tuple(
            emitter.emit(copy(result)).expr if position in copied else result
            for position, result in enumerate(results)
        )

    return new_program(program, program.name, program.params, body)


class _Line:
    """The calls of a lowered function, and where each of its tensors is.

    Attributes
    ----------
    constants : list of relax.Constant
    params : list of buffers
        Of the function of the host.
    kernels : dict of str to PrimFunc
        Further ones that it calls.
    shared : set of int
        The results that lie in the memory of an argument or of another result.
    """

    def __init__(self, function: relax.Function, workspace: Workspace | None):
        self.kernels: dict[str, tirx.PrimFunc] = {}
        self._names: dict[Any, Any] = {}
        self._views: dict[Any, Any] = {}
        self._calls: list[tuple[str, list[Any]]] = []
        allocated: set[Any] = set()
        for block in function.body.blocks:
            for binding in block.bindings:
                if calls_op(binding.value, "relax.vm.alloc_tensor"):
                    allocated.add(binding.var)
                else:
                    self._add(binding.var, binding.value)
        arguments = [argument for _, given in self._calls for argument in given]
        self.constants = [a for a in map(self._root, arguments) if isinstance(a, GenericConst)]
        returned = self._tensors(function.body.body)
        results = list(map(self._root, returned))
        self.shared = {
            position
            for position, result in enumerate(results)
            if result not in allocated or result in results[:position]
        }
        places = [] if workspace is None else workspace.tensors
        split = len(function.params) - len(places)
        size = 1 if workspace is None else workspace.bytes
        block = relax.Var("workspace", relax.TensorType([size], "uint8"))
        # A kernel that reads an argument has it checked by the function itself.
        self._add_checks([*self.constants, *results, block])
        owned = [*function.params[:split], *self.constants, *results, block]
        # A result that is a view has another shape than the tensor in whose memory it lies.
        types = [v.ty for v in (*function.params[:split], *self.constants, *returned, block)]
        self.params = [_buffer(f"t{number}", ty) for number, ty in enumerate(types)]
        self._addresses = {
            identity(value): tirx.buffer_data(buffer)
            for value, buffer in zip(owned, self.params, strict=True)
        }
        for param, (offset, _, _) in zip(function.params[split:], places, strict=True):
            address = tirx.handle_add_byte_offset(tirx.buffer_data(self.params[-1]), offset)
            self._addresses[identity(param)] = address

    def body(self) -> Any:
        """The calls, one after the other."""
        statements = [
            tirx.Evaluate(tirx.call_packed(name, *map(self._argument, arguments)))
            for name, arguments in self._calls
        ]
        return tirx.SeqStmt([*statements, tirx.Evaluate(0)])

    def _add_checks(self, tensors: Sequence[Any]) -> None:
        """Let kernels look first whether what the framework allocates is aligned."""
        calls = []
        for start in range(0, len(tensors), TOGETHER):
            batch = tensors[start : start + TOGETHER]
            name = f"{_RUN}_check_{start}"
            self.kernels[name] = check_kernel(_RUN, [Check(t, False, ALIGNMENT) for t in batch])
            calls.append((name, list(batch)))
        self._calls = [*calls, *self._calls]

    def _add(self, var: Any, value: Any) -> None:
        """Take note of a binding: a call of a kernel, another name, or nothing to be done."""
        if isinstance(value, relax.Var | relax.Tuple | relax.TupleGetItem | GenericConst):
            self._names[var] = value
        elif isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.GlobalVar):
            self._calls.append((value.op.name_hint, self._tensors(list(value.args))))
        elif isinstance(value, relax.Call) and callee(value) in _VIEWS:
            self._views[var] = self._tensors(value.args[0])[0]
        elif not _does_nothing(value):
            raise ArgumentError(
                f"a function for this framework is a line of kernels, but {str(value)[:200]!r} is "
                "none: a branch, a packed function, or a shape that depends on data"
            )

    def _tensors(self, value: Any) -> list[Any]:
        """The tensors, constants and numbers that a value consists of."""
        if isinstance(value, list):
            return [tensor for item in value for tensor in self._tensors(item)]
        if isinstance(value, relax.Tuple):
            return self._tensors(list(value.fields))
        if isinstance(value, relax.TupleGetItem):
            whole = value.tuple_value
            while whole in self._names:
                whole = self._names[whole]
            return self._tensors(whole.fields[value.index])
        return self._tensors(self._names[value]) if value in self._names else [value]

    def _root(self, value: Any) -> Any:
        """The tensor in whose memory a value lies."""
        return self._root(self._views[value]) if value in self._views else value

    def _argument(self, value: Any) -> Any:
        """What a kernel is called with for a value."""
        address = self._addresses.get(identity(self._root(value)))
        return value if address is None else _array(address, value.ty)


def _does_nothing(value: Any) -> bool:
    """Whether a binding only allocates, frees or checks; a result's memory is the framework's."""
    names = ("relax.vm.alloc_storage", "relax.vm.kill_object")
    if any(calls_op(value, name) for name in (*names, "relax.null_value")):
        return True
    return isinstance(value, relax.Call) and callee(value) in _CHECKS


def _buffer(name: str, ty: Any) -> Any:
    return tirx.decl_buffer(_shape(ty), str(ty.dtype), name)


def _shape(ty: Any) -> tuple[int, ...]:
    """The extents of a type.

    Raises
    ------
    ArgumentError
        Some depend on data.
    """
    extents = [static(extent) for extent in ty.shape]
    if None in extents:
        raise ArgumentError(f"the shape {ty.shape} depends on data, and is needed in advance")
    return tuple(int(extent) for extent in extents if extent is not None)


def _array(address: Any, ty: Any) -> Any:
    """A tensor that lies at an address, as kernels take it."""
    shape = [tirx.const(extent, "int64") for extent in _shape(ty)]
    dtype = tirx.const(0, str(ty.dtype))
    pointer = tvm.ir.PointerType(tvm.ir.PrimType("int64"))
    sizes = relax.Call(tvm.ir.Op.get("tirx.tvm_stack_make_shape"), shape, ret_ty=pointer)
    parts = [address, sizes, 0, len(shape), dtype, 0]
    return relax.Call(tvm.ir.Op.get("tirx.tvm_stack_make_array"), parts, ret_ty="handle")
