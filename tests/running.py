"""Running functions of Relax modules from tests."""

import tvm
from tvm import relax

import graphgrad as gg
from graphgrad.check import flat
from graphgrad.ir.arrays import to_tensor


def run(mod, name, *arrays):
    """Compile a module; return one function's results, flattened, as numpy arrays."""
    vm = relax.VirtualMachine(gg.compile(mod), tvm.cpu())
    return flat(vm[name](*[to_tensor(array) for array in arrays]))


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
