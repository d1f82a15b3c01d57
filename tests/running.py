"""Running functions of Relax modules from tests."""

from typing import Any

import tvm
from tvm import relax, tirx
from tvm.runtime import Executable
from tvm.support import cc

import graphgrad as gg
from graphgrad.check import flat
from graphgrad.check.machine import UNOPTIMIZED
from graphgrad.ir.arrays import to_tensor
from graphgrad.lower.codegen.library import linked_library, loaded_library


def run(mod, name, *arrays):
    """Compile a module; return one function's results, flattened, as numpy arrays."""
    vm = relax.VirtualMachine(gg.compile(mod), tvm.cpu())
    return flat(vm[name](*[to_tensor(array) for array in arrays]))


_PLAIN = tvm.target.Target(UNOPTIMIZED)


def compile_library(kernels: Any, target: tvm.target.Target = _PLAIN) -> Executable:
    """What `tvm.compile` makes of a kernel, or of a module, as a library that is loaded.

    What TVM makes in memory is optimized machine code, whatever the target says: of large kernels
    that takes four times as long. A kernel alone is called ``main``.
    """
    if isinstance(kernels, tirx.PrimFunc):
        kernels = tvm.IRModule({"main": kernels.with_attr("global_symbol", "main")})
    executable = tvm.compile(kernels, target)
    if cc.get_cc() is None:
        return executable
    library = loaded_library(linked_library(executable.mod))
    assert library is not None
    return Executable(library)


def function(build, *types, name="main"):
    """Return a module with one function: `build(builder, *params)` emits and returns its value."""
    params = [relax.Var(f"x{i}", relax.TensorType(list(s), d)) for i, (s, d) in enumerate(types)]
    builder = relax.BlockBuilder()
    with builder.function(name, params):
        with builder.dataflow():
            result = builder.emit_output(build(builder, *params))
        builder.emit_func_output(result)
    return builder.get()


F64 = "float64"
