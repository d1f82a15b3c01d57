"""The gradient of a kernel, as kernels: one for each of its inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import tvm
from tvm import te, tirx

from ..backprop import is_float
from ..gradient import te_gradient
from ..graph import operations, outputs_of, rewritten
from ..raising.prim_func import TensorProgram
from ..walk import identity, tensor_key
from .expressions import expressions_of, free_variables, kernel_of

Source = tuple[Literal["input", "output", "cotangent"], int]
"""A tensor of a call: an input, an output, or the cotangent of an output, by its number."""


@dataclass(frozen=True)
class GradientKernel:
    """A kernel for the cotangent of one input of another kernel.

    Attributes
    ----------
    func : PrimFunc
        In destination-passing style.
    arguments : list of Source
        The tensors that it takes before its result.
    sizes : list of (int, int or None)
        Scalars that it takes behind them: parameters of the other kernel, or extents of its
        parameters (number and axis) that no shape of an argument tells.
    """

    func: tirx.PrimFunc
    arguments: list[Source]
    sizes: list[tuple[int, int | None]]


def gradient_kernels(func: tirx.PrimFunc, inputs: int, outputs: int) -> list[GradientKernel | None]:
    """Return the kernels that compute the cotangents of a kernel's inputs.

    Parameters
    ----------
    func : PrimFunc
        In destination-passing style.
    inputs, outputs : int
        How many tensors it takes, and how many it computes; scalars may stand between them.

    Returns
    -------
    list of GradientKernel or None
        One per input; None for one that is not of floats, or that is not read.

    Raises
    ------
    MissingGradientError
        Its loops are not those of tensor expressions, or a derivative is not known.
    """
    program = expressions_of(func, outputs)
    sources: dict[tuple[int, int], Source] = {}
    for number, parameter in enumerate(program.parameters[:inputs]):
        if isinstance(parameter, te.Tensor):
            sources[tensor_key(parameter)] = ("input", number)
    heads: list[te.Tensor | None] = []
    saved: dict[tuple[int, int], te.Tensor] = {}
    for number, output in enumerate(program.outputs):
        head = _placeholder(output, f"{output.op.name}_ct") if is_float(output.dtype) else None
        heads.append(head)
        if head is not None:
            sources[tensor_key(head)] = ("cotangent", number)
        # What the forward pass returned is there to be read, so nothing of it is computed again.
        value = _placeholder(output, output.op.name)
        sources[tensor_key(value)] = ("output", number)
        saved[tensor_key(output)] = value
    wanted = [
        (number, parameter)
        for number, parameter in enumerate(program.parameters[:inputs])
        if isinstance(parameter, te.Tensor) and is_float(parameter.dtype)
    ]
    gradients = te_gradient(program.outputs, [tensor for _, tensor in wanted], heads)
    kernels: list[GradientKernel | None] = [None] * inputs
    for (number, _), gradient in zip(
        wanted, rewritten(gradients, lambda op: None, saved), strict=True
    ):
        kernels[number] = _kernel(gradient, sources, _places(program))
    return kernels


def _places(program: TensorProgram) -> dict[int, tuple[int, int | None]]:
    """Return where the caller of a kernel says what its scalars and symbolic extents are."""
    places: dict[int, tuple[int, int | None]] = {}
    results = iter(program.outputs)
    first_result = len(program.parameters) - len(program.outputs)
    for number, parameter in enumerate(program.parameters):
        tensor = next(results) if number >= first_result else parameter
        if isinstance(tensor, tvm.ir.Var):
            places.setdefault(identity(tensor), (number, None))
        elif tensor is not None:
            for axis, extent in enumerate(tensor.shape):
                if isinstance(extent, tvm.ir.Var):
                    places.setdefault(identity(extent), (number, axis))
    return places


def _placeholder(tensor: te.Tensor, name: str) -> te.Tensor:
    return te.placeholder(tensor.shape, str(tensor.dtype), name=name)


def _kernel(
    gradient: te.Tensor,
    sources: dict[tuple[int, int], Source],
    places: dict[int, tuple[int, int | None]],
) -> GradientKernel:
    """Return a gradient as a kernel that takes what it reads."""
    read = [
        tensor
        for op in operations(gradient)
        for tensor in outputs_of(op)
        if tensor_key(tensor) in sources
    ]
    told = {identity(e) for tensor in read for e in tensor.shape if isinstance(e, tvm.ir.Var)}
    sizes = [var for var in free_variables(gradient) if identity(var) not in told]
    func = kernel_of([*read, *sizes], [gradient])
    return GradientKernel(
        func,
        [sources[tensor_key(tensor)] for tensor in read],
        [places[identity(var)] for var in sizes],
    )
