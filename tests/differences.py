"""Gradients of functions of modules against finite differences."""

import numpy as np
import tvm
from tvm import relax

import graphgrad as gg
from graphgrad.check import compare_gradients, flat
from graphgrad.ir.arrays import to_tensor


def assert_gradients(mod, *arrays, name="main"):
    """Check the gradients of a function in float64 by all its float inputs; return its outputs."""
    machine = relax.VirtualMachine(gg.compile(gg.vjp(mod, name)), tvm.cpu())

    def function(*given):
        outputs = flat(machine[name](*map(to_tensor, given)))
        return [output for output in outputs if output.dtype == np.float64]

    generator = np.random.default_rng(0)
    cotangents = [generator.uniform(-1, 1, output.shape) for output in function(*arrays)]
    gradients = flat(machine[f"{name}_vjp"](*map(to_tensor, [*arrays, *cotangents]))[1])
    compare_gradients(function, list(arrays), cotangents, gradients, generator, name)
    return flat(machine[name](*map(to_tensor, arrays)))
