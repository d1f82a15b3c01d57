"""Rules of softmax and its logarithm."""

from __future__ import annotations

from typing import Any

from ..ir.tensor import Tensor
from ..ops import functional as op
from ..ops.elementwise import masked_product
from .rule import register_gradient
from .sample import sample

axis_samples = [
    sample((2, 3)),
    sample((2, 3, 4), axis=1),
    sample((2, 3, 4), axis=-3),
    sample((3,), axis=0),
    sample(("n", 3), axis=-1),
    sample(("n", 3), axis=0),
    sample((0, 3), axis=1),
]


@register_gradient("relax.nn.log_softmax", samples=axis_samples)
def log_softmax(inputs: Any, outputs: Any, cotangents: Any, attrs: Any) -> tuple[Tensor]:
    """x̄ = ȳ − exp(y) · Σ ȳ, and 0 for a row that a mask excludes, though it is NaN"""
    (y,), (ct,) = outputs, cotangents
    total = op.reduce_sum(ct, [attrs.axis], keepdims=True)
    return (ct - masked_product(total, op.exp(y)),)


@register_gradient("relax.nn.softmax", samples=axis_samples)
def softmax(inputs: Any, outputs: Any, cotangents: Any, attrs: Any) -> tuple[Tensor]:
    """x̄ = y · (ȳ − Σ ȳ y), and 0 for a row that a mask excludes, though it is NaN"""
    (y,), (ct,) = outputs, cotangents
    mean = op.reduce_sum(masked_product(ct, y), [attrs.axis], keepdims=True)
    return (masked_product(ct - mean, y),)
