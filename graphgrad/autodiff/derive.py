"""Derived rules for ops that have none: from their legalization, and from their kernels' loops.

An op without a rule is replaced by the kernels that it is lowered to, and a kernel's gradient is
derived from its tensor expressions (`graphgrad.fallback`). A derived gradient is a kernel too, one
for each input, so it can be differentiated again. Where the gradient would have to recompute costly
intermediates of a kernel, the kernel is first replaced by one that returns them (*saves* them).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import relax, tirx

from ..errors import MissingGradientError
from ..fallback.kernels.expressions import kernel_key
from ..fallback.kernels.gradient import (
    GradientKernel,
    derivation_of,
    gradient_kernels,
    saved_output_count,
    saving_kernel,
)
from ..fallback.kernels.in_place import make_out_of_place
from ..ir.calls import callee, data_of, result_types
from ..ir.tensor import Tensor, expression_of, same_shape
from ..ops.call_te import KernelBuilder
from ..ops.legalize import lower_call, lowering_of
from ..registry.rule import Rule

KERNEL_CALLS = ("relax.call_tir", "relax.call_tir_inplace")


def derive_rule(call: Any, kernels: dict[Any, tirx.PrimFunc]) -> Rule:
    """A rule for a call that has no registered rule.

    Parameters
    ----------
    call : relax.Call
    kernels : dict
        The PrimFuncs that may be called, by GlobalVar.

    Raises
    ------
    MissingGradientError
        No rule can be derived; the error says why.
    """
    if isinstance(call.op, tvm.ir.Op):
        if call.op.name in KERNEL_CALLS and call.args[0] in kernels:
            if call.op.name == "relax.call_tir_inplace":
                return _in_place_rule(call, kernels[call.args[0]])
            return _kernel_rule(call, kernels[call.args[0]])
        legalize = lowering_of(call.op)
        if legalize is not None:
            return _legalization_rule(call, legalize)
    raise MissingGradientError(_unknown(call))


def _unknown(call: Any) -> str:
    """The reason why no rule can be derived for a call."""
    if isinstance(call.op, relax.Var):
        return "the function that is called is not known"
    if name := callee(call):
        return (
            "what a packed function computes is unknown; say its gradient by "
            f"graphgrad.register_gradient({name!r})"
        )
    return "no rule is registered, and it is lowered to nothing that one could be derived from"


def _legalization_rule(call: Any, legalize: Callable[[Any, Any], Any]) -> Rule:
    """A composite rule that states a call as the kernels that it is lowered to."""

    def composite(*inputs: Any) -> Any:
        emitter = next(_tensors(inputs)).emitter
        arguments = [expression_of(value) for value in inputs]
        copied_call = relax.Call(call.op, arguments, call.attrs, call.ty_args, call.span)
        builder = KernelBuilder(emitter.builder)
        return emitter.emit(lower_call(legalize, builder, builder.normalize(copied_call)))

    return Rule(str(call.op.name), "composite", composite, origin="derived")


def _tensors(values: Sequence[Any]) -> Any:
    """Yield the tensors among values, also those in lists."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list):
            yield from _tensors(value)


class _KernelReplacement:
    """The function of a composite rule that calls another kernel in place of one.

    Parameters
    ----------
    call : relax.Call
    kernel : PrimFunc
        The kernel that it calls.
    replacement : PrimFunc
        The kernel to be called instead; it may return more results.
    name : str
        The name of the latter.
    extra_types : callable
        Returns the types of the additional results, given a function from a source
        (`fallback.kernels.gradient.SizeSource`) to the size or extent that the call has there.
    """

    def __init__(
        self,
        call: Any,
        kernel: tirx.PrimFunc,
        replacement: tirx.PrimFunc,
        name: str,
        extra_types: Callable[[Any], list[tuple[list[Any], str]]] = lambda size: [],
    ):
        self.key = kernel_key(kernel)
        self._result = call.ty_args[0]
        self._replacement = replacement
        self._name = name
        self._extra_types = extra_types

    def __call__(self, *inputs: Any) -> Any:
        """Emit the call of the other kernel; the results of the original one."""
        types = result_types(self._result)

        def size(number: int, axis: int | None) -> Any:
            if number >= len(inputs):
                return types[number - len(inputs)].shape[axis]
            return inputs[number] if axis is None else inputs[number].shape[axis]

        extra = [relax.TensorType(shape, dtype) for shape, dtype in self._extra_types(size)]
        emitter = next(_tensors(inputs)).emitter
        variable = emitter.builder.add_func(self._replacement, self._name)
        results = emitter.emit(relax.call_tir(variable, expression_of(inputs), [*types, *extra]))
        if not isinstance(results, list):
            return results
        return results[: len(types)] if isinstance(self._result, relax.TupleType) else results[0]


def _in_place_rule(call: Any, func: tirx.PrimFunc) -> Rule:
    """A composite rule that replaces a kernel by one which does not overwrite its arguments.

    A gradient reads the old elements of the arguments, so these must last until the reverse sweep.
    """
    name = call.args[0].name_hint
    pure = make_out_of_place(func, [int(index) for index in call.attrs.inplace_indices])
    composite = _KernelReplacement(call, func, pure, f"{name}_out_of_place")
    return Rule(f"relax.call_tir_inplace({name})", "composite", composite, origin="derived")


def _kernel_rule(call: Any, func: tirx.PrimFunc) -> Rule:
    """A rule for a call of a kernel; that may first be replaced by one that saves intermediates."""
    saving = saving_kernel(func, len(data_of(call)), len(result_types(call.ty_args[0])))
    if saving is None:
        return _gradient_rule(call, func)
    name = call.args[0].name_hint
    composite = _KernelReplacement(call, func, saving.func, f"{name}_saving", saving.types)
    return Rule(f"relax.call_tir({name})", "composite", composite, origin="derived")


def _gradient_rule(call: Any, func: tirx.PrimFunc) -> Rule:
    """A rule that calls the gradient kernels of a kernel."""
    name = call.args[0].name_hint
    count = len(result_types(call.ty_args[0]))
    saved = range(max(count - saved_output_count(func), 0), count)

    # What cannot be derived is refused here, before anything is written.
    derivation_of(func, len(data_of(call)), count, saved)

    def rule(inputs: Any, outputs: Any, cotangents: Any, attrs: Any) -> list[Any]:
        # Only a gradient of the gradient sends cotangents to what was saved for it.
        constant = [n for n, ct in enumerate(cotangents) if _is_zero(ct)]
        kernels = gradient_kernels(func, len(data_of(call)), count, constant)
        shared: list[Tensor] = []
        tensors = {"input": inputs, "output": outputs, "cotangent": cotangents, "shared": shared}

        def called(kernel: GradientKernel, label: str) -> list[Tensor]:
            arguments = [tensors[kind][index] for kind, index in kernel.arguments]
            return _called(kernel, f"{name}_{label}", arguments, [*inputs, *outputs])

        for number, kernel in enumerate(kernels.shared):
            shared += called(kernel, f"ct_shared{number}")
        results: list[Tensor | None] = []
        for number, cotangent_source in enumerate(kernels.cotangents):
            if isinstance(cotangent_source, GradientKernel):
                (value,) = called(cotangent_source, f"ct{number}")
                results.append(_match_primal_shape(value, inputs[number]))
            # The cotangent is a tensor that exists already.
            elif cotangent_source is not None:
                kind, index = cotangent_source
                results.append(_match_primal_shape(tensors[kind][index], inputs[number]))
            else:
                results.append(None)
        return results

    return Rule(f"relax.call_tir({name})", "general", rule, origin="derived")


def _is_zero(cotangent: Tensor | None) -> bool:
    return cotangent is None or cotangent.fill == 0.0


def _match_primal_shape(cotangent: Tensor, primal: Tensor) -> Tensor:
    """A cotangent in its primal's shape: cast, if symbolic extents are not provably equal."""
    if same_shape(cotangent.shape, primal.shape):
        return cotangent
    emitter = cotangent.emitter
    cast: Tensor = emitter.lift(emitter.builder.match_cast(cotangent.expr, primal.ty))
    return cast


def _called(
    kernel: GradientKernel, name: str, arguments: Sequence[Tensor], values: Sequence[Any]
) -> list[Tensor]:
    """Emit the call of a gradient kernel.

    Parameters
    ----------
    kernel : GradientKernel
    name : str
        The name that it gets.
    arguments : sequence of Tensor
    values : sequence
        The inputs and the outputs of the kernel that is differentiated, which sizes are read off.
    """
    emitter = next(_tensors(values)).emitter

    def size(number: int, axis: int | None) -> Any:
        return values[number] if axis is None else values[number].shape[axis]

    variable = emitter.builder.add_func(kernel.func, name)
    sizes = [size(*size_source) for size_source in kernel.sizes]
    data = relax.Tuple([*(argument.expr for argument in arguments), *map(relax.prim_value, sizes)])
    types = [relax.TensorType(shape, dtype) for shape, dtype in kernel.types(size)]
    results = emitter.emit(relax.call_tir(variable, data, types))
    return results if isinstance(results, list) else [results]
