"""Rules of what steers differentiation: stop-gradients, checkpoints, copies."""

from __future__ import annotations

from ..ir.tensor import Tensor
from .rule import linear, nondifferentiable
from .sample import sample


@linear("relax.grad.start_checkpoint", samples=[sample((2, 3)), sample(("n",))])
def start_checkpoint(x: Tensor, ct: Tensor) -> Tensor:
    """x̄ = ȳ"""
    return ct


@linear("relax.grad.end_checkpoint", samples=[sample((2, 3)), sample(("n",))])
def end_checkpoint(x: Tensor, ct: Tensor) -> Tensor:
    """x̄ = ȳ"""
    return ct


@linear("graphgrad.copy", samples=[sample((2, 3)), sample(("n",)), sample(())])
def copy(x: Tensor, ct: Tensor) -> Tensor:
    """x̄ = ȳ"""
    return ct


nondifferentiable("relax.grad.no_grad")
