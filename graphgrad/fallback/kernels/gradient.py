"""The gradient of a kernel, as kernels: one for each of its inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import tvm
from tvm import te, tirx

from ..backprop import is_float
from ..gradient import te_gradient
from ..graph import operations, outputs_of, rewritten
from ..memo import DERIVED
from ..raising.prim_func import TensorProgram
from ..walk import identity, tensor_key
from .expressions import expressions_of, free_variables, kernel_of
from .extents import renamed_extent
from .shared import shared_stages

Source = tuple[Literal["input", "output", "cotangent", "shared"], int]
"""A tensor by its number: an input of a call, an output, the cotangent of an output, or what was
computed for several cotangents."""

Place = tuple[int, int | None]
"""A scalar parameter of a kernel by its number, or the extent of a parameter's axis."""


@dataclass(frozen=True)
class GradientKernel:
    """A kernel for the cotangent of one input of another kernel, or for what several need.

    Attributes
    ----------
    func : PrimFunc
        In destination-passing style.
    arguments : list of Source
        The tensors that it takes before its result.
    sizes : list of Place
        Scalars of the other kernel that it takes behind them, those that no shape of an argument
        tells.
    results : list of Tensor
        What it computes; of these the shapes and dtypes count.
    places : dict
        Where the other kernel has the variables of those shapes, by their identities.
    """

    func: tirx.PrimFunc
    arguments: list[Source]
    sizes: list[Place]
    results: list[te.Tensor]
    places: dict[int, Place]

    def types(self, size: Callable[[int, int | None], Any]) -> list[tuple[list[Any], str]]:
        """Return the shapes and dtypes of the results, given what is at a place."""

        def known(var: Any) -> Any:
            return size(*self.places[identity(var)])

        def outside(extent: Any) -> Any:
            # A product of numbers is no number to Relax.
            return tvm.sym.Analyzer().simplify(renamed_extent(extent, "int64", known))

        return [(list(map(outside, tensor.shape)), str(tensor.dtype)) for tensor in self.results]


@dataclass(frozen=True)
class GradientKernels:
    """The kernels of a gradient.

    Attributes
    ----------
    shared : list of GradientKernel
        What several of the others read, in order. Their results are numbered through.
    cotangents : list of GradientKernel or None
        One per input; None for one that is not of floats, or that is not read.
    """

    shared: list[GradientKernel]
    cotangents: list[GradientKernel | None]


def gradient_kernels(func: tirx.PrimFunc, inputs: int, outputs: int) -> GradientKernels:
    """Return the kernels that compute the cotangents of a kernel's inputs.

    Those of equal kernels are derived once.

    Parameters
    ----------
    func : PrimFunc
        In destination-passing style.
    inputs, outputs : int
        How many tensors it takes, and how many it computes; scalars may stand between them.

    Raises
    ------
    MissingGradientError
        Its loops are not those of tensor expressions, or a derivative is not known.
    """
    key = [func.without_attr("global_symbol"), inputs, outputs]
    return DERIVED.get(key, lambda: _derived(func, inputs, outputs))


def _derived(func: tirx.PrimFunc, inputs: int, outputs: int) -> GradientKernels:
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
    gradients = rewritten(gradients, lambda op: None, saved)
    places = _places(program)
    shared: list[GradientKernel] = []
    kept: dict[tuple[int, int], te.Tensor] = {}
    for stage in shared_stages(gradients):
        results = outputs_of(stage)
        shared.append(_kernel(rewritten(results, lambda op: None, kept), sources, places))
        for result in results:
            value = _placeholder(result, result.op.name)
            sources[tensor_key(value)] = ("shared", len(kept))
            kept[tensor_key(result)] = value
    cotangents: list[GradientKernel | None] = [None] * inputs
    for (number, _), gradient in zip(
        wanted, rewritten(gradients, lambda op: None, kept), strict=True
    ):
        cotangents[number] = _kernel([gradient], sources, places)
    return GradientKernels(shared, cotangents)


def _places(program: TensorProgram) -> dict[int, Place]:
    """Return where the caller of a kernel says what its scalars and symbolic extents are."""
    places: dict[int, Place] = {}
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
    results: list[te.Tensor], sources: dict[tuple[int, int], Source], places: dict[int, Place]
) -> GradientKernel:
    """Return some tensors as a kernel that takes what they are computed from."""
    read = [
        tensor
        for op in operations(*results)
        for tensor in outputs_of(op)
        if tensor_key(tensor) in sources
    ]
    told = {identity(e) for tensor in read for e in tensor.shape if isinstance(e, tvm.ir.Var)}
    sizes = [var for var in free_variables(*results) if identity(var) not in told]
    return GradientKernel(
        kernel_of([*read, *sizes], results),
        [sources[tensor_key(tensor)] for tensor in read],
        [places[identity(var)] for var in sizes],
        results,
        places,
    )
