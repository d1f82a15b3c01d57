"""Kernels of graphgrad: Relax functions of one op, or the gradient of one, compiled by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from kernel_cases import Case, Convolution, Product
from tvm import relax

import graphgrad as gg
from graphgrad.ir.arrays import to_tensor

INCLUDES = "gg.compile of conv2d NHWC/HWIO, matmul, and their gradients by gg.vjp"

_FORWARD = {"data": (0, 2, 3, 1), "weight": (2, 3, 1, 0), "result": (0, 2, 3, 1)}
"""From the layout of the cases to that of the kernels: NHWC, HWIO, NHWC."""


def prepare(
    case: Case, threads: int, rules: str = "auto", winograd: bool | None = None
) -> tuple[Callable[[], Any], Callable[[], np.ndarray]]:
    """Return what runs a case, and what returns its values.

    Parameters
    ----------
    case : Case
    threads : int
        TVM knows them from the environment.
    rules : str
        As of `graphgrad.vjp`.
    winograd : bool, optional
        As of `graphgrad.compile`; by default what it does by itself.
    """
    switches = {} if winograd is None else {"winograd": winograd}
    function = relax.VirtualMachine(gg.compile(program(case, rules), **switches), tvm.cpu())["main"]
    is_image = isinstance(case.work, Convolution)
    arrays = case.inputs()
    if is_image:
        orders = [_FORWARD[name] for name in case.reads]
        arrays = [a.transpose(order) for a, order in zip(arrays, orders, strict=True)]
    tensors = [to_tensor(np.ascontiguousarray(array)) for array in arrays]

    def values() -> np.ndarray:
        result = function(*tensors).numpy()
        return result.transpose(np.argsort(_FORWARD[case.writes])) if is_image else result

    return lambda: function(*tensors), values


def program(case: Case, rules: str) -> tvm.IRModule:
    """Return a module whose ``main`` takes what the case reads, and computes it alone."""
    primal = _primal(case.work)
    if case.part == "forward":
        return primal
    return gradient_alone(gg.vjp(primal, wrt=[case.part], rules=rules), "main_vjp")


def _primal(work: Convolution | Product) -> tvm.IRModule:
    shapes = work.shapes
    is_image = isinstance(work, Convolution)

    def param(name: str) -> relax.Var:
        shape = shapes[name]
        order = _FORWARD[name] if is_image else range(len(shape))
        return relax.Var(name, relax.TensorType([shape[axis] for axis in order], "float32"))

    params = [param("data"), param("weight")]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            compute = _convolution if is_image else _product
            result = builder.emit_output(compute(builder, work, *params))
        builder.emit_func_output(result)
    return builder.get()


def _convolution(builder: Any, work: Convolution, x: relax.Var, w: relax.Var) -> relax.Expr:
    return relax.op.nn.conv2d(
        x,
        w,
        strides=work.stride,
        padding=work.padding,
        groups=work.groups,
        data_layout="NHWC",
        kernel_layout="HWIO",
    )


def _product(builder: Any, work: Product, x: relax.Var, w: relax.Var) -> relax.Expr:
    axes = list(range(len(work.shapes["data"])))
    swapped = [*axes[:-2], axes[-1], axes[-2]]
    x, w = (
        builder.emit(relax.op.permute_dims(operand, swapped)) if letter == "T" else operand
        for operand, letter in zip((x, w), work.form, strict=True)
    )
    return relax.op.matmul(x, w)


def gradient_alone(mod: tvm.IRModule, name: str) -> tvm.IRModule:
    """Return a module whose ``main`` returns the first gradient of a vector-Jacobian product.

    What that does not need is gone, parameters included.
    """
    function = mod[name]
    results = function.body.body
    builder = relax.BlockBuilder()
    with builder.function("main", list(function.params)):
        with builder.dataflow():
            for block in function.body.blocks:
                for binding in block.bindings:
                    builder.emit_normalized(binding)
            gradients = builder.emit(relax.TupleGetItem(results, 1))
            gradient = builder.emit_output(relax.TupleGetItem(gradients, 0))
        builder.emit_func_output(gradient)
    alone = builder.get()
    for variable, kernel in mod.functions.items():
        if isinstance(kernel, tvm.tirx.PrimFunc):
            alone[variable] = kernel
    simple = tvm.transform.Sequential(
        [relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination(["main"])]
    )(alone)
    simple["main"] = _without_unused_parameters(simple["main"])
    return simple


def _without_unused_parameters(function: relax.Function) -> relax.Function:
    used: set[Any] = set()
    tvm_ffi.structural_walk(function.body, (tvm.ir.Var, used.add))
    params = [param for param in function.params if param in used]
    return relax.Function(params, function.body, function.ret_ty, attrs=function.attrs)
