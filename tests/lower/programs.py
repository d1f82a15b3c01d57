"""Small Relax modules for tests of lowering."""

import numpy as np
import tvm
from tvm import relax

from graphgrad.ir.arrays import to_tensor
from graphgrad.lower.pipeline import compile as compile_module


def tensor_type(*shape, dtype="float32"):
    return relax.TensorType(shape, dtype)


def module(body, *types, **attributes):
    """Return a module whose main computes ``body(builder, *parameters)``."""
    parameters = [relax.Var(f"p{i}", ty) for i, ty in enumerate(types)]
    builder = relax.BlockBuilder()
    with builder.function("main", parameters, attributes):
        with builder.dataflow():
            out = builder.emit_output(body(builder, *parameters))
        builder.emit_func_output(out)
    return builder.get()


def machine(mod):
    """Return the module, compiled for this host, as a virtual machine."""
    return relax.VirtualMachine(compile_module(mod), tvm.cpu())


def random_tensors(*shapes, seed=0):
    generator = np.random.default_rng(seed)
    return [to_tensor(generator.uniform(-1, 1, s).astype("float32")) for s in shapes]
