"""Rules of activations."""

from __future__ import annotations

import math
from typing import Any

from ..ir.tensor import Tensor
from ..ops import functional as op
from .elementwise import UNARY, kinked_samples, unary_samples
from .rule import elementwise, register_gradient
from .sample import sample, tensor


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


@elementwise("relax.nn.gelu", samples=unary_samples)
def gelu(x: Tensor, y: Tensor) -> Tensor:
    """x̄ = ȳ · (Φ(x) + x φ(x)), with the normal distribution Φ and its density φ"""
    distribution = 0.5 * (1.0 + op.erf(x * math.sqrt(0.5)))
    density = op.exp(-0.5 * (x * x)) / math.sqrt(2.0 * math.pi)
    return distribution + x * density


@elementwise("relax.nn.gelu_tanh", samples=unary_samples)
def gelu_tanh(x: Tensor, y: Tensor) -> Tensor:
    """x̄ = ȳ · ½ (1 + t + x (1 − t²) u'), t = tanh u, u = √(2/π) (x + 0.044715 x³)"""
    k, c = math.sqrt(2.0 / math.pi), 0.044715
    # Beyond it 1 − t² is 0 in every dtype, and x³ may be infinite.
    x = op.clip(x, -20.0, 20.0)
    square = x * x
    t = op.tanh(k * (x * (1.0 + c * square)))
    slope = k * (1.0 + 3.0 * c * square)
    return 0.5 * (1.0 + t + x * ((1.0 - t * t) * slope))


leaky_samples = [
    *(sample(tensor(shape, avoid=0.0), alpha=0.2) for shape in UNARY),
    *(sample(tensor((2, 3), avoid=0.0), alpha=alpha) for alpha in (0.0, 1.5)),
]


@elementwise("relax.nn.leakyrelu", samples=leaky_samples)
def leakyrelu(x: Tensor, y: Tensor, attrs: Any) -> Tensor:
    """x̄ = ȳ where x > 0, else α ȳ, at 0 too"""
    return op.where(op.greater(x, 0.0), x.emitter.full(1.0, [], x.dtype), attrs.alpha)


prelu_samples = [
    sample(tensor(shape, avoid=0.0), (slopes,), axis=axis)
    for shape, slopes, axis in [
        ((2, 3), 3, 1),
        ((2, 3, 4), 3, 1),
        ((2, 3, 4), 1, 1),
        ((2, 3, 4), 4, -1),
        ((3, 2), 3, 0),
        (("n", 3, 2), 3, 1),
        ((2, "n"), "n", 1),
        ((0, 3), 3, 1),
        ((3,), 1, 0),
    ]
]


@register_gradient("relax.nn.prelu", samples=prelu_samples)
def prelu(inputs: Any, outputs: Any, cotangents: Any, attrs: Any) -> tuple[Tensor, Tensor]:
    """x̄ = ȳ where x > 0, else α ȳ;  ᾱ = Σ ȳ x where x ≤ 0, over all axes but the channels"""
    (x, alpha), (ct,) = inputs, cotangents
    axis = attrs.axis % x.ndim
    along_channels = [alpha.shape[0] if a == axis else 1 for a in range(x.ndim)]
    positive = op.greater(x, 0.0)
    x_bar = op.where(positive, ct, op.reshape(alpha, along_channels) * ct)
    slopes = op.sum_to(op.where(positive, 0.0, ct * x), along_channels)
    return x_bar, op.reshape(slopes, alpha.shape)


_SELU_ALPHA = 1.6732632423543772848170429916717
_SELU_SCALE = 1.0507009873554804934193349852946
"""Klambauer et al., Self-Normalizing Neural Networks, 2017: section 2."""


@elementwise("relax.nn.selu", samples=kinked_samples)
def selu(x: Tensor, y: Tensor) -> Tensor:
    """x̄ = ȳ · λ where x > 0, else ȳ · λ α exp x; λ for NaN, as elsewhere where x is not ≤ 0"""
    negative = op.less_equal(x, 0.0)
    # Not y + λ α, which has few digits far below 0.
    slope = (_SELU_SCALE * _SELU_ALPHA) * op.exp(op.where(negative, x, 0.0))
    return op.where(negative, slope, _SELU_SCALE)


softplus_samples = [
    *(sample(shape) for shape in UNARY),
    sample(tensor((3, 4), -4.0, 4.0, avoid=2.0), beta=0.5, threshold=1.0),
]


@elementwise("relax.nn.softplus", samples=softplus_samples)
def softplus(x: Tensor, y: Tensor, attrs: Any) -> Tensor:
    """x̄ = ȳ · σ(β x) up to the threshold, ȳ where β x is above it"""
    scaled = attrs.beta * x
    linear = x.emitter.full(1.0, [], x.dtype)
    return op.where(op.greater(scaled, attrs.threshold), linear, op.sigmoid(scaled))
