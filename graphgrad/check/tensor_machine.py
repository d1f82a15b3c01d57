"""Tensor expressions and their gradients, compiled in float64 as functions of numpy arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import te

from ..errors import InputError, LoweringError
from ..fallback.lowering.prim_func import lowered
from ..fallback.walk import Expr, substituted
from ..ir.arrays import to_numpy, to_tensor
from ..lower.codegen.parallel import PIPELINE
from ..memory.argument_checks import CHECKED
from .compare import Arrays
from .machine import UncompilableError, last_line
from .promote_kernel import promote_kernel
from .promote_type import promote_array, promote_type

_TARGET = {"kind": "llvm", "opt-level": 0}
"""No optimization: it would take longer than all runs of a check together."""


@dataclass(frozen=True)
class Program:
    """A function to compile: results as tensor expressions of placeholders."""

    parameters: Sequence[te.Tensor]
    results: Sequence[te.Tensor]


class TensorMachine:
    """Compiled programs ``<name>``, each beside ``<name>_vjp`` and ``<name>_jvp`` if asked for.

    The parameters of ``<name>_vjp`` are those of ``<name>`` and a cotangent for each of its
    results, those of ``<name>_jvp`` have a tangent for each value that is differentiated. All are
    promoted to float64 after the gradients are derived, so that what is compiled are the stages of
    the expressions as they are written.

    Attributes
    ----------
    promoted : bool
        Whether they compute in float64, whatever dtype they are written in.
    note : str
        Why they do not; empty if they do.

    Raises
    ------
    UncompilableError
        They cannot be compiled in any dtype.
    """

    def __init__(self, programs: Mapping[str, Program]):
        self._programs = programs
        promoted = [
            promote_kernel(_function(program, rounded=False)) for program in programs.values()
        ]
        self.note = "; ".join(dict.fromkeys(text for _, texts in promoted for text in texts))
        self.promoted = not self.note
        if self.promoted:
            try:
                functions = (function for function, _ in promoted)
                self._module = _compiled(dict(zip(programs, functions, strict=True)))
                return
            except UncompilableError as error:
                self.promoted, self.note = False, f"in float64 it {error}"
        self._module = _compiled({name: _function(program) for name, program in programs.items()})

    def point(self, arrays: Arrays) -> Arrays:
        """Values of the expressions' placeholders in the dtypes that these programs take."""
        return [promote_array(array) for array in arrays] if self.promoted else arrays

    def run(self, name: str, inputs: Arrays) -> Arrays:
        """The results of a program.

        Raises
        ------
        InputError
            An input has not the type of its parameter, which kernels do not check.
        LoweringError
            It leaves elements of a result unwritten, or computes them from memory that is.
        """
        program = self._programs[name]
        extents = _extents(program.parameters, inputs)
        for parameter, array in zip(program.parameters, inputs, strict=True):
            shape, dtype = self._type(parameter, extents)
            if array.shape != shape or array.dtype != dtype:
                raise InputError(
                    f"{parameter.op.name} is {dtype}{shape}, given {array.dtype}{array.shape}"
                )
        results = [self._unwritten(result, extents) for result in program.results]
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
        """The gradients of a program for given cotangents of its results."""
        return self.run(f"{name}_vjp", [*inputs, *cotangents])

    def tangents(self, name: str, inputs: Arrays, tangents: Arrays) -> Arrays:
        """The tangents of a program's results for given ones of the differentiated inputs."""
        return self.run(f"{name}_jvp", [*inputs, *tangents])

    def _unwritten(self, result: te.Tensor, extents: list[tuple[Any, Expr]]) -> tvm.runtime.Tensor:
        """Memory for a result in which every bit is set: a NaN that no arithmetic makes."""
        shape, dtype = self._type(result, extents)
        filled = np.full([*shape, dtype.itemsize], 0xFF, "uint8").view(dtype)[..., 0]
        return to_tensor(filled)

    def _type(
        self, tensor: te.Tensor, extents: list[tuple[Any, Expr]]
    ) -> tuple[tuple[int, ...], np.dtype]:
        """The shape and the dtype of the arrays that a tensor stands for."""
        analyzer = tvm.sym.Analyzer()
        shape = (int(analyzer.simplify(substituted(extent, extents))) for extent in tensor.shape)
        ty = tvm.ir.PrimType(str(tensor.dtype))
        return tuple(shape), np.dtype(str(promote_type(ty) if self.promoted else ty))


def _compiled(functions: Mapping[str, tvm.tirx.PrimFunc]) -> Any:
    """A module of machine code with some functions by name."""
    named = {
        name: _without_checks(function).with_attr("global_symbol", name)
        for name, function in functions.items()
    }
    try:
        mod, target = tvm.IRModule(named), tvm.target.Target(_TARGET)
        return tvm.compile(mod, target, tir_pipeline=PIPELINE).mod
    except Exception as error:  # lowering refuses in many ways
        raise UncompilableError(f"cannot be compiled: {last_line(error)}") from error


def _without_checks(function: tvm.tirx.PrimFunc) -> tvm.tirx.PrimFunc:
    """A kernel that does not check its arguments, the larger part of its code.

    With symbolic shapes it does, as the checks bind the symbols.
    """
    extents = (extent for parameter in function.params for extent in parameter.ty.shape)
    is_static = all(isinstance(extent, tvm.tirx.IntImm) for extent in extents)
    return function.with_attr(CHECKED, True) if is_static else function


def _function(program: Program, rounded: bool = True) -> tvm.tirx.PrimFunc:
    """The kernel of a program; `rounded` is that of `lowered`."""
    return lowered([*program.parameters, *program.results], rounded=rounded)


def _all_bits_set(array: np.ndarray) -> np.ndarray:
    """Where all bits of an element are set, as in memory that nothing has written."""
    octets = np.ascontiguousarray(array)[..., None].view("uint8")
    return (octets == 0xFF).all(axis=-1)


def _extents(parameters: Sequence[te.Tensor], inputs: Arrays) -> list[tuple[Any, Expr]]:
    """The symbolic extents of some parameters, for given arrays."""
    return [
        (extent, tvm.tirx.const(size, str(extent.ty)))
        for parameter, array in zip(parameters, inputs, strict=True)
        for extent, size in zip(parameter.shape, array.shape, strict=True)
        if isinstance(extent, tvm.ir.Var)
    ]
