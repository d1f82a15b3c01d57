"""Rules of attention."""

from __future__ import annotations

from typing import Any

from ..ir.tensor import Tensor
from ..ops.attention import attend
from .rule import composite
from .sample import Sample, sample

Q, K, V = (2, 3, 2, 4), (2, 5, 2, 4), (2, 5, 2, 3)


def _attention_samples() -> list[Sample]:
    grouped = [(1, 2, 4, 3), (1, 3, 2, 3), (1, 3, 1, 2)]
    return [
        sample(Q, K, V),
        sample(Q, K, V, scale=0.3, second_order=False),
        sample(Q, K, V, causal_mask="TopLeft"),
        sample(Q, K, V, causal_mask="BottomRight", second_order=False),
        sample((1, 4, 1, 2), (1, 2, 1, 2), (1, 2, 1, 2), causal_mask="BottomRight"),
        sample(*[(1, 5, 1, 2)] * 3, causal_mask="BottomRight", window_size=2),
        sample((1, 4, 1, 2), (1, 2, 1, 2), (1, 2, 1, 2), causal_mask="TopLeft", window_size=2),
        sample(*[(1, 4, 1, 2)] * 3, window_size=3, second_order=False),
        sample(*grouped),
        sample(*grouped, causal_mask="TopLeft", second_order=False),
        sample(("n", "s", 2, 3), ("n", "t", 2, 3), ("n", "t", 2, 3), causal_mask="BottomRight"),
    ]


def _bias_samples() -> list[Sample]:
    return [
        sample(Q, K, V, (2, 2, 3, 5)),
        sample(Q, K, V, (1, 1, 3, 5), scale=0.3, causal_mask="TopLeft"),
        sample(Q, K, V, (2, 1, 1, 5), second_order=False),
        sample((1, 2, 4, 3), (1, 3, 2, 3), (1, 3, 2, 2), (1, 4, 2, 3), second_order=False),
        sample(*[("n", "s", 1, 2)] * 3, ("n", 1, "s", "s")),
    ]


@composite("relax.nn.attention", samples=_attention_samples())
def attention(query: Tensor, key: Tensor, value: Tensor, attrs: Any) -> Tensor:
    """y = softmax(scale · q kᵀ) v, where the mask allows it; zero where it allows nothing"""
    return attend(query, key, value, None, attrs.scale, attrs.causal_mask, attrs.window_size)


@composite("relax.nn.attention_bias", samples=_bias_samples())
def attention_bias(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, attrs: Any) -> Tensor:
    """y = softmax(scale · q kᵀ + bias) v, where the mask and a bias above −∞ allow it"""
    return attend(query, key, value, bias, attrs.scale, attrs.causal_mask, attrs.window_size)
