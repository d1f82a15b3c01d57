"""Normalizations by the functions of `functional`, in every float dtype.

Half precision is computed in float32, and means keep its digits (`moments`). The stock lowerings
refuse float64 and bfloat16, or compute float64 in float32; group and instance norm take
E[x²] − E[x]², which has no digit left where the mean is large; half precision is rounded before γ
and β; axes must be sorted and non-negative, and ``center`` and ``scale`` are not read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax

from ..ir.tensor import Dimension, Tensor
from ..layout import orders
from ..layout.orders import Order
from ..layout.rule import (
    LaidOut,
    Site,
    as_in_model,
    following,
    layout_rule,
    stored_axes,
    stored_axis,
)
from . import functional as op
from .legalize import legalization_by_ops
from .moments import moments, precise_mean


def standardize(x: Tensor, axes: Sequence[int], epsilon: float) -> tuple[Tensor, Tensor]:
    """The pair x − μ and (σ² + ε)^(−1/2), with statistics over axes that the latter keeps.

    Parameters
    ----------
    x : Tensor
        float32 or float64.
    axes : sequence of int
        Non-negative.
    epsilon : float
    """
    center, variance = moments(x, axes)
    return x - center, inverse_deviation(variance, epsilon)


def inverse_deviation(variance: Tensor, epsilon: float) -> Tensor:
    """The inverse root (σ² + ε)^(−1/2), and NaN of a variance that is too large for its dtype.

    As 0 it would make a constant of the normalized tensor, and nothing would tell that numbers have
    run out.
    """
    regularized = variance + epsilon
    is_lost = op.equal(regularized, math.inf)
    return op.where(is_lost, math.nan, op.rsqrt(regularized))


def inverse_root_mean_square(x: Tensor, axes: Sequence[int], epsilon: float) -> Tensor:
    """The inverse root (mean x² + ε)^(−1/2) of a mean over axes, which are kept with extent 1."""
    return inverse_deviation(precise_mean(x * x, axes), epsilon)


def spread(parameter: Tensor, axes: Sequence[int], rank: int) -> Tensor:
    """The parameter in a shape that broadcasts against a tensor of a rank.

    Its axes are the axes `axes` of that tensor, in that order.
    """
    order = sorted(range(len(axes)), key=lambda position: axes[position])
    ordered = op.permute_dims(parameter, order)
    extents = dict(zip(sorted(axes), ordered.shape, strict=True))
    return op.reshape(ordered, [extents.get(axis, 1) for axis in range(rank)])


def collect(x: Tensor, axes: Sequence[int]) -> Tensor:
    """Sum over all axes but `axes`, and put those in that order: the transpose of `spread`."""
    total = op.reduce_sum(x, [axis for axis in range(x.ndim) if axis not in axes])
    sorted_axes = sorted(axes)
    return op.permute_dims(total, [sorted_axes.index(axis) for axis in axes])


def in_groups(x: Tensor, axis: int, groups: int) -> Tensor:
    """The tensor with an axis split in two: the groups, and the members of each."""
    members = x.shape[axis] // groups
    return op.reshape(x, [*x.shape[:axis], groups, members, *x.shape[axis + 1 :]])


def group_axes(axes: Sequence[int], axis: int) -> list[int]:
    """The axes that a group norm reduces, as numbered after `in_groups`."""
    return [axis + 1, *(a if a < axis else a + 1 for a in axes)]


@dataclass(frozen=True)
class ChannelGroups:
    """Groups of channels that have statistics in common.

    Attributes
    ----------
    axis : int
        That of the channels, non-negative.
    channels : Dimension
        How many there are.
    count : int, optional
        The number of groups; if it is not given each channel is one, and has no axis of members.
    """

    axis: int
    channels: Dimension
    count: int | None = None

    def apart(self, x: Tensor) -> Tensor:
        """A tensor with its channels as two axes: groups, and members."""
        return x if self.count is None else in_groups(x, self.axis, self.count)

    def axes(self, positions: Sequence[int]) -> list[int]:
        """The axes, as numbered after `apart`, that statistics over `positions` are taken over."""
        return list(positions) if self.count is None else group_axes(positions, self.axis)

    def along(self, statistic: Tensor) -> Tensor:
        """The statistic of each channel's group, from one that has extent 1 along the members."""
        if self.count is None:
            return statistic
        before, behind = statistic.shape[: self.axis], statistic.shape[self.axis + 2 :]
        repeated = op.broadcast_to(statistic, [*before, self.count, self._members, *behind])
        return op.reshape(repeated, [*before, self.channels, *behind])

    def mean(self, x: Tensor) -> Tensor:
        """The means over the members of each group, in the shape that `along` takes."""
        if self.count is None:
            return x
        total = op.reduce_sum(self.apart(x), [self.axis + 1], keepdims=True)
        return op.divide_by_count(total, [self._members])

    @property
    def _members(self) -> Dimension:
        """The number of channels of a group."""
        return 1 if self.count is None else self.channels // self.count


def normalize(
    x: Tensor,
    axes: Sequence[int],
    epsilon: float,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    parameter_axes: Sequence[int] = (),
    center: bool = True,
) -> Tensor:
    """The normalized tensor γ (x − μ) (σ² + ε)^(−1/2) + β, with statistics over `axes`.

    Parameters
    ----------
    x : Tensor
        Float.
    axes : sequence of int
        Non-negative.
    epsilon : float
    gamma, beta : Tensor, optional
        Of the extents of `x` along `parameter_axes`, in that order.
    parameter_axes : sequence of int
        Non-negative.
    center : bool
        Whether the mean is subtracted; if not, σ² is the mean square.

    Returns
    -------
    Tensor
        In the shape and dtype of `x`.
    """
    wide = op.widen(x)
    if center:
        centered, r = standardize(wide, axes, epsilon)
    else:
        centered, r = wide, inverse_root_mean_square(wide, axes, epsilon)
    y = centered * r
    if gamma is not None:
        y = y * spread(op.widen(gamma), parameter_axes, x.ndim)
    if beta is not None:
        y = y + spread(op.widen(beta), parameter_axes, x.ndim)
    return y.astype(x.dtype)


@legalization_by_ops("relax.nn.batch_norm")
def batch_norm(x: Tensor, gamma: Tensor, beta: Tensor, *running_and_attrs: Any) -> list[Tensor]:
    """Lower batch norm: outputs and running statistics in the dtype of the input.

    The stock form reads what it trains on three times, adds up float16 in float16, and fails on a
    negative axis when it trains.
    """
    *running, attrs = running_and_attrs
    dtype, axis = x.dtype, attrs.axis % x.ndim
    x, gamma, beta, *running = map(op.widen, (x, gamma, beta, *running))

    def per_channel(t: Tensor) -> Tensor:
        return spread(t, [axis], x.ndim)

    if attrs.training:
        batch = moments(x, [a for a in range(x.ndim) if a != axis])
        mean, variance = (op.reshape(statistic, gamma.shape) for statistic in batch)
        # Relax's momentum is the share of the batch; ONNX's is that of the old statistic.
        running = [
            (1.0 - attrs.momentum) * old + attrs.momentum * new
            for old, new in zip(running, (mean, variance), strict=True)
        ]
    else:
        mean, variance = running
    slope = inverse_deviation(variance, attrs.epsilon)
    slope = gamma * slope if attrs.scale else slope
    y = (x - per_channel(mean)) * per_channel(slope)
    y = y + per_channel(beta) if attrs.center else y
    return [output.astype(dtype) for output in (y, *running)]


@legalization_by_ops("relax.nn.group_norm")
def group_norm(x: Tensor, gamma: Tensor, beta: Tensor, attrs: Any) -> Tensor:
    """Lower group norm: a group of channels has statistics in common, taken over the axes too."""
    axis, groups = attrs.channel_axis % x.ndim, attrs.num_groups
    y = normalize(
        in_groups(x, axis, groups),
        group_axes(op.normalize_axes(attrs.axes, x.ndim), axis),
        attrs.epsilon,
        in_groups(gamma, 0, groups) if attrs.scale else None,
        in_groups(beta, 0, groups) if attrs.center else None,
        [axis, axis + 1],
    )
    return op.reshape(y, x.shape)


@legalization_by_ops("relax.nn.instance_norm")
def instance_norm(x: Tensor, gamma: Tensor, beta: Tensor, attrs: Any) -> Tensor:
    """Lower instance norm: γ and β lie along the channel axis."""
    return normalize(
        x,
        op.normalize_axes(attrs.axes, x.ndim),
        attrs.epsilon,
        gamma if attrs.scale else None,
        beta if attrs.center else None,
        [attrs.channel_axis % x.ndim],
    )


@legalization_by_ops("relax.nn.layer_norm")
def layer_norm(x: Tensor, gamma: Tensor, beta: Tensor, attrs: Any) -> Tensor:
    """Lower layer norm: γ and β have the extents of the axes, in their order."""
    axes = op.normalize_axes(attrs.axes, x.ndim)
    factor, offset = gamma if attrs.scale else None, beta if attrs.center else None
    return normalize(x, axes, attrs.epsilon, factor, offset, axes)


@legalization_by_ops("relax.nn.rms_norm")
def rms_norm(x: Tensor, gamma: Tensor, attrs: Any) -> Tensor:
    """Lower RMS norm: no mean is subtracted."""
    axes = op.normalize_axes(attrs.axes, x.ndim)
    return normalize(x, axes, attrs.epsilon, gamma, None, axes, center=False)


@layout_rule("relax.nn.batch_norm")
@following
def batch_norm_layout(site: Site, x: relax.Expr, order: Order) -> LaidOut:
    """Scale, shift and statistics lie along the channels; the new statistics are vectors."""
    parameters = map(as_in_model, site.operands[1:])
    axis = stored_axis(order, site.attributes.axis)
    return site.passed([x, *parameters], [order, orders.own(1), orders.own(1)], axis=axis)


@layout_rule("relax.nn.group_norm", "relax.nn.instance_norm")
@following
def group_norm_layout(site: Site, x: relax.Expr, order: Order) -> LaidOut:
    """Scale and shift lie along the channels."""
    parameters = map(as_in_model, site.operands[1:])
    return site.passed(
        [x, *parameters],
        order,
        channel_axis=stored_axis(order, site.attributes.channel_axis),
        axes=stored_axes(order, site.attributes.axes),
    )


@layout_rule("relax.nn.layer_norm", "relax.nn.rms_norm")
@following
def layer_norm_layout(site: Site, x: relax.Expr, order: Order) -> LaidOut:
    """Scale and shift have the extents of the axes, in the order in which they are named."""
    parameters = map(as_in_model, site.operands[1:])
    return site.passed([x, *parameters], order, axes=stored_axes(order, site.attributes.axes))
