"""The op of PyTorch that calls a model or one of its derivatives.

One op serves all models and all orders. Its arguments name a function by numbers and text, so that
`torch.compile` and `torch.export` see plain values, and its derivative is itself.
"""

from __future__ import annotations

from typing import Any

import torch
import tvm

from ..errors import InputError
from .derivative import ITSELF, Derivative, flat_types, from_text, to_text
from .differentiable import Differentiable, numbered

_SCHEMA = "(int function, str derivative, Tensor[] arguments) -> Tensor[]"


@torch.library.custom_op("graphgrad::call", mutates_args=(), schema=_SCHEMA)
def call(function: int, derivative: str, arguments: list[torch.Tensor]) -> list[torch.Tensor]:
    """The results of a model, or of one of its derivatives; see `Differentiable.call`."""
    return compute(numbered(function), derivative, arguments)


@call.register_fake
def _(function: int, derivative: str, arguments: list[torch.Tensor]) -> list[torch.Tensor]:
    part, steps = from_text(derivative)
    if part == "forward":
        return _kept_results(numbered(function), steps, arguments)
    if steps == ITSELF:
        return empty_results(numbered(function), arguments)
    wrt, _ = steps[-1]
    return [_empty_like(arguments[position]) for position in wrt]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: list[torch.Tensor]) -> None:
    function, derivative, arguments = inputs
    save(ctx, numbered(function), derivative, arguments, output)


def _backward(ctx: Any, cotangents: list[torch.Tensor | None]) -> tuple[Any, ...]:
    return None, None, gradients(ctx, cotangents, ctx.needs_input_grad[2])


call.register_autograd(_backward, setup_context=_setup_context)


def compute(
    function: Differentiable, derivative: str, arguments: list[torch.Tensor]
) -> list[torch.Tensor]:
    """The results of a function or derivative, as tensors of PyTorch in the memory they have.

    Raises
    ------
    InputError
        An argument does not fit, or is on another device than the processor.
    """
    for position, argument in enumerate(arguments):
        if argument.device.type != "cpu":
            raise InputError(
                f"{function.label(position)} is on the device {str(argument.device)!r}, but the "
                "model runs on the processor: move it with .cpu()"
            )
    part, steps = from_text(derivative)
    return [torch.from_dlpack(result) for result in function.call(steps, arguments, part)]


def _kept_results(
    function: Differentiable, steps: Derivative, arguments: list[torch.Tensor]
) -> list[torch.Tensor]:
    """Tensors without values, as the results of a forward part."""
    parts = function.split(steps, function.input_shapes(arguments))
    assert parts is not None
    types = flat_types(parts.forward.result.ty)
    return [
        torch.empty([int(n) for n in ty.shape], dtype=getattr(torch, str(ty.dtype))) for ty in types
    ]


def empty_results(function: Differentiable, arguments: list[torch.Tensor]) -> list[torch.Tensor]:
    """Tensors without values, as the model's results for such arguments.

    Raises
    ------
    InputError
        Arguments have no shapes of the model's, or are on several devices.
    """
    device = arguments[0].device if arguments else torch.device("cpu")
    for position, argument in enumerate(arguments):
        if argument.device != device:
            raise InputError(
                f"{function.label(position)} is on the device {str(argument.device)!r}, but "
                f"{function.label(0)} on {str(device)!r}"
            )
    types = function.result_types([argument.shape for argument in arguments])
    return [torch.empty(ty.shape, dtype=getattr(torch, ty.dtype), device=device) for ty in types]


def save(
    ctx: Any,
    function: Differentiable,
    derivative: str,
    arguments: list[torch.Tensor],
    results: list[torch.Tensor],
) -> None:
    """Keep for the backward pass what `gradients` reads."""
    ctx.function, ctx.derivative, ctx.count = function, derivative, len(arguments)
    ctx.kept = 0
    part, steps = from_text(derivative)
    kept: list[torch.Tensor] = []
    if part != "whole":
        parts = function.split(steps, function.input_shapes(arguments))
        assert parts is not None
        ctx.kept = len(parts.kept)
        if part == "forward":
            kept = [results[position] for position in parts.kept]
            # A derivative is that of the function, whatever it keeps.
            ctx.mark_non_differentiable(*results[parts.count :])
    ctx.save_for_backward(*arguments, *kept)
    ctx.set_materialize_grads(False)


def gradients(
    ctx: Any, cotangents: list[torch.Tensor | None], needed: list[bool]
) -> list[torch.Tensor | None]:
    """The gradients of the arguments that need any, from the cotangents that there are."""
    part, steps = from_text(ctx.derivative)
    arguments, kept = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
    if part == "backward":
        # What was kept is a function of the other arguments, whose gradient is that of all.
        arguments = arguments[: ctx.count - ctx.kept]
    elif part == "forward":
        *before, step = steps
        steps = tuple(before)
    wrt = tuple(n for n, is_needed in enumerate(needed[: len(arguments)]) if is_needed)
    present = {n: cotangent for n, cotangent in enumerate(cotangents) if cotangent is not None}
    result: list[torch.Tensor | None] = [None] * len(needed)
    if not present or not wrt:
        return result
    is_foreseen = part == "forward" and (wrt, tuple(present)) == step
    text = to_text((*steps, (wrt, tuple(present))), "backward" if is_foreseen else "whole")
    given = [*arguments, *present.values(), *(kept if is_foreseen else ())]
    for position, gradient in zip(wrt, call(ctx.function.number, text, given), strict=True):
        result[position] = gradient
    return result


def _empty_like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def owned_tensor(array: Any) -> torch.Tensor:
    """A copy of a numpy array, in memory that kernels can read."""
    return torch.from_dlpack(tvm.runtime.tensor(array))
