"""Rules of attention."""

from __future__ import annotations

from typing import Any

from ..ir.tensor import Tensor
from ..ops import functional as op
from ..ops.attention import attend
from ..ops.fused_attention import (
    attention_gradient,
    gradients_of_scores,
    score_cotangent,
    state_gradient,
    weights_of,
)
from .rule import composite, register_gradient
from .sample import Sample, sample, tensor

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


def _fused_samples() -> list[Sample]:
    q, k, v = (2, 4, 3, 4), (2, 2, 5, 4), (2, 2, 5, 3)
    return [
        sample((1, 2, 3, 4), (1, 2, 5, 4), (1, 2, 5, 3), scale=0.7, causal=""),
        sample(q, k, v, scale=0.5, causal="TopLeft"),
        sample(q, k, v, scale=0.5, causal="BottomRight", second_order=False),
        # The first query may attend no key.
        sample((1, 1, 4, 2), (1, 1, 3, 2), (1, 1, 3, 2), scale=1.0, causal="BottomRight"),
        sample(q, k, v, (2, 1, 3, 5), scale=0.5, causal=""),
        sample(q, k, v, (1, 4, 1, 1), scale=0.5, causal="TopLeft", second_order=False),
        sample(("n", 2, "s", 2), ("n", 2, "t", 2), ("n", 2, "t", 3), scale=1.0, causal="TopLeft"),
    ]


@register_gradient("graphgrad.attention", samples=_fused_samples())
def fused_attention(
    inputs: list[Tensor], outputs: list[Tensor], cotangents: list[Tensor], attrs: Any
) -> list[Tensor]:
    """q̄ = S̄ k,  k̄ = S̄ᵀ q,  v̄ = wᵀ ȳ,  with S̄ = scale · w ∘ (ȳ vᵀ − Σ ȳ ∘ y + the logsumexp's)"""
    y, logsumexp = outputs
    ct, ct_logsumexp = cotangents
    gradients = attention_gradient(inputs, y, logsumexp, ct, attrs)
    # The weights are the derivative of the logsumexp by the scores.
    of_sums = None
    if ct_logsumexp.fill != 0:
        rows = op.reshape(ct_logsumexp, [*ct_logsumexp.shape, 1])
        of_sums = weights_of(inputs, logsumexp, attrs) * rows
        for position, more in enumerate(gradients_of_scores(inputs, of_sums, attrs)):
            gradients[position] = gradients[position] + more
    if len(inputs) > 3:
        # What nothing reads is not computed: the scores are there for a bias that is learned.
        slopes = score_cotangent(inputs, y, logsumexp, ct, attrs)
        gradients.append(slopes if of_sums is None else slopes + of_sums)
    return gradients


def _gradient_samples() -> list[Sample]:
    q, k, v, y = (1, 4, 3, 4), (1, 2, 4, 4), (1, 2, 4, 2), (1, 4, 3, 2)
    # Large logsumexps: those of scores in (-4, 4) are.
    rows = tensor((1, 4, 3), 2.0, 3.0)
    return [
        sample(q, k, v, y, rows, y, scale=0.5, causal=""),
        sample(q, k, v, y, rows, y, (1, 1, 3, 4), scale=0.5, causal="TopLeft", second_order=False),
    ]


@composite("graphgrad.attention_gradient", samples=_gradient_samples())
def fused_attention_gradient(*operands: Tensor, attrs: Any) -> list[Tensor]:
    """q̄, k̄, v̄ = S̄ k, S̄ᵀ q, wᵀ ȳ,  with w = exp(scale · q kᵀ + bias − logsumexp)"""
    return state_gradient(*operands, attrs)
