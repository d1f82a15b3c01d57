"""The gradient of a kernel, as kernels: one for each of its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import tvm
from tvm import te, tirx

from ..backprop import is_float
from ..gradient import te_gradient
from ..graph import operations, outputs_of, rewritten
from ..walk import identity, tensor_key
from .expressions import expressions_of, kernel_of

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
    sizes : list of Var
        Symbolic extents of the other kernel that it takes behind them, as int64 scalars: those that
        no shape of an argument tells.
    """

    func: tirx.PrimFunc
    arguments: list[Source]
    sizes: list[Any]


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
        if parameter is not None:
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
        if parameter is not None and is_float(parameter.dtype)
    ]
    gradients = te_gradient(program.outputs, [tensor for _, tensor in wanted], heads)
    kernels: list[GradientKernel | None] = [None] * inputs
    for (number, _), gradient in zip(
        wanted, rewritten(gradients, lambda op: None, saved), strict=True
    ):
        kernels[number] = _kernel(gradient, sources)
    return kernels


def _placeholder(tensor: te.Tensor, name: str) -> te.Tensor:
    return te.placeholder(tensor.shape, str(tensor.dtype), name=name)


def _kernel(gradient: te.Tensor, sources: dict[tuple[int, int], Source]) -> GradientKernel:
    """Return a gradient as a kernel that takes what it reads."""
    read = [
        tensor
        for op in operations(gradient)
        for tensor in outputs_of(op)
        if tensor_key(tensor) in sources
    ]
    told = {identity(e) for tensor in read for e in tensor.shape if isinstance(e, tvm.ir.Var)}
    sizes = [var for var in _variables(gradient, read) if identity(var) not in told]
    func = kernel_of([*read, *sizes], [gradient])
    return GradientKernel(func, [sources[tensor_key(tensor)] for tensor in read], sizes)


def _variables(gradient: te.Tensor, read: Sequence[te.Tensor]) -> list[Any]:
    """Return the symbolic extents in the shapes of a gradient and of what it reads."""
    found: dict[int, Any] = {}
    for tensor in [gradient, *read]:
        for extent in tensor.shape:
            for var in tirx.analysis.undefined_vars(extent) if not isinstance(extent, int) else []:
                found.setdefault(identity(var), var)
    return list(found.values())
