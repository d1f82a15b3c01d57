"""The op of PyTorch that calls a model or one of its derivatives.

One op serves all models and all orders. Its arguments name a function by numbers and text, so that
`torch.compile` and `torch.export` see plain values, and its derivative is itself.
"""

from __future__ import annotations

from typing import Any

import torch
import tvm

from ..errors import InputError
from .derivative import ITSELF, from_text, to_text
from .differentiable import Differentiable, numbered

_SCHEMA = "(int function, str derivative, Tensor[] arguments) -> Tensor[]"


@torch.library.custom_op("graphgrad::call", mutates_args=(), schema=_SCHEMA)
def call(function: int, derivative: str, arguments: list[torch.Tensor]) -> list[torch.Tensor]:
    """The results of a model, or of one of its derivatives; see `Differentiable.call`."""
    return compute(numbered(function), derivative, arguments)


@call.register_fake
def _(function: int, derivative: str, arguments: list[torch.Tensor]) -> list[torch.Tensor]:
    steps = from_text(derivative)
    if steps == ITSELF:
        return empty_results(numbered(function), arguments)
    wrt, _ = steps[-1]
    return [_empty_like(arguments[position]) for position in wrt]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: list[torch.Tensor]) -> None:
    function, derivative, arguments = inputs
    save(ctx, numbered(function), derivative, arguments)


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
    results = function.call(from_text(derivative), arguments)
    return [torch.from_dlpack(result) for result in results]


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
    ctx: Any, function: Differentiable, derivative: str, arguments: list[torch.Tensor]
) -> None:
    """Keep for the backward pass what `gradients` reads."""
    ctx.function, ctx.derivative = function, derivative
    ctx.save_for_backward(*arguments)
    ctx.set_materialize_grads(False)


def gradients(
    ctx: Any, cotangents: list[torch.Tensor | None], needed: list[bool]
) -> list[torch.Tensor | None]:
    """The gradients of the arguments that need any, from the cotangents that there are."""
    wrt = tuple(position for position, is_needed in enumerate(needed) if is_needed)
    present = {position: ct for position, ct in enumerate(cotangents) if ct is not None}
    result: list[torch.Tensor | None] = [None] * len(needed)
    if not present or not wrt:
        return result
    derivative = to_text((*from_text(ctx.derivative), (wrt, tuple(present))))
    arguments = [*ctx.saved_tensors, *present.values()]
    for position, gradient in zip(
        wrt, call(ctx.function.number, derivative, arguments), strict=True
    ):
        result[position] = gradient
    return result


def _empty_like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def owned_tensor(array: Any) -> torch.Tensor:
    """A copy of a numpy array, in memory that kernels can read."""
    return torch.from_dlpack(tvm.runtime.tensor(array))
