"""Rules of activations."""

from __future__ import annotations

from typing import Any

from ..ops import functional as op
from ..ops.tensor import Tensor
from .elementwise import kinked_samples, unary_samples
from .rule import elementwise, register_gradient


@register_gradient("relax.nn.relu", samples=kinked_samples)
def relu(inputs: Any, outputs: Any, cotangents: Any, attrs: Any) -> tuple[Tensor]:
    """x̄ = ȳ where x > 0, else 0, at 0 too; never 0 · ∞"""
    (y,), (ct,) = outputs, cotangents
    return (op.where(op.less_equal(y, 0.0), 0.0, ct),)


@elementwise("relax.sigmoid", samples=unary_samples)
def sigmoid(x: Tensor, y: Tensor) -> Tensor:
    """x̄ = ȳ · y (1 − y)"""
    return y * (1.0 - y)


@elementwise("relax.nn.silu", samples=unary_samples)
def silu(x: Tensor, y: Tensor) -> Tensor:
    """x̄ = ȳ · (σ(x) + y (1 − σ(x)))"""
    s = op.sigmoid(x)
    return s + y * (1.0 - s)


@elementwise("relax.tanh", samples=unary_samples)
def tanh(x: Tensor, y: Tensor) -> Tensor:
    """x̄ = ȳ · (1 − y²)"""
    return 1.0 - y * y
