"""Rules of normalisations."""

from __future__ import annotations

from typing import Any

from ..ops import functional as op
from ..ops.tensor import Tensor
from .rule import register_gradient
from .sample import sample, tensor


def _batch_norm_samples(training: bool) -> list[Any]:
    variance = tensor((3,), 0.5, 1.5)
    return [
        sample((4, 3, 2, 2), (3,), (3,), (3,), variance, axis=1, training=training),
        sample((4, 2, 3), (3,), (3,), (3,), variance, axis=2, epsilon=0.1, training=training),
        sample((5, 3), (3,), (3,), (3,), variance, axis=1, momentum=0.3, training=training),
        sample((4, 3), (3,), (3,), (3,), variance, axis=1, scale=False, training=training),
        sample((4, 3), (3,), (3,), (3,), variance, axis=1, center=False, training=training),
    ]


@register_gradient(
    "relax.nn.batch_norm", samples=_batch_norm_samples(True) + _batch_norm_samples(False)
)
def batch_norm(
    inputs: Any, outputs: Any, cotangents: Any, attrs: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """x̄ = γ r (ȳ − mean ȳ − x̂ · mean(ȳ x̂)),  γ̄ = Σ ȳ x̂,  β̄ = Σ ȳ,  r = (σ² + ε)^(−1/2)

    Ioffe and Szegedy, *Batch normalization* (2015), section 3. The statistics are those of the
    batch when training, else the running ones, which are then inputs like any other. The new
    running statistics are outputs and have cotangents of their own.
    """
    x, gamma, beta, old_mean, old_variance = (op.widen(t) for t in inputs)
    axis = attrs.axis % x.ndim
    axes = [a for a in range(x.ndim) if a != axis]
    extents = [x.shape[a] for a in axes]

    def per_channel(t: Tensor) -> Tensor:
        return op.reshape(t, [x.shape[a] if a == axis else 1 for a in range(x.ndim)])

    def mean(t: Tensor) -> Tensor:
        return op.divide_by_count(op.reduce_sum(t, axes), extents)

    ct, ct_mean, ct_variance = (op.widen(t) for t in cotangents)
    batch_mean = mean(x) if attrs.training else old_mean
    centred = x - per_channel(batch_mean)
    variance = mean(centred * centred) if attrs.training else old_variance
    r = op.rsqrt(variance + attrs.epsilon)
    x_hat = centred * per_channel(r)
    sum_ct, sum_ct_x_hat = op.reduce_sum(ct, axes), op.reduce_sum(ct * x_hat, axes)
    slope = gamma * r if attrs.scale else r
    gamma_bar = sum_ct_x_hat if attrs.scale else 0.0 * gamma
    beta_bar = sum_ct if attrs.center else 0.0 * beta

    if not attrs.training:
        mean_bar = ct_mean - slope * sum_ct
        variance_bar = ct_variance - 0.5 * slope * r * sum_ct_x_hat
        return ct * per_channel(slope), gamma_bar, beta_bar, mean_bar, variance_bar

    momentum = attrs.momentum
    inner = ct - per_channel(op.divide_by_count(sum_ct, extents))
    inner = inner - x_hat * per_channel(op.divide_by_count(sum_ct_x_hat, extents))
    x_bar = inner * per_channel(slope)
    x_bar = x_bar + per_channel(op.divide_by_count(momentum * ct_mean, extents))
    x_bar = x_bar + centred * per_channel(op.divide_by_count(2.0 * momentum * ct_variance, extents))
    keep = 1.0 - momentum
    return x_bar, gamma_bar, beta_bar, keep * ct_mean, keep * ct_variance
