"""Rules of normalizations."""

from __future__ import annotations

from typing import Any

from ..ir.tensor import Tensor
from ..ops import functional as op
from ..ops.moments import PRECISE_SUM, moments, precise_mean, precise_sum
from ..ops.norm import (
    ChannelGroups,
    collect,
    inverse_deviation,
    inverse_root_mean_square,
    spread,
    standardize,
)
from .rule import linear, register_gradient
from .sample import sample, tensor


def _batch_norm_samples(training: bool) -> list[Any]:
    variance = tensor((3,), 0.5, 1.5)
    channels = [(3,), (3,), (3,), variance]
    first_order = {"training": training, "second_order": False}
    return [
        sample((4, 3, 2, 2), *channels, axis=1, training=training),
        sample((4, 2, 3), *channels, axis=2, epsilon=0.1, training=training),
        sample((5, 3), *channels, axis=1, momentum=0.3, training=training),
        sample((4, 3), *channels, axis=1, scale=False, **first_order),
        sample((4, 3), *channels, axis=1, center=False, **first_order),
        sample((2, 3, 2, 1, 2), *channels, axis=-4, **first_order),
        sample(("n", 2, 3), *channels, axis=-1, **first_order),
    ]


@register_gradient(
    "relax.nn.batch_norm", samples=_batch_norm_samples(True) + _batch_norm_samples(False)
)
def batch_norm(
    inputs: Any, outputs: Any, cotangents: Any, attrs: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """x̄ = γ r (ȳ − mean ȳ − x̂ · mean(ȳ x̂)),  γ̄ = Σ ȳ x̂,  β̄ = Σ ȳ,  r = (σ² + ε)^(−1/2)

    With x̂ = r (x − μ), where r is taken out of sums over the batch.
    Ioffe and Szegedy, *Batch normalization* (2015), section 3. The statistics are those of the
    batch when training, else the running ones, which are then inputs like any other. The new
    running statistics are outputs and have cotangents of their own.
    """
    x, gamma, beta, old_mean, old_variance = (op.widen(t) for t in inputs)
    axis = attrs.axis % x.ndim
    axes = [a for a in range(x.ndim) if a != axis]
    extents = [x.shape[a] for a in axes]

    def per_channel(t: Tensor) -> Tensor:
        return spread(t, [axis], x.ndim)

    ct, ct_mean, ct_variance = (op.widen(t) for t in cotangents)
    if attrs.training:
        batch_mean, batch_variance = moments(x, axes)
    else:
        batch_mean, batch_variance = per_channel(old_mean), per_channel(old_variance)
    centered = x - batch_mean
    r = op.reshape(inverse_deviation(batch_variance, attrs.epsilon), gamma.shape)
    sum_ct = op.reduce_sum(ct, axes)
    sum_ct_x_hat = r * op.reduce_sum(ct * centered, axes)
    slope = gamma * r if attrs.scale else r
    gamma_bar = sum_ct_x_hat if attrs.scale else 0.0 * gamma
    beta_bar = sum_ct if attrs.center else 0.0 * beta

    if not attrs.training:
        mean_bar = ct_mean - slope * sum_ct
        variance_bar = ct_variance - 0.5 * slope * r * sum_ct_x_hat
        return ct * per_channel(slope), gamma_bar, beta_bar, mean_bar, variance_bar

    momentum = attrs.momentum
    inner = ct - per_channel(op.divide_by_count(sum_ct, extents))
    inner = inner - centered * per_channel(op.divide_by_count(r * sum_ct_x_hat, extents))
    x_bar = inner * per_channel(slope)
    x_bar = x_bar + per_channel(op.divide_by_count(momentum * ct_mean, extents))
    x_bar = x_bar + centered * per_channel(
        op.divide_by_count(2.0 * momentum * ct_variance, extents)
    )
    keep = 1.0 - momentum
    return x_bar, gamma_bar, beta_bar, keep * ct_mean, keep * ct_variance


@register_gradient(
    "graphgrad.moments",
    samples=[
        sample((3, 4), axes=[1]),
        sample((2, 3, 4), axes=[0, 2]),
        sample((2, 3), axes=[0, 1]),
        sample(("n", 3), axes=[0]),
    ],
)
def moments_rule(inputs: Any, outputs: Any, cotangents: Any, attrs: Any) -> Tensor:
    """x̄ = (μ̄ + 2 (x − μ) v̄) / n, as μ = Σ x / n, v = Σ (x − μ)² / n and Σ (x − μ) = 0"""
    (x,), (mean_of_x, _), (ct_mean, ct_variance) = inputs, outputs, cotangents
    extents = [x.shape[axis] for axis in attrs.axes]
    slope = op.divide_by_count(2.0 * ct_variance, extents)
    return op.divide_by_count(ct_mean, extents) + (x - mean_of_x) * slope


@linear(
    PRECISE_SUM,
    samples=[
        sample((3, 4), axes=[1]),
        sample((2, 3, 4), axes=[0, 2]),
        sample((2, 3), axes=[]),
        sample(("n", 3), axes=[0]),
    ],
)
def precise_sum_rule(x: Tensor, ct: Tensor) -> Tensor:
    """x̄ = ȳ, repeated along the reduced axes"""
    return op.broadcast_to(ct, x.shape)


def _gradient_by_rows(
    x: Tensor,
    gamma: Tensor | None,
    ct: Tensor,
    axes: list[int],
    epsilon: float,
    center: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """x̄, γ̄ and β̄ of γ x̂ + β, where x is normalized over the axes along which γ lies."""
    wide, ct = op.widen(x), op.widen(ct)
    if center:
        centered, r = standardize(wide, axes, epsilon)
    else:
        centered, r = wide, inverse_root_mean_square(wide, axes, epsilon)
    x_hat = centered * r
    slope = ct if gamma is None else ct * spread(op.widen(gamma), axes, x.ndim)
    inner = slope - x_hat * precise_mean(slope * x_hat, axes)
    if center:
        inner = inner - precise_mean(slope, axes)
    return r * inner, collect(ct * x_hat, axes), collect(ct, axes)


def _gradient_by_channels(
    inputs: Any, cotangents: Any, attrs: Any, groups: ChannelGroups
) -> tuple[Tensor, Tensor, Tensor]:
    """x̄, γ̄ and β̄ of γ x̂ + β, where γ lies along channels and x̂ is taken by groups of them.

    All sums are made of those over the positions of a channel, Σ ȳ and Σ ȳ (x − μ), out of which γ
    and r are taken.
    """
    (x, gamma, beta), (ct,) = inputs, cotangents
    positions = op.normalize_axes(attrs.axes, x.ndim)
    extents = [x.shape[axis] for axis in positions]
    x, ct = op.widen(x), op.widen(ct)
    center, variance = moments(groups.apart(x), groups.axes(positions))
    r = inverse_deviation(variance, attrs.epsilon)
    centered = x - groups.along(center)
    sum_ct, sum_ct_centered = (precise_sum(terms, positions) for terms in (ct, ct * centered))
    factor = spread(op.widen(gamma), [groups.axis], x.ndim) if attrs.scale else None

    def mean_slope(sums: Tensor) -> Tensor:
        scaled = sums if factor is None else sums * factor
        return op.divide_by_count(groups.mean(scaled), extents)

    r_by_channel = groups.along(r)
    slope = ct * (r_by_channel if factor is None else r_by_channel * factor)
    x_hat = centered * r_by_channel
    pull = groups.along(mean_slope(sum_ct_centered) * r * r)
    x_bar = slope - groups.along(mean_slope(sum_ct) * r) - x_hat * pull
    if all(isinstance(extent, int) and extent for extent in extents):
        sum_ct_x_hat = collect(sum_ct_centered * r_by_channel, [groups.axis])
    else:  # of no positions r is NaN, and the sum is 0
        sum_ct_x_hat = collect(ct * x_hat, [groups.axis])
    return (
        x_bar,
        sum_ct_x_hat if attrs.scale else 0.0 * gamma,
        collect(sum_ct, [groups.axis]) if attrs.center else 0.0 * beta,
    )


@register_gradient(
    "relax.nn.group_norm",
    samples=[
        sample((2, 4, 3), (4,), (4,), num_groups=2, channel_axis=1, axes=[2]),
        sample((2, 3, 6), (6,), (6,), num_groups=3, channel_axis=-1, axes=[1], epsilon=0.1),
        sample(
            (2, 4, 2, 2), (4,), (4,), num_groups=4, channel_axis=1, axes=[-1, 2], second_order=False
        ),
        sample(
            (2, 4, 2), (4,), (4,), num_groups=1, channel_axis=1, axes=[0, 2], second_order=False
        ),
        sample((3, 4), (4,), (4,), num_groups=2, channel_axis=1, axes=[], epsilon=0.5),
        sample(
            (2, 4, 3),
            (4,),
            (4,),
            num_groups=2,
            channel_axis=1,
            axes=[2],
            scale=False,
            second_order=False,
        ),
        sample(
            (2, 4, 3),
            (4,),
            (4,),
            num_groups=2,
            channel_axis=1,
            axes=[2],
            center=False,
            second_order=False,
        ),
        sample(("n", 4, "w"), (4,), (4,), num_groups=2, channel_axis=1, axes=[2]),
    ],
)
def group_norm(
    inputs: Any, outputs: Any, cotangents: Any, attrs: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """x̄ = r (γ ȳ − mean γ ȳ − x̂ · mean(γ ȳ x̂)),  γ̄ = Σ ȳ x̂,  β̄ = Σ ȳ, in groups of channels

    Wu and He, *Group normalization* (2018).
    """
    x = inputs[0]
    axis, count = attrs.channel_axis % x.ndim, attrs.num_groups
    groups = ChannelGroups(axis, x.shape[axis], count)
    return _gradient_by_channels(inputs, cotangents, attrs, groups)


@register_gradient(
    "relax.nn.instance_norm",
    samples=[
        sample((2, 3, 4), (3,), (3,), channel_axis=1, axes=[2]),
        sample((2, 2, 3, 2), (2,), (2,), channel_axis=-1, axes=[1, -2], epsilon=0.1),
        sample((2, 3, 4), (3,), (3,), channel_axis=1, axes=[2], scale=False, second_order=False),
        sample((2, 3, 4), (3,), (3,), channel_axis=1, axes=[2], center=False, second_order=False),
        sample(("n", 3, "w"), (3,), (3,), channel_axis=1, axes=[2]),
    ],
)
def instance_norm(
    inputs: Any, outputs: Any, cotangents: Any, attrs: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """x̄ = r (γ ȳ − mean γ ȳ − x̂ · mean(γ ȳ x̂)),  γ̄ = Σ ȳ x̂,  β̄ = Σ ȳ"""
    axis = attrs.channel_axis % inputs[0].ndim
    groups = ChannelGroups(axis, inputs[0].shape[axis])
    return _gradient_by_channels(inputs, cotangents, attrs, groups)


@register_gradient(
    "relax.nn.layer_norm",
    samples=[
        sample((3, 4), (4,), (4,), axes=[-1]),
        sample((2, 3, 4), (3, 4), (3, 4), axes=[1, 2], epsilon=0.1),
        sample((2, 3, 4), (4, 3), (4, 3), axes=[-1, 1], second_order=False),
        sample((2, 3, 4), (2, 4), (2, 4), axes=[0, 2]),
        sample((5,), (5,), (5,), axes=[0], second_order=False),
        sample((3, 4), (4,), (4,), axes=[1], scale=False, second_order=False),
        sample((3, 4), (4,), (4,), axes=[1], center=False, second_order=False),
        sample(("n", "m"), ("m",), ("m",), axes=[-1]),
    ],
)
def layer_norm(
    inputs: Any, outputs: Any, cotangents: Any, attrs: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """x̄ = r (γ ȳ − mean γ ȳ − x̂ · mean(γ ȳ x̂)),  γ̄ = Σ ȳ x̂,  β̄ = Σ ȳ

    Ba, Kiros and Hinton, *Layer normalization* (2016).
    """
    (x, gamma, beta), (ct,) = inputs, cotangents
    axes = op.normalize_axes(attrs.axes, x.ndim)
    scale = gamma if attrs.scale else None
    x_bar, gamma_bar, beta_bar = _gradient_by_rows(x, scale, ct, axes, attrs.epsilon)
    return (
        x_bar,
        gamma_bar if attrs.scale else 0.0 * gamma,
        beta_bar if attrs.center else 0.0 * beta,
    )


@register_gradient(
    "relax.nn.rms_norm",
    samples=[
        sample((3, 4), (4,), axes=[-1]),
        sample((2, 3, 4), (3, 4), axes=[1, 2], epsilon=0.1),
        sample((2, 3, 4), (4, 2), axes=[-1, 0], second_order=False),
        sample(("n", 2, "m"), ("m",), axes=[2]),
    ],
)
def rms_norm(inputs: Any, outputs: Any, cotangents: Any, attrs: Any) -> tuple[Tensor, Tensor]:
    """x̄ = r (γ ȳ − x̂ · mean(γ ȳ x̂)),  γ̄ = Σ ȳ x̂,  with x̂ = r x and r = (mean x² + ε)^(−1/2)

    Zhang and Sennrich, *Root mean square layer normalization* (2019).
    """
    (x, gamma), (ct,) = inputs, cotangents
    axes = op.normalize_axes(attrs.axes, x.ndim)
    gradient = _gradient_by_rows(x, gamma, ct, axes, attrs.epsilon, center=False)
    return gradient[0], gradient[1]
