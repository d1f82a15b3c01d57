"""The gradient of a kernel, as kernels: one for each of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import tvm
from tvm import te, tirx

from ..backprop import is_float
from ..copies import original, read_through_copies, reading_zeros
from ..gradient import gradient_expressions
from ..graph import Key, operations, outputs_of, rewritten
from ..lift.prim_func import TensorProgram
from ..memo import DERIVED
from ..scans.scan import StackedStep
from ..scans.step_sums import keep_step_sums
from ..walk import identity, tensor_key
from .choices import select_without_branching
from .expressions import (
    Expressions,
    attached,
    expressions_of,
    free_variables,
    kernel_key,
    kernel_of,
)
from .extents import rename_extent
from .narrow_maps import narrow_maps
from .saved import (
    NARROW_DTYPES,
    elements,
    is_worth,
    most_elements,
    widen_saved,
    work_of,
    worth_saving,
)
from .shared import shared_stages

Source = tuple[Literal["input", "output", "cotangent", "shared"], int]
"""A tensor by its number: an input of a call, an output, the cotangent of an output, or what was
computed for several cotangents."""

SizeSource = tuple[int, int | None]
"""A scalar parameter of a kernel by its number, or the extent of a parameter's axis."""

_SAVED = "graphgrad.saved"
"""Attribute of a kernel: how many of its outputs, the last ones, are there for its gradient.

Its span are the `Expressions` of the kernel that does not return them: the gradient is of those.
"""


@dataclass(frozen=True)
class Results:
    """What a kernel computes, in terms of another kernel.

    Attributes
    ----------
    results : list of Tensor
        Of these the shapes and dtypes count.
    size_sources : dict
        Where the other kernel has the variables of those shapes, by their identities.
    """

    results: list[te.Tensor]
    size_sources: dict[int, SizeSource]

    def types(self, size: Callable[[int, int | None], Any]) -> list[tuple[list[Any], str]]:
        """The shapes and dtypes of the results, given the size that a source has."""

        def value_of(var: Any) -> Any:
            return size(*self.size_sources[identity(var)])

        def in_caller(extent: Any) -> Any:
            # A product of numbers is no number to Relax.
            return tvm.sym.Analyzer().simplify(rename_extent(extent, "int64", value_of))

        return [(list(map(in_caller, tensor.shape)), str(tensor.dtype)) for tensor in self.results]


@dataclass(frozen=True)
class GradientKernel(Results):
    """A kernel for the cotangent of one input of another kernel, or for what several need.

    Attributes
    ----------
    func : PrimFunc
        In destination-passing style.
    arguments : list of Source
        The tensors that it takes before its result.
    sizes : list of SizeSource
        Scalars of the other kernel that it takes behind them, those that no shape of an argument
        tells.
    """

    func: tirx.PrimFunc
    arguments: list[Source]
    sizes: list[SizeSource]


@dataclass(frozen=True)
class SavingKernel(Results):
    """A kernel in the place of another one, which returns intermediates behind its results.

    Attributes
    ----------
    func : PrimFunc
        In destination-passing style. It takes what the other one takes.
    """

    func: tirx.PrimFunc


@dataclass(frozen=True)
class GradientKernels:
    """The kernels of a gradient.

    Attributes
    ----------
    shared : list of GradientKernel
        What several of the others read, in order. Their results are numbered through.
    cotangents : list of GradientKernel, Source or None
        One per input: what computes it, or the tensor that it is. None for one that is not of
        floats, or that is not read.
    """

    shared: list[GradientKernel]
    cotangents: list[GradientKernel | Source | None]


def saved_output_count(func: tirx.PrimFunc) -> int:
    """How many of a kernel's outputs, the last ones, a `SavingKernel` has added."""
    return int(func.attrs[_SAVED]) if func.attrs and _SAVED in func.attrs else 0


def saving_kernel(func: tirx.PrimFunc, inputs: int, outputs: int) -> SavingKernel | None:
    """A kernel that computes what another one does, and saves what its gradient reads.

    Parameters
    ----------
    func : PrimFunc
        In destination-passing style.
    inputs, outputs : int
        How many tensors it takes, and how many it computes; scalars may stand between them.

    Returns
    -------
    SavingKernel or None
        None if nothing is worth saving (see `saved`), or it saves something already. A kernel that
        carries no tensor expressions stays as it was written, too.

    Raises
    ------
    MissingGradientError
        A derivative is not known.
    """
    made_of = None if saved_output_count(func) else attached(func)
    if made_of is None:
        return None
    key = [_SAVED, made_of.key(), inputs, outputs]
    return DERIVED.get(key, lambda: _saving(func, made_of, inputs))


def gradient_kernels(
    func: tirx.PrimFunc, inputs: int, outputs: int, constant: Sequence[int] = ()
) -> GradientKernels:
    """The kernels that compute the cotangents of a kernel's inputs.

    Those of equal kernels are derived once.

    Parameters
    ----------
    func : PrimFunc
        In destination-passing style.
    inputs, outputs : int
        How many tensors it takes, and how many it computes; scalars may stand between them.
    constant : sequence of int
        The outputs that have no cotangent, though they may be of floats; the kernels take none.

    Raises
    ------
    MissingGradientError
        Its loops are not those of tensor expressions, or a derivative is not known.
    """
    derivation = derivation_of(func, inputs, outputs, constant)
    before = _before_saving(func, outputs, constant)
    key = _key(func, before, inputs, outputs, constant)
    return DERIVED.get(key, lambda: derivation.kernels(constant))


def derivation_of(
    func: tirx.PrimFunc, inputs: int, outputs: int, constant: Sequence[int] = ()
) -> Derivation:
    """The gradient that `gradient_kernels` has the kernels of; it raises what that raises.

    Of what is constant, only outputs that were saved make a difference.
    """
    first_saved = outputs - saved_output_count(func)
    constant = [number for number in constant if number >= first_saved]
    before = _before_saving(func, outputs, constant)

    def derived() -> Derivation:
        if before is None:
            return Derivation(expressions_of(func, outputs), inputs, constant)
        # The choice is made again, so that outputs have the numbers that the saving kernel gave.
        derivation = Derivation(before.program(), inputs)
        derivation.save()
        return derivation

    return DERIVED.get(["derivation", *_key(func, before, inputs, outputs, constant)], derived)


def _key(
    func: tirx.PrimFunc,
    before: Expressions | None,
    inputs: int,
    outputs: int,
    constant: Sequence[int],
) -> list[Any]:
    """All that a gradient follows from."""
    made_of = [kernel_key(func), None if before is None else before.key()]
    return [*made_of, inputs, outputs, list(constant)]


def _before_saving(
    func: tirx.PrimFunc, outputs: int, constant: Sequence[int]
) -> Expressions | None:
    """What a kernel computed before it was made to save more.

    None for any other kernel, and where what is saved has cotangents.
    """
    saved = saved_output_count(func)
    # A cotangent of a saved value makes the kernel one like any other, with more outputs.
    if not saved or not {*range(outputs - saved, outputs)} <= {*constant}:
        return None
    before = func.attrs[_SAVED].span if attached(func) is not None else None
    return before if before is not None and len(before.outputs) else None


def _saving(func: tirx.PrimFunc, expressions: Expressions, inputs: int) -> SavingKernel | None:
    """As `saving_kernel`; the gradient, which is known then, is kept."""
    program = expressions.program()
    count = len(program.outputs)
    derivation = Derivation(program, inputs)
    saved = derivation.save()
    if not saved:
        key = _key(func, None, inputs, count, ())
        DERIVED.get(["derivation", *key], lambda: derivation)
        return None
    parameters = program.parameters[: len(program.parameters) - count]
    mark = tirx.IntImm("int64", len(saved), expressions)
    saving = kernel_of(parameters, derivation.outputs).with_attr(_SAVED, mark)
    saved_numbers = range(count, count + len(saved))
    key = _key(saving, expressions, inputs, count + len(saved), saved_numbers)
    DERIVED.get(["derivation", *key], lambda: derivation)
    return SavingKernel(saved, derivation.size_sources, saving)


class Derivation:
    """The gradient of some outputs by some inputs, and in which kernels it is computed.

    Attributes
    ----------
    outputs : list of Tensor
        What the forward kernel returns.
    size_sources : dict
        Where its callers say what its scalars and symbolic extents are.
    """

    def __init__(self, program: TensorProgram, inputs: int, constant: Sequence[int] = ()):
        self.outputs = program.outputs
        self.size_sources = _size_sources(program)
        self._inputs: list[Any] = program.parameters[:inputs]
        self._sources: dict[Key, Source] = {}
        self._alive: list[te.Tensor] = []
        for number, parameter in enumerate(self._inputs):
            if isinstance(parameter, te.Tensor):
                self._add_source(parameter, ("input", number))
        self._heads: list[te.Tensor | None] = []
        for number, output in enumerate(self.outputs):
            has_head = is_float(output.dtype) and number not in constant
            head = _placeholder(output, f"{output.op.name}_ct") if has_head else None
            self._heads.append(head)
            if head is not None:
                self._add_source(head, ("cotangent", number))
        self._wanted = [
            number
            for number, parameter in enumerate(self._inputs)
            if isinstance(parameter, te.Tensor) and is_float(parameter.dtype)
        ]
        tensors = [self._inputs[number] for number in self._wanted]
        self._steps: list[StackedStep] = []
        self._gradients = gradient_expressions(
            self.outputs, tensors, self._heads, read_outputs=True, steps=self._steps
        )

    def save(self) -> list[te.Tensor]:
        """Add to the outputs what is worth saving, and return it."""
        arguments = [parameter for parameter in self._inputs if isinstance(parameter, te.Tensor)]
        sums = self._keep_step_sums(arguments)
        chosen = sums + worth_saving([*self.outputs, *sums], self._gradients, arguments)
        tensors, saved = widen_saved([*self.outputs, *self._gradients], chosen)
        count = len(self.outputs)
        self.outputs, self._gradients = [*tensors[:count], *saved], tensors[count:]
        return saved

    def _keep_step_sums(self, arguments: Sequence[te.Tensor]) -> list[te.Tensor]:
        """Let scans keep the sums of their steps that are to be saved, and return these."""
        most = most_elements(self.outputs, arguments)

        def is_worth_keeping(tensor: te.Tensor) -> bool:
            size = elements(tensor)
            is_narrow = str(tensor.dtype) in NARROW_DTYPES
            return not is_narrow and size <= most and is_worth(work_of(tensor.op), size)

        count, all_tensors = len(self.outputs), [*self.outputs, *self._gradients]
        kept, sums = keep_step_sums(all_tensors, self.outputs, self._steps, is_worth_keeping)
        self.outputs, self._gradients = kept[:count], kept[count:]
        return sums

    def kernels(self, constant: Sequence[int] = ()) -> GradientKernels:
        """The gradient in kernels, with zero as the cotangents of some outputs."""
        zeros = [head for n, head in enumerate(self._heads) if n in constant and head is not None]
        given = reading_zeros(self._given_outputs(), zeros)
        gradients = select_without_branching(read_through_copies(given))
        gradients = narrow_maps(gradients)
        shared: list[GradientKernel] = []
        placeholders: dict[Key, te.Tensor] = {}
        for stage in shared_stages(gradients):
            results = outputs_of(stage)
            # What earlier shared kernels have computed is read from them, not computed again.
            shared.append(self._kernel(rewritten(results, lambda op: None, placeholders)))
            for result in results:
                value = _placeholder(result, result.op.name)
                self._add_source(value, ("shared", len(placeholders)))
                placeholders[tensor_key(result)] = value
        gradients = rewritten(gradients, lambda op: None, placeholders)
        cotangents: list[GradientKernel | Source | None] = [None] * len(self._inputs)
        for number, gradient in zip(self._wanted, gradients, strict=True):
            # A gradient that is a tensor at hand, such as the cotangent, takes no kernel.
            source = self._sources.get(tensor_key(original(gradient)))
            cotangents[number] = self._kernel([gradient]) if source is None else source
        return GradientKernels(shared, cotangents)

    def _add_source(self, tensor: te.Tensor, source: Source) -> None:
        """Say where a tensor comes from that kernels may take."""
        self._sources[tensor_key(tensor)] = source
        self._alive.append(tensor)  # what is gone leaves its identity to others

    def _given_outputs(self) -> list[te.Tensor]:
        """The gradients with nothing computed again that the forward pass returned."""
        returned: dict[Key, te.Tensor] = {}
        for number, output in enumerate(self.outputs):
            value = _placeholder(output, output.op.name)
            self._add_source(value, ("output", number))
            returned[tensor_key(output)] = value
        return rewritten(self._gradients, lambda op: None, returned)

    def _kernel(self, results: list[te.Tensor]) -> GradientKernel:
        """Some tensors as a kernel that takes what they are computed from."""
        read = [
            tensor
            for op in operations(*results)
            for tensor in outputs_of(op)
            if tensor_key(tensor) in self._sources
        ]
        from_shapes = {
            identity(e) for tensor in read for e in tensor.shape if isinstance(e, tvm.ir.Var)
        }
        # A kernel takes as scalars only what it cannot read off the shape of an argument.
        sizes = [var for var in free_variables(*results) if identity(var) not in from_shapes]
        return GradientKernel(
            results,
            self.size_sources,
            kernel_of([*read, *sizes], results),
            [self._sources[tensor_key(tensor)] for tensor in read],
            [self.size_sources[identity(var)] for var in sizes],
        )


def _size_sources(program: TensorProgram) -> dict[int, SizeSource]:
    """Where the caller of a kernel says what its scalars and symbolic extents are."""
    size_sources: dict[int, SizeSource] = {}
    results = iter(program.outputs)
    first_result = len(program.parameters) - len(program.outputs)
    for number, parameter in enumerate(program.parameters):
        tensor = next(results) if number >= first_result else parameter
        if isinstance(tensor, tvm.ir.Var):
            size_sources.setdefault(identity(tensor), (number, None))
        elif tensor is not None:
            for axis, extent in enumerate(tensor.shape):
                if isinstance(extent, tvm.ir.Var):
                    size_sources.setdefault(identity(extent), (number, axis))
    return size_sources


def _placeholder(tensor: te.Tensor, name: str) -> te.Tensor:
    return te.placeholder(tensor.shape, str(tensor.dtype), name=name)
