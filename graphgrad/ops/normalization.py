"""Normalization by the functions of `functional`: what rules, lowerings and converters share.

Half precision is computed in float32, and means are summed in float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..ir.tensor import Dimension, Tensor
from . import functional as op
from .moments import moments


def mean(x: Tensor, axes: Sequence[int]) -> Tensor:
    """The mean over axes, which are kept with extent 1.

    The sum is in float64: what a sum of many float32 loses is a shift of all centered values.
    """
    total = op.reduce_sum(x.astype("float64"), axes, keepdims=True)
    return op.divide_by_count(total, [x.shape[axis] for axis in axes]).astype(x.dtype)


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
    return inverse_deviation(mean(x * x, axes), epsilon)


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
