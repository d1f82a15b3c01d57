"""A module compiled for this processor, whose functions and gradients take and return numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ..errors import ModelError
from ..ir.arrays import to_tensor
from ..ir.tensor import is_float
from ..lower.pipeline import TargetLike
from ..lower.pipeline import compile as compile_module
from .compare import Arrays


class UncompilableError(ModelError):
    """TVM does not compile a program."""


class Machine:
    """A compiled module with functions ``<name>`` and ``<name>_vjp``.

    Parameters
    ----------
    mod : IRModule
    target : str, dict or Target
        As `graphgrad.target` takes it: this host.

    Raises
    ------
    UncompilableError
    """

    def __init__(self, mod: tvm.IRModule, target: TargetLike = "llvm"):
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


def flat(value: Any) -> list[np.ndarray]:
    """The arrays in a (nested) result of the virtual machine."""
    if isinstance(value, tvm.runtime.Tensor):
        return [value.numpy()]
    return [array for item in value for array in flat(item)]


def last_line(error: Exception) -> str:
    """The message of an error of TVM, without where it came from."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:200] if lines else type(error).__name__
