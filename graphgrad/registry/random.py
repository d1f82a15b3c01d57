"""Rules of random ops."""

from __future__ import annotations

from typing import Any

from ..ir.tensor import Tensor
from ..ops import random
from .rule import nondifferentiable, register_gradient
from .sample import sample, tensor

_seed = tensor((), 0, 1 << 40, dtype="int64")


@register_gradient(
    "graphgrad.dropout",
    samples=[
        sample((4, 5), _seed, rate=0.5, stream=0, order=()),
        sample(("n", 3), _seed, rate=0.25, stream=3, order=()),
        sample((2, 4, 3), _seed, rate=0.5, stream=1, order=(0, 2, 1)),
        sample((), _seed, rate=0.0, stream=1, order=()),
        sample((2, 3), _seed, rate=1.0, stream=0, order=()),
    ],
)
def dropout(inputs: Any, outputs: Any, cotangents: Any, attrs: Any) -> tuple[Tensor, None]:
    """x̄ = ȳ through the same mask: dropout(ȳ) with the same seed"""
    (_, seed), (ct,) = inputs, cotangents
    return random.dropout(ct, seed, attrs.rate, attrs.stream, getattr(attrs, "order", ())), None


nondifferentiable("graphgrad.dropout_mask")
