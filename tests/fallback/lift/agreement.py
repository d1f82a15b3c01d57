"""Kernels against their tensor expressions: the same values, and gradients as differences say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm

from graphgrad.fallback.backprop import is_float
from graphgrad.fallback.gradient import te_gradient
from graphgrad.fallback.lift.prim_func import TensorProgram, lifted
from graphgrad.lower.kernels.zero_based_loops import start_loops_at_zero
from tests.fallback.interpreter import evaluate
from tests.running import compile_library

Function = Callable[..., Sequence[np.ndarray]]

_STEP = 1e-6


def compiled(func: Any, inputs: int) -> Function:
    """Return a kernel as a function of numpy arrays, its results filled with zeros before."""
    executable = compile_library(start_loops_at_zero(func))

    def call(*arrays: Any) -> list[np.ndarray]:
        given = [a if isinstance(a, int) else tvm.runtime.tensor(a) for a in arrays]
        known = {}
        for param, array in zip(func.params, arrays, strict=False):
            if not isinstance(array, int):
                known |= {
                    str(e.name): n
                    for e, n in zip(param.shape, array.shape, strict=True)
                    if isinstance(e, tvm.ir.Var)
                }
            else:
                known[str(param.name)] = array
        results = [
            tvm.runtime.tensor(np.zeros(_shape(p.shape, known), str(p.dtype)))
            for p in func.params[len(arrays) :]
        ]
        executable(*given, *results)
        return [g.numpy() for g in [*given, *results][inputs:]]

    return call


def agrees(
    func: Any,
    inputs: int,
    arrays: Sequence[Any] | None = None,
    reference: Function | None = None,
    inplace: Sequence[int] = (),
    gradients: bool = True,
) -> TensorProgram:
    """Check that a kernel is raised to what it computes, and that its gradient is right.

    Parameters
    ----------
    func : PrimFunc
        Of float64.
    inputs : int
        How many parameters it takes, in place ones not counted; the others are results.
    arrays : sequence, optional
        What the inputs, and after them the parameters in place, hold; random if left out.
    reference : callable, optional
        From arrays to results; the compiled kernel if left out.
    inplace : sequence of int
    gradients : bool
    """
    held = inputs + len(inplace)
    arrays = list(arrays) if arrays is not None else _random(func.params[:held])
    program = lifted(func, range(inputs, len(func.params)), inplace)
    known = _known(program, func, arrays)
    values = evaluate(program.outputs, known)
    function = reference or compiled(func, inputs)
    expected = function(*arrays)
    for value, array in zip(values, expected, strict=True):
        np.testing.assert_allclose(value, array, rtol=1e-9, atol=1e-9)
    if gradients:
        _check_gradients(program, func, arrays, function)
    return program


def _check_gradients(program: Any, func: Any, arrays: Sequence[Any], function: Function) -> None:
    """Compare the slope along a random direction with that of differences of the kernel."""
    generator = np.random.default_rng(1)
    chosen = [
        (number, tensor)
        for number, tensor in enumerate(program.parameters[: len(arrays)])
        if tensor is not None and not tvm.ir.is_prim_var(tensor) and is_float(tensor.dtype)
    ]
    results = [n for n, output in enumerate(program.outputs) if is_float(output.dtype)]
    values = function(*arrays)
    heads = [generator.standard_normal(values[n].shape) for n in results]
    ones = [
        tvm.te.placeholder(program.outputs[n].shape, "float64", name=f"head{n}") for n in results
    ]
    gradients = te_gradient(
        [program.outputs[n] for n in results], [tensor for _, tensor in chosen], ones
    )
    known = [*_known(program, func, arrays), *zip(ones, heads, strict=True)]
    found = evaluate(gradients, known)
    directions = {n: generator.standard_normal(arrays[n].shape) for n, _ in chosen}
    slope = sum(
        float((gradient * directions[n]).sum())
        for (n, _), gradient in zip(chosen, found, strict=True)
    )

    def value(distance: float) -> float:
        moved = [
            a + distance * directions[n] if n in directions else a for n, a in enumerate(arrays)
        ]
        outputs = function(*[m.copy() if isinstance(m, np.ndarray) else m for m in moved])
        return sum(float((h * outputs[n]).sum()) for h, n in zip(heads, results, strict=True))

    difference = (value(_STEP) - value(-_STEP)) / (2 * _STEP)
    np.testing.assert_allclose(slope, difference, rtol=1e-5, atol=1e-6)


def _known(program: Any, func: Any, arrays: Sequence[Any]) -> list[Any]:
    known: list[Any] = []
    for param, tensor, array in zip(func.params, program.parameters, arrays, strict=False):
        if tvm.ir.is_prim_var(param):
            known.append((param, array))
            continue
        known += [
            (extent, size)
            for extent, size in zip(param.shape, array.shape, strict=True)
            if isinstance(extent, tvm.ir.Var)
        ]
        if tensor is not None:
            known.append((tensor, array.copy()))
    return known


def _random(params: Sequence[Any]) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    return [
        generator.standard_normal(_shape(param.shape, {})).astype(str(param.dtype))
        if "float" in str(param.dtype)
        else generator.integers(0, 4, _shape(param.shape, {})).astype(str(param.dtype))
        for param in params
    ]


def _shape(shape: Sequence[Any], known: dict[str, int]) -> list[int]:
    found = []
    for extent in shape:
        if isinstance(extent, tvm.ir.Var):
            found.append(known[str(extent.name)])
        elif isinstance(extent, int | tvm.tirx.IntImm):
            found.append(int(extent))
        else:
            table = {v: tvm.tirx.const(known[str(v.name)], str(v.ty)) for v in _vars(extent)}
            found.append(int(tvm.sym.Analyzer().simplify(_put(extent, table))))
    return found


def _vars(expr: Any) -> list[Any]:
    return list(tvm.tirx.analysis.undefined_vars(expr))


def _put(expr: Any, table: dict[Any, Any]) -> Any:
    return tvm.tirx.stmt_functor.substitute(expr, table)
