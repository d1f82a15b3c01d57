"""A kernel as an op of PyTorch."""

from __future__ import annotations

from typing import Any

import torch

from ..train.recent import Limit, Recent
from .derivative import ITSELF, to_text
from .differentiable import Differentiable
from .kernels import Kernel, Signature
from .torch_ops import compute, empty_results, gradients, save

_ITSELF = to_text(ITSELF)
_MOST_SIGNATURES = 64
"""Combinations of shapes and dtypes that are kept compiled."""


def define(name: str, kernel: Kernel, target: Any) -> Any:
    """Register an op of PyTorch that calls a kernel, with its derivatives; see `torch_op`."""
    forms: Recent[Signature, Differentiable] = Recent(Limit(_MOST_SIGNATURES))

    def form(arguments: tuple[torch.Tensor, ...]) -> Differentiable:
        signature = tuple(
            (tuple(map(int, argument.shape)), str(argument.dtype).removeprefix("torch."))
            for argument in arguments
        )
        key = () if kernel.is_script else signature  # a PrimFunc says shapes and dtypes itself
        return forms.get(key, lambda: kernel.form(signature, target))

    def run(*arguments: torch.Tensor) -> Any:
        return _as_returned(kernel, compute(form(arguments), _ITSELF, list(arguments)))

    def fake(*arguments: torch.Tensor) -> Any:
        return _as_returned(kernel, empty_results(form(arguments), list(arguments)))

    def setup_context(ctx: Any, inputs: tuple[torch.Tensor, ...], output: Any) -> None:
        save(ctx, form(inputs), _ITSELF, list(inputs), [])

    def backward(ctx: Any, *cotangents: torch.Tensor | None) -> Any:
        return tuple(gradients(ctx, list(cotangents), list(ctx.needs_input_grad)))

    tensors = ", ".join(f"Tensor {argument}" for argument in kernel.arguments)
    results = "Tensor" if kernel.outputs == 1 else f"({', '.join(['Tensor'] * kernel.outputs)})"
    op = torch.library.custom_op(name, run, mutates_args=(), schema=f"({tensors}) -> {results}")
    op.register_fake(fake)
    op.register_autograd(backward, setup_context=setup_context)
    return op


def _as_returned(kernel: Kernel, results: list[torch.Tensor]) -> Any:
    return results[0] if kernel.outputs == 1 else tuple(results)
