"""Rules of elementwise ops: each returns dy/dx for each input."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import tvm
from tvm import relax

from ..ir.tensor import Tensor, is_float
from ..ops import elementwise as elementwise_ops
from ..ops import functional as op
from .rule import bilinear, elementwise, linear, nondifferentiable, register_gradient
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


signed_samples = [
    *(sample(tensor(a, 0.5, 1.5), tensor(b, -1.5, -0.5)) for a, b in BROADCAST),
    *(sample(tensor((3,), low, low + 1.0), tensor((3,), 0.5, 1.5)) for low in (-1.5, 0.5)),
]


@elementwise("relax.atan2", samples=signed_samples)
def atan2(a: Tensor, b: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """ā = ȳ · b / (a² + b²),  b̄ = −ȳ · a / (a² + b²), and 0 at the origin"""
    largest = op.maximum(op.abs(a), op.abs(b))
    is_origin = op.equal(largest, 0.0)
    # Squares of the larger number itself might be 0 or infinite.
    scale = op.where(op.logical_or(is_origin, op.isinf(largest)), 1.0, largest)
    a, b = a / scale, b / scale
    square = op.where(is_origin, 1.0, a * a + b * b)
    return b / square / scale, -(a / square / scale)


@linear(
    "relax.astype",
    samples=[sample((2, 3), "float64"), sample((2, 3), "float32", second_order=False)],
)
def astype(x: Tensor, ct: Tensor) -> Tensor | None:
    """x̄ = ȳ in the dtype of x"""
    return ct.astype(x.dtype) if is_float(x.dtype) else None


@elementwise(
    "relax.divide",
    samples=[sample(a, tensor(b, 0.5, 2.0)) for a, b in BROADCAST],
    singular=True,
)
def divide(a: Tensor, b: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """ā = ȳ / b,  b̄ = −ȳ · y / b"""
    return 1.0 / b, -(y / b)


@elementwise("relax.erf", samples=unary_samples)
def erf(x: Tensor, y: Tensor) -> Tensor:
    """x̄ = ȳ · 2 exp(−x²) / √π"""
    return (2.0 / math.sqrt(math.pi)) * op.exp(-(x * x))


@elementwise("relax.ewise_fma", samples=[sample(s, s, s) for s in UNARY])
def ewise_fma(a: Tensor, b: Tensor, c: Tensor, y: Tensor) -> tuple[Tensor, Tensor, float]:
    """Of a · b + c:  ā = ȳ · b,  b̄ = ȳ · a,  c̄ = ȳ"""
    return b, a, 1.0


@elementwise("relax.exp", samples=unary_samples, singular=True)
def exp(x: Tensor, y: Tensor) -> Tensor:
    """x̄ = ȳ · y"""
    return y


# The quotient lies between 2 and 3 or between −3 and −2: away from where it is an integer.
modulo_samples = [
    *(sample(tensor(a, 2.2, 2.6), tensor(b, 1.0, 1.08)) for a, b in BROADCAST),
    sample(tensor((3,), -2.6, -2.2), tensor((3,), 1.0, 1.08)),
    sample(tensor((3,), 2.2, 2.6), tensor((3,), -1.08, -1.0)),
]


def _modulo(a: Tensor, b: Tensor, y: Tensor) -> tuple[float, Tensor]:
    """The partial derivatives of y = a − q b, where q is an integer that b may change."""
    return 1.0, -op.round((a - y) / b)


@elementwise("relax.floor_mod", samples=modulo_samples, singular=True)
def floor_mod(a: Tensor, b: Tensor, y: Tensor) -> tuple[float, Tensor]:
    """ā = ȳ,  b̄ = −ȳ · ⌊a / b⌋"""
    return _modulo(a, b, y)


full_samples = [sample(static(shape), (), "float64") for shape in [(2, 3), (), (0, 3)]]


@linear("relax.full", samples=full_samples)
def full(shape: Any, fill: Tensor, ct: Tensor) -> tuple[None, Tensor]:
    """Of the fill value: the sum of ȳ"""
    return None, ct


@linear("relax.full_like", samples=[sample((2, 3), ()), sample(("n", 3), ())])
def full_like(x: Tensor, fill: Tensor, ct: Tensor) -> tuple[None, Tensor]:
    """Of the fill value: the sum of ȳ"""
    return None, ct


@elementwise("relax.log", samples=positive_samples, singular=True)
def log(x: Tensor, y: Tensor) -> Tensor:
    """x̄ = ȳ / x"""
    return 1.0 / x


@elementwise("relax.log_add_exp", samples=[*binary_samples, sample(tensor((3,), 30.0, 31.0), (3,))])
def log_add_exp(a: Tensor, b: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """ā = ȳ · σ(a − b),  b̄ = ȳ · σ(b − a); half each where both are the same infinity"""
    same_infinity = op.logical_and(op.equal(a, b), op.logical_not(op.isfinite(a)))
    difference = op.where(same_infinity, 0.0, a) - op.where(same_infinity, 0.0, b)
    return op.sigmoid(difference), op.sigmoid(-difference)


def _choice(ct: Tensor, a: Tensor, b: Tensor, other_chosen: Tensor) -> Tensor:
    """ȳ where a was chosen, ½ ȳ where it equals b, else 0; never 0 · ∞."""
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


@bilinear("graphgrad.masked_product", samples=binary_samples)
def masked_product(a: Tensor, b: Tensor, ct: Tensor) -> tuple[Tensor, Tensor]:
    """ā = ȳ · b,  b̄ = ȳ · a, and 0 where that is 0 · ∞ or 0 · NaN"""
    return elementwise_ops.masked_product(ct, b), elementwise_ops.masked_product(ct, a)


@elementwise("relax.mod", samples=modulo_samples, singular=True)
def mod(a: Tensor, b: Tensor, y: Tensor) -> tuple[float, Tensor]:
    """ā = ȳ,  b̄ = −ȳ · trunc(a / b); the remainder has the sign of a"""
    return _modulo(a, b, y)


@elementwise("relax.multiply", samples=binary_samples)
def multiply(a: Tensor, b: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """ā = ȳ · b,  b̄ = ȳ · a"""
    return b, a


@elementwise("relax.negative", samples=unary_samples)
def negative(x: Tensor, y: Tensor) -> float:
    """x̄ = −ȳ"""
    return -1.0


power_samples = [
    *(sample(tensor(a, 0.5, 2.0), tensor(b, -2.0, 2.0)) for a, b in BROADCAST),
    *(sample(tensor((2, 3), avoid=0.0), relax.const(e, "float64")) for e in (-2.0, 0.0, 1.0, 3.0)),
    sample(relax.const(2.0, "float64"), (2, 3)),
]


def _number(x: Tensor) -> float | None:
    """The value of a scalar constant, else None."""
    if isinstance(x.expr, tvm.ir.GenericConst) and not x.shape:
        return float(x.expr.value.numpy())
    return None


def _largest(x: Tensor) -> float:
    """The largest finite number of a tensor's dtype."""
    return float(ml_dtypes.finfo(x.dtype).max)


@elementwise("relax.power", samples=power_samples, singular=True)
def power(a: Tensor, b: Tensor, y: Tensor) -> tuple[Any, Tensor | None]:
    """ā = ȳ · b a^(b−1),  b̄ = ȳ · y log a; b̄ = 0 where a = 0 and b ≥ 0"""
    constant_exponent = _number(b)
    if constant_exponent is not None:
        return constant_exponent * op.power(
            a, constant_exponent - 1.0
        ) if constant_exponent else 0.0, None
    at_zero = op.equal(a, 0.0)
    # Of a⁰ the factors of ā are 0 and 1 / a, which may be infinite or NaN. Only there the exponent
    # is another, so that the mixed derivative stays right.
    has_inverse = op.greater(op.abs(a), 1.0 / _largest(a))
    exponent = op.where(op.logical_or(has_inverse, op.not_equal(b, 0.0)), b, 1.0)
    # An exponent where log would be −∞, though the derivative is 0.
    base = op.where(op.logical_and(at_zero, op.greater_equal(b, 0.0)), 1.0, a)
    return b * op.power(a, exponent - 1.0), y * op.log(base)


@elementwise("relax.rsqrt", samples=positive_samples, singular=True)
def rsqrt(x: Tensor, y: Tensor) -> Tensor:
    """x̄ = −ȳ · y / 2x"""
    return -0.5 * y / x


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
    sample(tensor(("n", 3), avoid=0.0), static(0.0), static(float("inf"))),
    sample((0, 3), static(0.0), static(6.0)),
    sample(tensor((2, 3), avoid=0.0), static(0.0), static(6.0)),
]


_RELU6 = (0.0, 6.0)
"""The bounds of relu6, which Relax and ONNX have as a clip alone."""


@register_gradient("relax.clip", samples=clip_samples)
def clip(inputs: Any, outputs: Any, cotangents: Any, attrs: Any) -> tuple[Tensor, None, None]:
    """x̄ = ȳ where y = x, which is where low ≤ x ≤ high (closed interval), else 0

    Between 0 and 6 it is relu6, whose slope is 0 at both bounds, as that of relu is at 0; and its
    gradient of NaN is ȳ.
    """
    (x, low, high), (y,), (ct,) = inputs, outputs, cotangents
    if (float(low.value), float(high.value)) == _RELU6:
        outside = op.logical_or(op.less_equal(x, _RELU6[0]), op.greater_equal(x, _RELU6[1]))
        return op.where(outside, 0.0, ct), None, None
    return op.where(op.equal(x, y), ct, 0.0), None, None


nondifferentiable(
    "relax.arange",
    "relax.bitwise_and",
    "relax.bitwise_not",
    "relax.bitwise_or",
    "relax.bitwise_xor",
    "relax.ceil",
    "relax.equal",
    "relax.eye",
    "relax.eye_like",
    "relax.floor",
    "relax.floor_divide",
    "relax.greater",
    "relax.greater_equal",
    "relax.hamming_window",
    "relax.isfinite",
    "relax.isinf",
    "relax.isnan",
    "relax.left_shift",
    "relax.less",
    "relax.less_equal",
    "relax.logical_and",
    "relax.logical_not",
    "relax.logical_or",
    "relax.logical_xor",
    "relax.not_equal",
    "relax.ones",
    "relax.ones_like",
    "relax.right_shift",
    "relax.round",
    "relax.sign",
    "relax.trunc",
    "relax.zeros",
    "relax.zeros_like",
)
