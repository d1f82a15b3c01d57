"""A module compiled for this processor, whose functions and gradients take and return numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ..errors import ModelError
from ..ir.arrays import to_tensor
from ..ir.kernel_calls import bytes_of
from ..ir.tensor import is_float
from ..lower.pipeline import TargetLike
from ..lower.pipeline import compile as compile_module
from .compare import Arrays

UNOPTIMIZED: TargetLike = {"kind": "llvm", "opt-level": 0}
"""This host, without LLVM's optimization: of small tensors that takes longer than all runs."""

_MOST_BYTES = 160_000
"""The size of all values of a program up to which it is not optimized: a product of matrices of
this size takes a few milliseconds then, and a kernel is compiled in half of the time."""


class UncompilableError(ModelError):
    """TVM does not compile a program."""


class Machine:
    """A compiled module with functions ``<name>`` and ``<name>_vjp``.

    Parameters
    ----------
    mod : IRModule
    target : str, dict or Target, optional
        As `graphgrad.target` takes it. If not given: this host, and a module of small tensors is
        not optimized.

    Raises
    ------
    UncompilableError
    """

    def __init__(self, mod: tvm.IRModule, target: TargetLike | None = None):
        if target is None:
            target = UNOPTIMIZED if _is_small(mod) else "llvm"
        try:
            executable = compile_module(mod, target)
        except Exception as error:  # lowering refuses in many ways
            raise UncompilableError(f"cannot be compiled: {last_line(error)}") from error
        self._vm = relax.VirtualMachine(executable, tvm.cpu())

    def call(self, name: str, inputs: Arrays) -> Arrays:
        """Call a function; return its results, flattened out of tuples."""
        return flat(self._vm[name](*map(to_tensor, inputs)))

    def caller(self, name: str, inputs: Arrays) -> Callable[[], Any]:
        """A call of a function, whose arguments are converted already."""
        function, arguments = self._vm[name], list(map(to_tensor, inputs))
        return lambda: function(*arguments)

    def run(self, name: str, inputs: Arrays) -> Arrays:
        """Call a function; return its float results, flattened out of tuples."""
        return [array for array in self.call(name, inputs) if is_float(str(array.dtype))]

    def gradients(self, name: str, inputs: Arrays, cotangents: Arrays) -> Arrays:
        """The gradients of a function for given cotangents of its float results."""
        return flat(self._vm[f"{name}_vjp"](*map(to_tensor, [*inputs, *cotangents]))[1])

    def tangents(self, name: str, inputs: Arrays, tangents: Arrays) -> Arrays:
        """The tangents of a function's float results for given ones of differentiated inputs."""
        return flat(self._vm[f"{name}_jvp"](*map(to_tensor, [*inputs, *tangents]))[1])


def _is_small(mod: tvm.IRModule) -> bool:
    """Whether the tensors of all functions are of constant shapes, and small together."""
    values = [
        var
        for function in mod.functions.values()
        if isinstance(function, relax.Function)
        for var in relax.analysis.all_vars(function)
    ]
    sizes = [bytes_of(var.ty) for var in values if not isinstance(var.ty, relax.ShapeType)]
    return None not in sizes and sum(filter(None, sizes)) <= _MOST_BYTES


def flat(value: Any) -> list[np.ndarray]:
    """The arrays in a (nested) result of the virtual machine."""
    if isinstance(value, tvm.runtime.Tensor):
        return [value.numpy()]
    return [array for item in value for array in flat(item)]


def last_line(error: Exception) -> str:
    """The message of an error of TVM, without where it came from."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:200] if lines else type(error).__name__
