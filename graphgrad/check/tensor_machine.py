"""Tensor expressions with their gradients, compiled, from numpy to numpy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import te

from ..arrays import to_numpy
from ..errors import LoweringError
from ..fallback.lowering.prim_func import create_prim_func
from ..fallback.walk import Expr, substituted
from ..lower.arrays import to_tensor
from .compare import Arrays
from .machine import UncompilableError, last_line

_TARGET = {"kind": "llvm", "opt-level": 0}
"""Optimising would take longer than all runs together."""


@dataclass(frozen=True)
class Program:
    """Tensors as a function of placeholders."""

    parameters: Sequence[te.Tensor]
    results: Sequence[te.Tensor]


class TensorMachine:
    """Compiled programs ``<name>``, each beside ``<name>_vjp`` where that is asked for.

    The parameters of ``<name>_vjp`` are those of ``<name>`` and a cotangent for each of its
    results.

    Raises
    ------
    UncompilableError
    """

    def __init__(self, programs: Mapping[str, Program]):
        self._programs = programs
        functions = {name: _function(program, name) for name, program in programs.items()}
        try:
            executable = tvm.compile(tvm.IRModule(functions), target=tvm.target.Target(_TARGET))
        except Exception as error:  # lowering refuses in many ways
            raise UncompilableError(f"cannot be compiled: {last_line(error)}") from error
        self._module = executable.mod

    def run(self, name: str, inputs: Arrays) -> Arrays:
        """Return the results of a program.

        Raises
        ------
        LoweringError
            It leaves elements of a result unwritten, or computes them from memory that is.
        """
        program = self._programs[name]
        extents = _extents(program.parameters, inputs)
        results = [_unwritten(result, extents) for result in program.results]
        self._module[name](*map(to_tensor, inputs), *results)
        arrays = [to_numpy(result) for result in results]
        for result, array in zip(program.results, arrays, strict=True):
            if _all_bits_set(array).any():
                raise LoweringError(
                    f"the kernel of {result.op.name} leaves elements of its result unwritten, or "
                    "computes them from memory that is: does a stage read outside of a tensor?"
                )
        return arrays

    def gradients(self, name: str, inputs: Arrays, cotangents: Arrays) -> Arrays:
        """Return the gradients of a program for given cotangents of its results."""
        return self.run(f"{name}_vjp", [*inputs, *cotangents])


def _function(program: Program, name: str) -> tvm.tirx.PrimFunc:
    function = create_prim_func([*program.parameters, *program.results])
    return function.with_attr("global_symbol", name)


def _unwritten(result: te.Tensor, extents: list[tuple[Any, Expr]]) -> tvm.runtime.Tensor:
    """Return memory for a result in which every bit is set: a NaN that no arithmetic makes."""
    analyzer = tvm.sym.Analyzer()
    shape = [int(analyzer.simplify(substituted(extent, extents))) for extent in result.shape]
    dtype = np.dtype(str(result.dtype))
    filled = np.full([*shape, dtype.itemsize], 0xFF, "uint8").view(dtype)[..., 0]
    return to_tensor(filled)


def _all_bits_set(array: np.ndarray) -> np.ndarray:
    octets = np.ascontiguousarray(array)[..., None].view("uint8")
    return (octets == 0xFF).all(axis=-1)


def _extents(parameters: Sequence[te.Tensor], inputs: Arrays) -> list[tuple[Any, Expr]]:
    """Return what the symbolic extents of some parameters are for given arrays."""
    return [
        (extent, tvm.tirx.const(size, str(extent.ty)))
        for parameter, array in zip(parameters, inputs, strict=True)
        for extent, size in zip(parameter.shape, array.shape, strict=True)
        if isinstance(extent, tvm.ir.Var)
    ]
