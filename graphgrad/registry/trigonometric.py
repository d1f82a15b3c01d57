"""Rules of trigonometric and hyperbolic functions and their inverses."""

from __future__ import annotations

from ..ir.tensor import Tensor
from ..ops import functional as op
from .elementwise import UNARY, unary_samples
from .rule import elementwise
from .sample import sample, tensor

inside_samples = [sample(tensor(shape, -0.9, 0.9)) for shape in UNARY]
above_one_samples = [sample(tensor(shape, 1.2, 2.0)) for shape in UNARY]


@elementwise("relax.acos", samples=inside_samples, singular=True)
def acos(x: Tensor, y: Tensor) -> Tensor:
    """x̄ = −ȳ / √(1 − x²)"""
    return -op.rsqrt((1.0 - x) * (1.0 + x))


@elementwise("relax.acosh", samples=above_one_samples, singular=True)
def acosh(x: Tensor, y: Tensor) -> Tensor:
    """x̄ = ȳ / √(x² − 1)"""
    return op.rsqrt(x - 1.0) * op.rsqrt(x + 1.0)  # x² would overflow first


@elementwise("relax.asin", samples=inside_samples, singular=True)
def asin(x: Tensor, y: Tensor) -> Tensor:
    """x̄ = ȳ / √(1 − x²)"""
    return op.rsqrt((1.0 - x) * (1.0 + x))


@elementwise("relax.asinh", samples=unary_samples)
def asinh(x: Tensor, y: Tensor) -> Tensor:
    """x̄ = ȳ / √(1 + x²)"""
    magnitude = op.abs(x)
    # x² might be infinite: beyond 1 it is divided by, and so is the 1.
    scale = op.where(op.greater(magnitude, 1.0), 1.0 / magnitude, 1.0)
    scaled = scale * x
    return scale * op.rsqrt(scale * scale + scaled * scaled)


@elementwise("relax.atan", samples=unary_samples)
def atan(x: Tensor, y: Tensor) -> Tensor:
    """x̄ = ȳ / (1 + x²)"""
    return 1.0 / (1.0 + x * x)


@elementwise("relax.atanh", samples=inside_samples, singular=True)
def atanh(x: Tensor, y: Tensor) -> Tensor:
    """x̄ = ȳ / (1 − x²)"""
    return 1.0 / ((1.0 - x) * (1.0 + x))


@elementwise("relax.cos", samples=unary_samples)
def cos(x: Tensor, y: Tensor) -> Tensor:
    """x̄ = −ȳ · sin x"""
    return -op.sin(x)


@elementwise("relax.cosh", samples=unary_samples)
def cosh(x: Tensor, y: Tensor) -> Tensor:
    """x̄ = ȳ · sinh x"""
    return op.sinh(x)


@elementwise("relax.sin", samples=unary_samples)
def sin(x: Tensor, y: Tensor) -> Tensor:
    """x̄ = ȳ · cos x"""
    return op.cos(x)


@elementwise("relax.sinh", samples=unary_samples)
def sinh(x: Tensor, y: Tensor) -> Tensor:
    """x̄ = ȳ · cosh x"""
    return op.cosh(x)


@elementwise("relax.tan", samples=unary_samples)
def tan(x: Tensor, y: Tensor) -> Tensor:
    """x̄ = ȳ · (1 + y²)"""
    return 1.0 + y * y


@elementwise("relax.tanh", samples=unary_samples)
def tanh(x: Tensor, y: Tensor) -> Tensor:
    """x̄ = ȳ · (1 − y²)"""
    return 1.0 - y * y
