"""Rules of elementwise ops: each returns dy/dx for each input."""

from __future__ import annotations

from typing import Any

from ..ops import functional as op
from ..ops.tensor import Tensor, is_float
from .rule import elementwise, linear, nondifferentiable, register_gradient
from .sample import sample, static, tensor

BROADCAST = [((2, 3), (2, 3)), ((2, 3), (3,)), ((2, 1, 3), (4, 1)), ((), (2, 3)), (("n", 3), (3,))]
"""Pairs of shapes for binary ops: equal, lower rank, size-1 axes, rank 0, symbolic."""

UNARY = [(2, 3), (), ("n", 3), (0, 3)]
"""Shapes for unary ops: ordinary, rank 0, symbolic, empty."""

binary_samples = [sample(*shapes) for shapes in BROADCAST]
unary_samples = [sample(shape) for shape in UNARY]
positive_samples = [sample(tensor(shape, 0.5, 2.0)) for shape in UNARY]
kinked_samples = [sample(tensor(shape, avoid=0.0)) for shape in UNARY]


@elementwise("relax.abs", samples=kinked_samples)
def abs(x: Tensor, y: Tensor) -> Tensor:
    """x̄ = ȳ · sign(x), and 0 at 0"""
    return op.sign(x)


@elementwise("relax.add", samples=binary_samples)
def add(a: Tensor, b: Tensor, y: Tensor) -> tuple[float, float]:
    """ā = ȳ,  b̄ = ȳ"""
    return 1.0, 1.0


@linear(
    "relax.astype",
    samples=[sample((2, 3), "float64"), sample((2, 3), "float32", second_order=False)],
)
def astype(x: Tensor, ct: Tensor) -> Tensor | None:
    """x̄ = ȳ in the dtype of x"""
    return ct.astype(x.dtype) if is_float(x.dtype) else None


@elementwise("relax.cos", samples=unary_samples)
def cos(x: Tensor, y: Tensor) -> Tensor:
    """x̄ = −ȳ · sin x"""
    return -op.sin(x)


@elementwise(
    "relax.divide",
    samples=[sample(a, tensor(b, 0.5, 2.0)) for a, b in BROADCAST],
    singular=True,
)
def divide(a: Tensor, b: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """ā = ȳ / b,  b̄ = −ȳ · y / b"""
    return 1.0 / b, -(y / b)


@elementwise("relax.exp", samples=unary_samples)
def exp(x: Tensor, y: Tensor) -> Tensor:
    """x̄ = ȳ · y"""
    return y


@linear("relax.full_like", samples=[sample((2, 3), ()), sample(("n", 3), ())])
def full_like(x: Tensor, fill: Tensor, ct: Tensor) -> tuple[None, Tensor]:
    """Of the fill value: the sum of ȳ"""
    return None, ct


@elementwise("relax.log", samples=positive_samples, singular=True)
def log(x: Tensor, y: Tensor) -> Tensor:
    """x̄ = ȳ / x"""
    return 1.0 / x


def _choice(ct: Tensor, a: Tensor, b: Tensor, other_chosen: Tensor) -> Tensor:
    """Return ȳ where a was chosen, ½ ȳ where it equals b, else 0; never 0 · ∞."""
    return op.where(op.equal(a, b), 0.5 * ct, op.where(other_chosen, 0.0, ct))


distinct_samples = [
    sample(tensor(a, 0.0, distinct=True), tensor(b, 0.035, distinct=True)) for a, b in BROADCAST
]


@register_gradient("relax.maximum", samples=distinct_samples)
def maximum(inputs: Any, outputs: Any, cotangents: Any, attrs: Any) -> tuple[Tensor, Tensor]:
    """ā = ȳ where a > b, b̄ = ȳ where b > a, half each where they are equal"""
    (a, b), (ct,) = inputs, cotangents
    return _choice(ct, a, b, op.less(a, b)), _choice(ct, b, a, op.less(b, a))


@register_gradient("relax.minimum", samples=distinct_samples)
def minimum(inputs: Any, outputs: Any, cotangents: Any, attrs: Any) -> tuple[Tensor, Tensor]:
    """ā = ȳ where a < b, b̄ = ȳ where b < a, half each where they are equal"""
    (a, b), (ct,) = inputs, cotangents
    return _choice(ct, a, b, op.greater(a, b)), _choice(ct, b, a, op.greater(b, a))


@elementwise("relax.multiply", samples=binary_samples)
def multiply(a: Tensor, b: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """ā = ȳ · b,  b̄ = ȳ · a"""
    return b, a


@elementwise("relax.negative", samples=unary_samples)
def negative(x: Tensor, y: Tensor) -> float:
    """x̄ = −ȳ"""
    return -1.0


@elementwise("relax.rsqrt", samples=positive_samples, singular=True)
def rsqrt(x: Tensor, y: Tensor) -> Tensor:
    """x̄ = −ȳ · y / 2x"""
    return -0.5 * y / x


@elementwise("relax.sin", samples=unary_samples)
def sin(x: Tensor, y: Tensor) -> Tensor:
    """x̄ = ȳ · cos x"""
    return op.cos(x)


@elementwise("relax.sqrt", samples=positive_samples, singular=True)
def sqrt(x: Tensor, y: Tensor) -> Tensor:
    """x̄ = ȳ / 2y"""
    return 0.5 / y


@elementwise("relax.square", samples=unary_samples)
def square(x: Tensor, y: Tensor) -> Tensor:
    """x̄ = ȳ · 2x"""
    return 2.0 * x


@elementwise("relax.subtract", samples=binary_samples)
def subtract(a: Tensor, b: Tensor, y: Tensor) -> tuple[float, float]:
    """ā = ȳ,  b̄ = −ȳ"""
    return 1.0, -1.0


where_samples = [
    sample(tensor(c, 0, 2, dtype="bool"), a, b)
    for c, a, b in [((2, 3), (2, 3), (2, 3)), ((2, 1), (3,), (2, 3)), ((3,), (), (2, 1))]
]


@register_gradient("relax.where", samples=where_samples)
def where(inputs: Any, outputs: Any, cotangents: Any, attrs: Any) -> tuple[None, Tensor, Tensor]:
    """x̄₁ = ȳ where the condition holds, x̄₂ = ȳ elsewhere, 0 otherwise; never 0 · ∞"""
    (condition, _, _), (ct,) = inputs, cotangents
    return None, op.where(condition, ct, 0.0), op.where(condition, 0.0, ct)


clip_samples = [
    sample(tensor((2, 3), avoid=0.5), static(-2.0), static(0.5)),
    sample(tensor((4, 4), avoid=-0.25), static(-0.25), static(2.0)),
]


@register_gradient("relax.clip", samples=clip_samples)
def clip(inputs: Any, outputs: Any, cotangents: Any, attrs: Any) -> tuple[Tensor, None, None]:
    """x̄ = ȳ where y = x, which is where low ≤ x ≤ high (closed interval), else 0"""
    (x, _, _), (y,), (ct,) = inputs, outputs, cotangents
    return op.where(op.equal(x, y), ct, 0.0), None, None


nondifferentiable(
    "relax.bitwise_and",
    "relax.bitwise_not",
    "relax.bitwise_or",
    "relax.bitwise_xor",
    "relax.ceil",
    "relax.equal",
    "relax.floor",
    "relax.greater",
    "relax.greater_equal",
    "relax.isfinite",
    "relax.isinf",
    "relax.isnan",
    "relax.less",
    "relax.less_equal",
    "relax.logical_and",
    "relax.logical_not",
    "relax.logical_or",
    "relax.logical_xor",
    "relax.not_equal",
    "relax.ones_like",
    "relax.round",
    "relax.sign",
    "relax.trunc",
    "relax.zeros_like",
)
